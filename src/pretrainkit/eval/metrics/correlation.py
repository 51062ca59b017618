"""Correlations of numbers, times 100. They agree with SciPy to rounding, which gives NaN where they give 0."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.eval.metrics.pairs import check_pairs


def pearson(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """`pearson_corrcoef`; 0 where all targets, or all predictions, are equal."""
    check_pairs(targets, predictions)
    return {"pearson_corrcoef": 100 * _correlation(np.asarray(targets, float), np.asarray(predictions, float))}


def spearman(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """`spearman_corrcoef`: Pearson's of the ranks, equal values sharing the mean of theirs."""
    check_pairs(targets, predictions)
    return {"spearman_corrcoef": 100 * _correlation(_ranks(np.asarray(targets)), _ranks(np.asarray(predictions)))}


def _correlation(a_N: NDArray, b_N: NDArray) -> float:
    if (a_N == a_N[0]).all() or (b_N == b_N[0]).all():
        return 0.0
    a_N, b_N = a_N - a_N.mean(), b_N - b_N.mean()
    # Each by its own length first: products of very small or large values would leave the range of a float.
    return float((a_N / np.linalg.norm(a_N)) @ (b_N / np.linalg.norm(b_N)))


def _ranks(values_N: NDArray) -> NDArray[np.float64]:
    _, place_N, count = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place_N]
