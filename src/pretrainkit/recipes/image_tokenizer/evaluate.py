"""Held-out metrics: those of the objective, and how the codes are used.

Dimensions: B images, K codes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.data.order import Order
from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import dealt, evaluate
from pretrainkit.recipes.capabilities import Evaluator
from pretrainkit.recipes.image_tokenizer.config import ImageTokenizerRun
from pretrainkit.recipes.image_tokenizer.model import Pass
from pretrainkit.recipes.image_tokenizer.objective import ImageTokenizerObjective
from pretrainkit.recipes.image_tokenizer.source import open_source
from pretrainkit.training.precision import Precision


class _Counting(ImageTokenizerObjective):
    """Counts ids of the first `num_counted` batches."""

    def __init__(self, config: ImageTokenizerRun, num_counted: int) -> None:
        super().__init__(config)
        self.counts_K = np.zeros(config.model.vocab_size, np.int64)
        self._num_left = num_counted

    def seen(self, found: Pass) -> None:
        if self._num_left > 0:
            self.counts_K += _counts(found.quantized.ids, len(self.counts_K))
        self._num_left -= 1


def build_evaluator(config: ImageTokenizerRun, world: World, precision: Precision) -> Evaluator:
    """The first `evaluate.num_examples` of a fixed shuffle of the held-out images, each scored once in the same batches
    whatever the number of ranks. `codebook_usage`: the share of ids that occur among their tokens;
    `codebook_perplexity`: how many equally frequent ids would be as hard to guess."""
    source = open_source(config, "valid")
    order = Order(source.sizes, weights=[None] * len(source.sizes), mode="shuffle", seed=0, batch_size=1)
    num_examples, size = min(config.evaluate.num_examples, sum(source.sizes)), config.evaluate.batch_size
    numbers, num_counted = dealt(-(-num_examples // size), world)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for number in numbers:
            yield source.build(order.records(np.arange(number * size, min((number + 1) * size, num_examples))))

    def held_out(model: nn.Module) -> dict[str, float]:
        objective = _Counting(config, num_counted)
        metrics = evaluate(objective, model, batches(), precision=precision, world=world, num_counted=num_counted)
        counts_K = np.sum(world.gather_objects(objective.counts_K.tolist()), axis=0)
        share_K = counts_K[counts_K > 0] / counts_K.sum()
        return dict(
            sorted(
                {
                    **metrics,
                    "codebook_usage": float((counts_K > 0).mean()),
                    "codebook_perplexity": float(np.exp(-(share_K * np.log(share_K)).sum())),
                }.items()
            )
        )

    return held_out


def _counts(ids: Tensor, num: int) -> np.ndarray:
    return torch.bincount(ids.reshape(-1), minlength=num).cpu().numpy()
