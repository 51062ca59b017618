"""How near generated tokens come to the truth, and how near a guess that looks at nothing comes. Torch-free.

Dimensions: B examples, P places.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.fourm.generation.show import numbers_of, values_of
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.sequences import Ids
from pretrainkit.recipes.fourm.text import TextVocabulary

_MOST_GUESSES = 64
"""Texts that are tried as a guess for all."""


def figures(
    modality: Modality, found: Sequence[Ids], truth: Sequence[Ids], vocabulary: TextVocabulary | None
) -> dict[str, float]:
    """By name, means over examples.

    Of images `accuracy`, the share of tokens that are equal; where tokens are numbers `error`, the mean distance: of
    depth in deviations of the image's own, of colours in steps of 256. Of sequences `words`, the harmonic mean of the
    shares of words that are right among those found and among the true ones, whatever their order.
    """
    if modality.kind == "sequence":
        assert vocabulary is not None
        pairs = [(_words(a, vocabulary), _words(b, vocabulary)) for a, b in zip(found, truth, strict=True)]
        return {"words": float(np.mean([overlap(a, b) for a, b in pairs]))}
    found_BP, truth_BP = np.stack(list(found)), np.stack(list(truth))
    named = {"accuracy": float((found_BP == truth_BP).mean())}
    if numbers_of(modality):
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
    if numbers_of(modality):
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
    most with the others.
    """
    if modality.kind == "sequence":
        assert vocabulary is not None
        texts = [_words(ids, vocabulary) for ids in known]
        tried = texts[:: max(1, len(texts) // _MOST_GUESSES)]
        best = max(tried, key=lambda text: sum(overlap(text, other) for other in tried))
        return {"words": float(np.mean([overlap(best, _words(ids, vocabulary)) for ids in truth]))}
    known_BP, truth_BP = np.stack(list(known)), np.stack(list(truth))
    named = {"accuracy": float((truth_BP == np.bincount(known_BP.ravel()).argmax()).mean())}
    if numbers_of(modality):
        mean_P = values_of(modality, known_BP).mean(axis=0)
        named["error"] = float(np.abs(mean_P - values_of(modality, truth_BP)).mean())
    return named


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
