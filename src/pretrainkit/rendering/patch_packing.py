"""Documents to texts that fill a canvas, where words or pairs of letters begin patches of their own.

A text then takes up as many patches as its words do, so that each word is measured once; `packing.fill` is for running
text.

Dimensions: W words of a document, D distinct words, P pixels of a patch's side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.bigrams import bigram_patches, space_patches
from pretrainkit.rendering.geometry import LEFT_MARGIN
from pretrainkit.rendering.packing import longest_fitting
from pretrainkit.rendering.renderer import Renderer


def fill_patches(renderer: Renderer, text: str) -> Iterator[str]:
    """The text in pieces of whole words that leave less room on a canvas than the next word takes; a word that is
    longer than a canvas is cut between characters. White space between words counts as one space."""
    words = text.split()
    if not words:
        return
    room = renderer.config.max_seq_length - 1
    measure = _Bigrams(renderer, words) if renderer.config.strategy == "bigrams" else _Words(renderer, words)
    begin, guess = 0, room
    while begin < len(words):
        before = measure.reach_W[begin - 1] if begin else 0
        end = max(int(np.searchsorted(measure.reach_W, before + room, side="right")), begin + 1)
        while end < len(words) and measure.num_patches(begin, end + 1) <= room:
            end += 1
        while end > begin and measure.num_patches(begin, end) > room:
            end -= 1
        if end > begin:
            yield " ".join(words[begin:end])
        else:
            word, first, end = words[begin], 0, begin + 1
            while first < len(word):
                num = guess = longest_fitting(measure.num_patches_of, word, first, room, guess)
                yield word[first : first + num]
                first += num
        begin = end


class _Measure(Protocol):
    """Patches that words take up."""

    reach_W: NDArray[np.int64]
    """Patches up to and with each word and the space after it, were all on one line."""

    def num_patches(self, begin: int, end: int) -> int:
        """Of a text of the words from `begin` to before `end`."""
        ...

    def num_patches_of(self, word: str) -> int:
        """Of a text of one word."""
        ...


class _Words(_Measure):
    """As `WordsPart` lays them out: a margin before the first and after the last, a space after all others."""

    def __init__(self, renderer: Renderer, words: Sequence[str]) -> None:
        self._renderer, self._words = renderer, words
        distinct = list(dict.fromkeys(words))
        widths_D = renderer.engine.lines([self._prepared(word) + " " for word in distinct], is_words=True).widths_N
        self._spaced_W = _of_each(words, distinct, widths_D)
        self.reach_W = np.cumsum(-(-self._spaced_W // renderer.config.pixels_per_patch))

    def num_patches(self, begin: int, end: int) -> int:
        if end == begin + 1:
            return self.num_patches_of(self._words[begin])
        first = self._patches(LEFT_MARGIN + int(self._spaced_W[begin]))
        inner = int(self.reach_W[end - 2] - self.reach_W[begin])
        return first + inner + self._patches(self._width(self._words[end - 1]) + LEFT_MARGIN)

    def num_patches_of(self, word: str) -> int:
        return self._patches(LEFT_MARGIN + self._width(word) + LEFT_MARGIN)

    def _width(self, word: str) -> int:
        return int(self._renderer.engine.lines([self._prepared(word)], is_words=True).widths_N[0])

    def _prepared(self, word: str) -> str:
        return self._renderer.drawer.prepared(word, is_word=True)

    def _patches(self, width: int) -> int:
        return -(-width // self._renderer.config.pixels_per_patch)


class _Bigrams(_Measure):
    """As `BigramsPart` lays them out: no margins, perhaps a patch for each space."""

    def __init__(self, renderer: Renderer, words: Sequence[str]) -> None:
        self._drawer = renderer.drawer
        self._space = space_patches(self._drawer)
        distinct = list(dict.fromkeys(words))
        self.reach_W = np.cumsum(_of_each(words, distinct, bigram_patches(self._drawer, distinct)) + self._space)

    def num_patches(self, begin: int, end: int) -> int:
        before = self.reach_W[begin - 1] if begin else 0
        return int(self.reach_W[end - 1] - before) - self._space

    def num_patches_of(self, word: str) -> int:
        return int(bigram_patches(self._drawer, [word])[0])


def _of_each(words: Sequence[str], distinct: Sequence[str], values_D: NDArray[np.int64]) -> NDArray[np.int64]:
    """(W,) the value of each word's own form."""
    values = dict(zip(distinct, values_D.tolist(), strict=True))
    return np.array([values[word] for word in words], np.int64)
