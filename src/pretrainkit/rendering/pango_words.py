"""Lines of Latin text put together from words that were shaped before.

Shaping is most of what a line costs, and words come back. A word is shaped between spaces, with a letter beyond each,
so that kerning with the spaces and the choice of script are those of a line. Everything else is shaped as a whole. Only
a font with rules that reach across a space to the next word would look different; set `keep_words` to False for it.

Dimensions: G glyphs of a word or line, W words of a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SIMPLE = re.compile("[ -~¡-¬®-ɏ–—‘’“”„…]*")
"""What is of the Latin script or of none, joins nothing and changes nobody's direction."""
_LETTER = re.compile("[A-Za-zÀ-ÖØ-öø-ɏ]")
_KEPT = 1 << 17
"""Words that are kept; with more, all are forgotten."""


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A word in its place on a line."""

    slots_G: NDArray[np.int32]
    columns_G: NDArray[np.int64]
    """First column of each bitmap, from the word's pen."""
    space: int
    """Pixels of the space before it."""
    width: int
    """Pixels to where the space after it begins."""


WordShaper = Callable[[str, bool, bool], Word | None]
"""A word, whether a space comes before it, and whether one comes after it. None: it cannot be taken alone."""


class WordLines:
    """Lines from words; keeps the words."""

    def __init__(self, shape: WordShaper) -> None:
        self._shape = shape
        self._middle: dict[str, Word | None] = {}
        self._ends: dict[tuple[str, bool], Word | None] = {}

    def line(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64], int] | None:
        """Slots and first columns of the glyphs with ink, and the width in pixels; None where the text must be shaped
        as a whole."""
        words = text.split(" ")
        if len(words) < 3 or _SIMPLE.fullmatch(text) is None or _LETTER.search(text) is None or "" in words:
            return None
        middle = self._middle
        try:
            found = [middle[word] for word in words[1:-1]]
        except KeyError:
            self._learn(words[1:-1])
            found = [middle[word] for word in words[1:-1]]
        whole = [self._end(words[0], is_first=True), *found, self._end(words[-1], is_first=False)]
        if None in whole:
            return None
        return _join([word for word in whole if word is not None])

    def _learn(self, words: list[str]) -> None:
        if len(self._middle) > _KEPT:
            self._middle.clear()
        for word in words:
            if word not in self._middle:
                self._middle[word] = self._shape(word, True, True)

    def _end(self, word: str, *, is_first: bool) -> Word | None:
        if len(self._ends) > _KEPT:
            self._ends.clear()
        if (word, is_first) not in self._ends:
            self._ends[word, is_first] = self._shape(word, not is_first, is_first)
        return self._ends[word, is_first]


def _join(words: list[Word]) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
    num = len(words)
    widths_W = np.fromiter([word.width for word in words], np.int64, num)
    spaces_W = np.fromiter([word.space for word in words], np.int64, num)
    lengths_W = np.fromiter([len(word.slots_G) for word in words], np.int64, num)
    ends_W = np.cumsum(widths_W + spaces_W)
    columns_G = np.concatenate([word.columns_G for word in words])
    columns_G += (ends_W - widths_W).repeat(lengths_W)
    return np.concatenate([word.slots_G for word in words]), columns_G, int(ends_W[-1])
