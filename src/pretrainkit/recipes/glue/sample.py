"""Held-out examples for the report: what was read, what the model answers, what is true."""

from typing import Any

import torch
from torch import nn

from pretrainkit.dist.weights import on_cpu
from pretrainkit.recipes.glue.answers import answers_of
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.evaluate import spread
from pretrainkit.recipes.glue.heads.by_kind import build_objective
from pretrainkit.recipes.glue.source import TextSource
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.run import PrecisionConfig


def sample(config: GlueRun, model: nn.Module, source: TextSource, num: int) -> list[dict[str, Any]]:
    """`num` rows evenly spread over the held-out data, answered on the CPU; see `Labelled.shown`."""
    model = on_cpu(model)
    rows = spread(len(source.examples.index), num)
    said = answers_of(
        model,
        build_objective(config),
        source,
        source.examples.examples_of(rows),
        batch_size=num,
        precision=resolve_precision(PrecisionConfig(compute="float32"), torch.device("cpu")),
    )
    return source.examples.shown(rows, said)
