"""Metrics of classes and of numbers, in percent; the keys are those of the t5 library.

Classes are whole numbers from 0 (-1 and whatever else is no class: an answer that names none). Their metrics agree with
scikit-learn to rounding, correlations with SciPy, which gives NaN where they give 0.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError


def check_pairs(targets: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Raises DataError where there is nothing to judge, or not one prediction for each target."""
    if len(targets) != len(predictions):
        raise DataError(
            f"there are {len(targets)} targets and {len(predictions)} predictions\n  give one prediction per target"
        )
    if not len(targets):
        raise DataError("there is nothing to judge: no target and no prediction\n  check the split and num_examples")


def accuracy(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """`accuracy`: how many predictions equal their target. Classes, or texts."""
    check_pairs(targets, predictions)
    return {"accuracy": 100 * sum(t == p for t, p in zip(targets, predictions, strict=True)) / len(targets)}


def f1_invalid_wrong(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """`f1` of class 1 against class 0. A prediction that is neither counts as the class that is wrong.

    0 where nothing is, or is said to be, of class 1.
    """
    check_pairs(targets, predictions)
    target_N, prediction_N = np.asarray(targets), np.asarray(predictions)
    is_valid_N = (prediction_N == 0) | (prediction_N == 1)
    return {"f1": 100 * _f1_of_class(target_N, np.where(is_valid_N, prediction_N, 1 - target_N), 1)}


def mean_multiclass_f1(num_classes: int) -> Callable[[Sequence[int], Sequence[int]], dict[str, float]]:
    """The metric `mean_{num_classes}class_f1`: F1 of each class against all others, averaged over the classes.

    A class that nothing is, or is said to be, has an F1 of 0.
    """
    return partial(_mean_f1, num_classes=num_classes)


def matthews(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """`matthews_corrcoef`: correlation of the classes, for any number of them; 0 where one side has one class only.

    Source: Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006.
    """
    check_pairs(targets, predictions)
    _, codes = np.unique(np.concatenate([targets, predictions]), return_inverse=True)
    target_N, prediction_N = codes[: len(targets)], codes[len(targets) :]
    num_classes, num = int(codes.max()) + 1, len(targets)
    said_C = np.bincount(prediction_N, minlength=num_classes).astype(float)
    true_C = np.bincount(target_N, minlength=num_classes).astype(float)
    covariance = float((target_N == prediction_N).sum()) * num - float(said_C @ true_C)
    spread = (num**2 - float(said_C @ said_C)) * (num**2 - float(true_C @ true_C))
    return {"matthews_corrcoef": 100 * covariance / spread**0.5 if spread else 0.0}


def pearson(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """`pearson_corrcoef`; 0 where all targets, or all predictions, are equal."""
    check_pairs(targets, predictions)
    return {"pearson_corrcoef": 100 * _correlation(np.asarray(targets, float), np.asarray(predictions, float))}


def spearman(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """`spearman_corrcoef`: Pearson's of the ranks, equal values sharing the mean of theirs."""
    check_pairs(targets, predictions)
    return {"spearman_corrcoef": 100 * _correlation(_ranks(np.asarray(targets)), _ranks(np.asarray(predictions)))}


def _mean_f1(targets: Sequence[int], predictions: Sequence[int], *, num_classes: int) -> dict[str, float]:
    check_pairs(targets, predictions)
    target_N, prediction_N = np.asarray(targets), np.asarray(predictions)
    scores = [_f1_of_class(target_N, prediction_N, label) for label in range(num_classes)]
    return {f"mean_{num_classes}class_f1": 100 * sum(scores) / num_classes}


def _f1_of_class(target_N: NDArray, prediction_N: NDArray, label: int) -> float:
    is_target_N, is_said_N = target_N == label, prediction_N == label
    both, either = int((is_target_N & is_said_N).sum()), int(is_target_N.sum() + is_said_N.sum())
    return 2 * both / either if either else 0.0


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
