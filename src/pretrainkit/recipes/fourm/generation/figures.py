"""How near generated tokens come to the truth, and how near a guess that looks at nothing comes. Torch-free.

Dimensions: B examples, P places.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.fourm.generation.show import structure, values_of
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.sequences import Ids
from pretrainkit.recipes.fourm.text import TextVocabulary

T = TypeVar("T")
Boxes = Sequence[tuple[str, Sequence[float]]]
"""Class, and xmin, ymin, xmax, ymax as shares of the image."""
_BOXES = "boxes"
"""The reader."""
_MOST_GUESSES = 64
"""Texts that are tried as a guess for all."""
_WITH_SIZE = ("depth", "colors")
"""Readers whose tokens are numbers that can be nearly right."""


def figures(
    modality: Modality, found: Sequence[Ids], truth: Sequence[Ids], vocabulary: TextVocabulary | None
) -> dict[str, float]:
    """By name, means over examples.

    Of images `accuracy`, the share of tokens that are equal; where tokens are numbers `error`, the mean distance: of
    depth in deviations of the image's own, of colours in steps of 256. Of sequences `words`, the harmonic mean of the
    shares of words that are right among those found and among the true ones, whatever their order; of boxes `iou` too,
    see `boxes_iou`.
    """
    if modality.kind == "sequence":
        assert vocabulary is not None
        pairs = [(_words(a, vocabulary), _words(b, vocabulary)) for a, b in zip(found, truth, strict=True)]
        named = {"words": float(np.mean([overlap(a, b) for a, b in pairs]))}
        if modality.reader == _BOXES:
            both = [(_boxes(modality, a, vocabulary), _boxes(modality, b, vocabulary)) for a, b in zip(found, truth)]
            named["iou"] = float(np.mean([boxes_iou(a, b) for a, b in both]))
        return named
    found_BP, truth_BP = np.stack(list(found)), np.stack(list(truth))
    named = {"accuracy": float((found_BP == truth_BP).mean())}
    if modality.reader in _WITH_SIZE:
        named["error"] = float(np.abs(values_of(modality, found_BP) - values_of(modality, truth_BP)).mean())
    return named


def together(modality: Modality, found: Sequence[Sequence[Ids]], truth: Sequence[Ids]) -> dict[str, float]:
    """The same names for several results of each example taken together: the commonest token of each place, and the
    mean where tokens are numbers. Images only.

    Args:
        found: Of each example its variations.
        truth: Of each example.
    """
    truth_BP = np.stack(list(truth))
    votes_BP = np.stack([_commonest(np.stack(list(own))) for own in found])
    named = {"accuracy": float((votes_BP == truth_BP).mean())}
    if modality.reader in _WITH_SIZE:
        mean_BP = np.stack([values_of(modality, np.stack(list(own))).mean(axis=0) for own in found])
        named["error"] = float(np.abs(mean_BP - values_of(modality, truth_BP)).mean())
    return named


def _commonest(ids_VP: Ids) -> Ids:
    """(P,) of V variations; of equally common ones the smallest."""
    return np.array([np.bincount(own).argmax() for own in ids_VP.T], np.int32)


def guessed(
    modality: Modality, known: Sequence[Ids], truth: Sequence[Ids], vocabulary: TextVocabulary | None
) -> dict[str, float]:
    """The same names for the best guess that is the same for every example, made from known ones.

    `accuracy`: the commonest token. `error`: the mean of each place. `words`: of the known texts the one that agrees
    most with the others. `iou`: of the known boxes those that agree most with the others.
    """
    if modality.kind == "sequence":
        assert vocabulary is not None
        named = {
            "words": _guess([_words(ids, vocabulary) for ids in known], [_words(t, vocabulary) for t in truth], overlap)
        }
        if modality.reader == _BOXES:
            parts = [[_boxes(modality, ids, vocabulary) for ids in side] for side in (known, truth)]
            named["iou"] = _guess(parts[0], parts[1], boxes_iou)
        return named
    known_BP, truth_BP = np.stack(list(known)), np.stack(list(truth))
    named = {"accuracy": float((truth_BP == np.bincount(known_BP.ravel()).argmax()).mean())}
    if modality.reader in _WITH_SIZE:
        mean_P = values_of(modality, known_BP).mean(axis=0)
        named["error"] = float(np.abs(mean_P - values_of(modality, truth_BP)).mean())
    return named


def _guess(known: Sequence[T], truth: Sequence[T], agreement: Callable[[T, T], float]) -> float:
    """Mean agreement with the truth of the known one that agrees most with the others."""
    tried = known[:: max(1, len(known) // _MOST_GUESSES)]
    best = max(tried, key=lambda one: sum(agreement(one, other) for other in tried))
    return float(np.mean([agreement(best, one) for one in truth]))


def boxes_iou(found: Boxes, truth: Boxes) -> float:
    """Intersection over union of boxes that belong together, as a mean over the larger number of boxes.

    Those of the same class that lie best on each other belong together, each to at most one; two empty lists agree.
    """
    if not found and not truth:
        return 1.0
    pairs = [
        (_iou(a, b), i, j) for i, (name, a) in enumerate(found) for j, (other, b) in enumerate(truth) if name == other
    ]
    total, used_found, used_truth = 0.0, set[int](), set[int]()
    for value, i, j in sorted(pairs, reverse=True):
        if i not in used_found and j not in used_truth:
            total += value
            used_found.add(i)
            used_truth.add(j)
    return total / max(len(found), len(truth))


def _iou(one: Sequence[float], other: Sequence[float]) -> float:
    width, height = (min(one[2 + a], other[2 + a]) - max(one[a], other[a]) for a in (0, 1))
    shared = max(width, 0.0) * max(height, 0.0)
    whole = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - shared
    return shared / whole if whole > 0 else 0.0


def _boxes(modality: Modality, ids: Ids, vocabulary: TextVocabulary) -> Boxes:
    """Class and corners of those that are whole."""
    instances = structure(modality, ids, vocabulary)["instances"]
    return [(one["class_name"], one["boxes"]) for one in instances]


def overlap(found: Mapping[str, int], truth: Mapping[str, int]) -> float:
    """Harmonic mean of precision and recall of words with their numbers; two empty texts agree."""
    same = sum(min(count, truth.get(word, 0)) for word, count in found.items())
    total = sum(found.values()) + sum(truth.values())
    return 2 * same / total if total else 1.0


def _words(ids: Ids, vocabulary: TextVocabulary) -> Counter[str]:
    return Counter(vocabulary.decode(ids).split())


def spread(sizes: Sequence[int], num: int) -> list[tuple[int, int]]:
    """(set, sample) of at most `num` samples, spread evenly over all of them."""
    ends = np.cumsum([0, *sizes])
    chosen: NDArray[np.int64] = np.unique(np.linspace(0, ends[-1] - 1, min(num, int(ends[-1]))).astype(np.int64))
    number = np.searchsorted(ends, chosen, side="right") - 1
    return list(zip(number.tolist(), (chosen - ends[number]).tolist(), strict=True))
