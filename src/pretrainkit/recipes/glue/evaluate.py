"""Held-out metrics of a task: over whole splits, for they are no means over batches."""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretrainkit.dist.env import World
from pretrainkit.recipes.capabilities import Evaluator
from pretrainkit.recipes.glue.answers import answers_of
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.heads.by_kind import build_objective
from pretrainkit.recipes.glue.source import open_texts, task_of, valid_splits
from pretrainkit.recipes.text_reader import TextReader
from pretrainkit.training.precision import Precision


def build_evaluator(config: GlueRun, reader: TextReader, world: World, precision: Precision) -> Evaluator:
    """`loss`, the task's metrics in percent, and `score`, the mean of the metrics (of MNLI: of both its held-out sets,
    the mismatched one's as `mismatched_...`)."""
    task, objective = task_of(config.data), build_objective(config)
    splits = [
        (prefix, open_texts(config, reader, [split], needs_label=True))
        for split, prefix in valid_splits(config.data, task).items()
    ]

    def evaluate(model: nn.Module) -> dict[str, float]:
        found: dict[str, float] = {}
        scores = []
        for prefix, source in splits:
            examples = source.examples
            rows = spread(len(examples.index), config.evaluate.num_examples)
            said = answers_of(
                model,
                objective,
                source,
                examples.examples_of(rows),
                batch_size=config.evaluate.batch_size,
                precision=precision,
                world=world,
            )
            metrics = examples.metrics(rows, said)
            scores.append(metrics.pop("score"))
            found |= {f"{prefix}{name}": value for name, value in metrics.items()}
        return dict(sorted((found | {"score": sum(scores) / len(scores)}).items()))

    return evaluate


def spread(size: int, limit: int) -> NDArray[np.int64]:
    """Indices of at most `limit` of `size` examples, evenly spread."""
    return np.arange(size) if size <= limit else np.linspace(0, size - 1, limit).astype(np.int64)
