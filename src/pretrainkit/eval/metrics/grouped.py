"""Metrics of examples that belong together: answers to one question, or copies of one question.

Targets are mappings with a `value`, which the metric of single examples takes, and a `group`, which is equal where
examples belong together; predictions are mappings with a `value`.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from pretrainkit.eval.metrics.answers import squad
from pretrainkit.eval.metrics.classes import f1_invalid_wrong
from pretrainkit.eval.metrics.pairs import check_pairs

Grouped = Mapping[str, Any]


def multirc_f1_and_exact_match(targets: Sequence[Grouped], predictions: Sequence[Grouped]) -> dict[str, float]:
    """`f1` over all answers of all questions (see `f1_invalid_wrong`), and `exact_match`: the questions of which every
    answer was judged rightly. In percent.

    Source: Khashabi et al. 2018, https://aclanthology.org/N18-1023.
    """
    check_pairs(targets, predictions)
    is_right: dict[Hashable, bool] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        group = target["group"]
        is_right[group] = is_right.get(group, True) and target["value"] == prediction["value"]
    found = f1_invalid_wrong([one["value"] for one in targets], [one["value"] for one in predictions])
    return found | {"exact_match": 100 * sum(is_right.values()) / len(is_right)}


def deduplicated_squad(targets: Sequence[Grouped], predictions: Sequence[Grouped]) -> dict[str, float]:
    """`squad` of the first example of each group: for ReCoRD, where every right answer makes an example of its own."""
    check_pairs(targets, predictions)
    first: dict[Hashable, tuple[Any, Any]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        first.setdefault(target["group"], (target["value"], prediction["value"]))
    answers, said = zip(*first.values(), strict=True)
    return squad(answers, said)
