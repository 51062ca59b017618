"""Entities in sequences of labels such as B-PER, I-PER, O: found, and compared as wholes.

An entity is read leniently, as conlleval and seqeval do: also an I- behind O, or behind another kind, begins one.

Source: Tjong Kim Sang and Buchholz 2000, https://aclanthology.org/W00-0726.
"""

import re
from collections.abc import Sequence

from pretrainkit.eval.metrics.classes import check_pairs

_LABEL = re.compile(r"O|[BIES]-.+")
OUTSIDE = "O"
Entity = tuple[str, int, int]
"""Kind, its first word, the word behind its last."""


def are_entity_labels(names: Sequence[str]) -> bool:
    """Whether these are O and labels that begin or go on with entities (B-, I-, E-, S-)."""
    return OUTSIDE in names and len(names) > 1 and all(_LABEL.fullmatch(name) for name in names)


def entities(labels: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order. What is neither O nor such a label counts as O."""
    found: list[Entity] = []
    begun: tuple[str, int] | None = None
    place_before = ""
    for number, label in enumerate(labels):
        place, _, kind = label.partition("-") if _LABEL.fullmatch(label) else (OUTSIDE, "", "")
        goes_on = begun is not None and place in "IE" and place_before in "BI" and kind == begun[0]
        if begun is not None and not goes_on:
            found.append((*begun, number))
            begun = None
        if place != OUTSIDE and begun is None:
            begun = (kind, number)
        place_before = place
    return found if begun is None else [*found, (*begun, len(labels))]


def entity_f1(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """`precision`, `recall` and `f1` of entities over all sentences, given the labels of each: right is what has the
    same kind and place."""
    check_pairs(targets, predictions)
    num_true = num_said = num_right = 0
    for labels, said in zip(targets, predictions, strict=True):
        if labels or said:
            check_pairs(labels, said)
        true_set, said_set = set(entities(labels)), set(entities(said))
        num_true, num_said = num_true + len(true_set), num_said + len(said_set)
        num_right += len(true_set & said_set)
    return {
        "precision": 100 * num_right / num_said if num_said else 0.0,
        "recall": 100 * num_right / num_true if num_true else 0.0,
        "f1": 200 * num_right / (num_said + num_true) if num_right else 0.0,
    }
