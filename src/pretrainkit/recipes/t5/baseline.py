"""What a model scores that has learned nothing but how frequent each target token is: the plateau to leave."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.source import Records
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.source import open_source
from pretrainkit.rng import fold, stream_key

MAX_EXAMPLES = {"train": 16_384, "valid": 2_048}
_BLOCK = 512
_KEY = stream_key(0, "t5", "baseline")


def unigram_loss(config: T5Run) -> float:
    """Cross-entropy of held-out targets under the add-one-smoothed frequencies of training targets, in nats per token.

    From at most 16 384 training and 2 048 held-out examples, spread over each component.
    """
    counts = _count(config, "train") + 1
    held_out = _count(config, "valid")
    nll_V = math.log(counts.sum()) - np.log(counts)
    return float((held_out * nll_V).sum() / held_out.sum())


def uniform_loss(config: T5Run) -> float:
    """ln of the vocabulary size: every token equally likely."""
    return math.log(int(config.model.vocab_size or 0))


def _count(config: T5Run, split: Literal["train", "valid"]) -> NDArray[np.int64]:
    """How often each id occurs in targets."""
    source = open_source(config, split)
    counts = np.zeros(int(config.model.vocab_size or 0), np.int64)
    weights = np.array([size if weight is None else weight for size, weight in zip(source.sizes, source.weights)])
    for number, size in enumerate(source.sizes):
        num = min(size, max(1, round(MAX_EXAMPLES[split] * weights[number] / weights.sum())))
        chosen = np.unique(np.linspace(0, size - 1, num, dtype=np.int64))
        for begin in range(0, len(chosen), _BLOCK):
            index = chosen[begin : begin + _BLOCK]
            zeros = np.zeros(len(index), np.int64)
            _, targets = source.examples(Records(zeros + number, zeros, index, fold(_KEY, index)))
            counts += np.bincount(targets.values, minlength=len(counts))
    return counts
