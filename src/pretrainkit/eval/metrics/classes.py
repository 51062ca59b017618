"""Metrics of classes, which are whole numbers from 0 (-1 and whatever else is no class: an answer that names none).

All are in percent. They agree with scikit-learn to rounding; the keys are those of the t5 library.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pretrainkit.eval.metrics.pairs import check_pairs


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


def mean_multiclass_f1(
    num_classes: int,
) -> Callable[[Sequence[int], Sequence[int]], dict[str, float]]:
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


def _mean_f1(targets: Sequence[int], predictions: Sequence[int], *, num_classes: int) -> dict[str, float]:
    check_pairs(targets, predictions)
    target_N, prediction_N = np.asarray(targets), np.asarray(predictions)
    scores = [_f1_of_class(target_N, prediction_N, label) for label in range(num_classes)]
    return {f"mean_{num_classes}class_f1": 100 * sum(scores) / num_classes}


def _f1_of_class(target_N: NDArray, prediction_N: NDArray, label: int) -> float:
    is_target_N, is_said_N = target_N == label, prediction_N == label
    both, either = int((is_target_N & is_said_N).sum()), int(is_target_N.sum() + is_said_N.sum())
    return 2 * both / either if either else 0.0
