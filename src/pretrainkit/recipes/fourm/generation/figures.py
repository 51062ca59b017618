"""How near generated tokens come to the truth, and how near a guess that looks at nothing comes. Torch-free.

Dimensions: B examples, P places.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.fourm.generation.show import ImageDecoder, numbers_of, structure, values_of
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.sequences import Ids
from pretrainkit.recipes.fourm.text import TextVocabulary

Boxes = Sequence[tuple[str, Sequence[float]]]
"""Class, and xmin, ymin, xmax, ymax as shares of the image."""
_MOST_GUESSES = 64
"""Texts that are tried as a guess for all."""
_MOST_DECODED = 64
"""Pictures that a guess is made of, where each takes an image tokenizer."""


def figures(
    modality: Modality,
    found: Sequence[Ids],
    truth: Sequence[Ids],
    vocabulary: TextVocabulary | None,
    decoder: ImageDecoder | None = None,
) -> dict[str, float]:
    """By name, means over examples.

    Of images `accuracy`, the share of tokens that are equal; where they stand for numbers `error`, the mean distance:
    of depth in deviations of the image's own, of colours in steps of 256. With a decoder, pictures of tokens are
    compared, which are as good as the image tokenizer: `error`, or of classes `pixels`, the share that is equal. Of
    sequences `words`, the harmonic mean of the shares of words that are right among those found and among the true
    ones, whatever their order; of boxes `iou` too, see `boxes_iou`, and `iou_of_any_class`, which only asks where they
    are.
    """
    if modality.kind == "sequence":
        return {
            name: float(np.mean([agreement(read(a), read(b)) for a, b in zip(found, truth, strict=True)]))
            for name, (read, agreement) in _agreements(modality, vocabulary).items()
        }
    found_BP, truth_BP = np.stack(list(found)), np.stack(list(truth))
    values_B, true_B = _shown(modality, found_BP, decoder), _shown(modality, truth_BP, decoder)
    return {"accuracy": float((found_BP == truth_BP).mean())} | _distance(values_B, true_B)


def together(
    modality: Modality, found: Sequence[Sequence[Ids]], truth: Sequence[Ids], decoder: ImageDecoder | None = None
) -> dict[str, float]:
    """The same names for several results of each example taken together: the commonest token (of classes pixel) of each
    place, and the mean where they are numbers. Images only. `found`: of each example its variations."""
    truth_BP = np.stack(list(truth))
    votes_BP = np.stack([_commonest(np.stack(list(own))) for own in found])
    middle = [_middle(_shown(modality, np.stack(list(own)), decoder)) for own in found]
    known = [one for one in middle if one is not None]
    distance = _distance(np.stack(known) if known else None, _shown(modality, truth_BP, decoder))
    return {"accuracy": float((votes_BP == truth_BP).mean())} | distance


def guessed(
    modality: Modality,
    known: Sequence[Ids],
    truth: Sequence[Ids],
    vocabulary: TextVocabulary | None,
    decoder: ImageDecoder | None = None,
) -> dict[str, float]:
    """The same names for the best guess that is the same for every example, made from known ones.

    `accuracy`: the commonest token. `error`: the mean of each place. `pixels`: the commonest class of each place.
    `words`: of the known texts the one that agrees most with the others. `iou` and `iou_of_any_class`: of the known
    boxes those that agree most with the others.
    """
    if modality.kind == "sequence":
        named = {}
        for name, (read, agreement) in _agreements(modality, vocabulary).items():
            tried = [read(ids) for ids in known[:: max(1, len(known) // _MOST_GUESSES)]]
            scores = [sum(agreement(one, other) for other in tried) for one in tried]
            best = tried[scores.index(max(scores))]
            named[name] = float(np.mean([agreement(best, read(ids)) for ids in truth]))
        return named
    known_BP, truth_BP = np.stack(list(known)), np.stack(list(truth))
    accuracy = float((truth_BP == np.bincount(known_BP.ravel()).argmax()).mean())
    if decoder is not None:
        known_BP = known_BP[:: -(-len(known_BP) // _MOST_DECODED)]
    middle = _middle(_shown(modality, known_BP, decoder))
    return {"accuracy": accuracy} | _distance(
        None if middle is None else middle[None], _shown(modality, truth_BP, decoder)
    )


def _agreements(modality: Modality, vocabulary: TextVocabulary | None) -> Mapping[str, tuple[Any, Any]]:
    """By name, what is compared of the ids of a sequence, and how far two of these agree."""
    assert vocabulary is not None

    def words(ids: Ids) -> Counter[str]:
        return Counter(vocabulary.decode(ids).split())

    def boxes(ids: Ids) -> Boxes:
        return [(one["class_name"], one["boxes"]) for one in structure(modality, ids, vocabulary)["instances"]]

    found: dict[str, tuple[Any, Any]] = {"words": (words, overlap)}
    if modality.reader == "boxes":
        found |= {"iou": (boxes, boxes_iou), "iou_of_any_class": (boxes, partial(boxes_iou, of_any_class=True))}
    return found


def _commonest(ids_VP: Ids) -> Ids:
    """(P,) of V variations; of equally common ones the smallest."""
    return np.array([np.bincount(own).argmax() for own in ids_VP.T], np.int32)


def _shown(modality: Modality, ids_BP: Ids, decoder: ImageDecoder | None) -> NDArray | None:
    """(B, ...) what tokens stand for: floats, or integers of classes; None: nobody knows."""
    if decoder is None:
        return values_of(modality, ids_BP) if numbers_of(modality) else None
    found = decoder.decode(ids_BP)
    return found.astype(np.float64 if decoder.has_numbers else np.int64)


def _middle(values_B: NDArray | None) -> NDArray | None:
    """One for all: the mean, or of each place the commonest class."""
    if values_B is None or values_B.dtype.kind == "f":
        return None if values_B is None else values_B.mean(axis=0)
    return _commonest(values_B.reshape(len(values_B), -1)).reshape(values_B.shape[1:])


def _distance(found_B: NDArray | None, truth_B: NDArray | None) -> dict[str, float]:
    if found_B is None or truth_B is None:
        return {}
    if truth_B.dtype.kind == "f":
        return {"error": float(np.abs(found_B - truth_B).mean())}
    return {"pixels": float((found_B == truth_B).mean())}


def boxes_iou(found: Boxes, truth: Boxes, *, of_any_class: bool = False) -> float:
    """Intersection over union of boxes that belong together, as a mean over the larger number of boxes.

    Those of the same class (or of any) that lie best on each other belong together, each to at most one; two empty
    lists agree.
    """
    if not found and not truth:
        return 1.0
    pairs = [
        (_iou(a, b), i, j)
        for i, (name, a) in enumerate(found)
        for j, (other, b) in enumerate(truth)
        if of_any_class or name == other
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


def overlap(found: Mapping[str, int], truth: Mapping[str, int]) -> float:
    """Harmonic mean of precision and recall of words with their numbers; two empty texts agree."""
    same = sum(min(count, truth.get(word, 0)) for word, count in found.items())
    total = sum(found.values()) + sum(truth.values())
    return 2 * same / total if total else 1.0


def spread(sizes: Sequence[int], num: int) -> list[tuple[int, int]]:
    """(set, sample) of at most `num` samples, spread evenly over all of them."""
    ends = np.cumsum([0, *sizes])
    chosen: NDArray[np.int64] = np.unique(np.linspace(0, ends[-1] - 1, min(num, int(ends[-1]))).astype(np.int64))
    number = np.searchsorted(ends, chosen, side="right") - 1
    return list(zip(number.tolist(), (chosen - ends[number]).tolist(), strict=True))
