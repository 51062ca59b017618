"""Compose lines of Latin text from cached shaped words.

Shaping is most of the cost of a line, and words repeat. A word is shaped between two spaces and two letters, as in
"x word x", so that kerning with the spaces and the choice of script are the same as in a line. All other text is shaped
as a whole. Only a font with rules that reach across a space to the next word would look different; for it, set
`keep_words` to False.

Dimensions: G glyphs of a word or line, W words of a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SIMPLE = re.compile("[ -~¡-¬®-ɏ–—‘’“”„…]*")
"""Characters of the Latin script, or of none, that neither combine with others nor affect the text direction."""
_LETTER = re.compile("[A-Za-zÀ-ÖØ-öø-ɏ]")
_KEPT = 1 << 17
"""Maximum number of cached words. When it is exceeded, the cache is emptied."""
_NOT_ALONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A shaped word."""

    slots_G: NDArray[np.int32]
    columns_G: NDArray[np.int64]
    """First column of each bitmap, from the pen position at the word's start."""
    space: int
    """Width of the space before the word in pixels."""
    width: int
    """Width of the word in pixels, up to the space after it."""


WordShaper = Callable[[str, bool, bool], Word | None]
"""Shapes a word, given whether spaces precede and follow it. None: the word cannot be shaped separately."""


class WordLines:
    """Composes lines from cached words. Only one thread may use it at a time."""

    def __init__(self, shape: WordShaper) -> None:
        self._shape = shape
        self._forget()

    def line(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64], int] | None:
        """Return slots and first columns of the glyphs with ink, and the width in pixels. None if the text must be
        shaped as a whole."""
        words = text.split(" ")
        if len(words) < 3 or _SIMPLE.fullmatch(text) is None or _LETTER.search(text) is None or "" in words:
            return None
        if len(self._numbers) > _KEPT:
            self._forget()
        words[0], words[-1] = f" {words[0]}", f"{words[-1]} "  # mark the first and the last word by a space
        numbers = list(map(self._numbers.get, words))
        if None in numbers:
            numbers = [self._number(word) for word in words]
        if _NOT_ALONE in numbers:
            return None
        return self._join(np.array(numbers, np.int64))

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._num_glyphs = 0
        self._slots = np.zeros(1024, np.int32)
        self._columns = np.zeros(1024, np.int64)
        self._places = np.zeros((4, 256), np.int64)
        """By word number: first glyph, number of glyphs, width of the space before the word, width of the word."""

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            is_first, is_last = word[0] == " ", word[-1] == " "
            shaped = self._shape(word.strip(" "), not is_first, not is_last)
            number = self._numbers[word] = _NOT_ALONE if shaped is None else self._keep(shaped)
        return number

    def _keep(self, word: Word) -> int:
        number, first, num = len(self._numbers), self._num_glyphs, len(word.slots_G)
        if number >= self._places.shape[1]:
            self._places = np.concatenate([self._places, np.zeros_like(self._places)], axis=1)
        while first + num > len(self._slots):
            self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)])
        self._slots[first : first + num], self._columns[first : first + num] = word.slots_G, word.columns_G
        self._places[:, number] = first, num, word.space, word.width
        self._num_glyphs = first + num
        return number

    def _join(self, numbers_W: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
        first_W, lengths_W, spaces_W, widths_W = self._places.take(numbers_W, axis=1)
        pens_W = (spaces_W + widths_W).cumsum()
        width = int(pens_W[-1])
        pens_W -= widths_W
        stops_W = lengths_W.cumsum()
        # Glyph i of the line is glyph i - (stop - length) of its word, whose glyphs are stored from `first` on.
        index_G = np.arange(stops_W[-1])
        index_G += (first_W - stops_W + lengths_W).repeat(lengths_W)
        columns_G = self._columns.take(index_G)
        columns_G += pens_W.repeat(lengths_W)
        return self._slots.take(index_G), columns_G, width
