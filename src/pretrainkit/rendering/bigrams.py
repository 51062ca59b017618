"""Rendering by character bigrams, as for the released models of Lotz et al. 2023 (https://arxiv.org/abs/2311.00522) and
PIXEL-M4.

Dimensions: N words, T characters, K pairs of characters, X columns, P pixels per side of a patch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.drawer import Drawer
from pretrainkit.rendering.encoding import Span
from pretrainkit.rendering.parts import Part, is_rtl

_WORD_OR_SPACE = re.compile(r"\S+|\s+")


class Bigram(NamedTuple):
    """Two characters of a word, or its last one alone, or a space."""

    start: int
    """Position of the first character in the text."""
    text: str
    word: int
    """Index of the word; -1 for a space."""


class BigramsPart(Part):
    """Text in which each pair of characters and each word starts a new patch. A wide pair needs several patches.

    The two characters of a pair are shaped separately and drawn side by side, without a margin. Right-to-left text is
    laid out from right to left; in a list of words, each word separately. Pairs that do not fit completely are left
    out.
    """

    def __init__(self, drawer: Drawer, content: str | list[str], column: int) -> None:
        self.geometry, self.content = drawer.geometry, content
        P = self.geometry.patch
        words, text = (word_places(content), " ".join(content)) if isinstance(content, list) else (None, content)
        is_list = words is not None
        self.text = drawer.prepared(text, is_word=is_list)
        self.all_pairs = bigrams(self.text, space_patch=drawer.config.space_patch, words=words)
        max_patches = max(self.geometry.last - column // P * P, 0) // P
        pairs = self.all_pairs[:max_patches]
        # Width of each pair: the sum of its characters' widths.
        widths_T = _letter_widths(drawer, "".join(pair.text for pair in pairs))
        firsts_K = np.cumsum([0, *(len(pair.text) for pair in pairs)])[:-1]
        patches_K = _num_patches(drawer, np.add.reduceat(widths_T, firsts_K) if pairs else widths_T)
        num = int(np.searchsorted(patches_K.cumsum(), max_patches, side="right"))  # pairs that fit completely
        self.shown = pairs[:num]
        is_backward, order = is_rtl(self.text), list(range(num))
        if is_backward:  # list the pairs from left to right; words of a list keep their order
            runs = groupby(order, key=lambda index: self.shown[index].word if is_list else 0)
            order = [index for _, run in runs for index in reversed(list(run))]
        self.pairs = [self.shown[index] for index in order]
        self.patches_K = patches_K[order]
        self.begin = column // P * P
        self.starts_K = self.begin + (self.patches_K.cumsum() - self.patches_K) * P
        self.end = self.begin + max(int(self.patches_K.sum()), 1) * P
        if num < len(self.all_pairs) or not max_patches:
            self.end = min(self.end, self.geometry.last)
        drawn = [pair.text[::-1] if is_backward else pair.text for pair in self.pairs]
        self.lines = drawer.lines(list("".join(drawn)) or [""], is_words=True)
        columns: list[int] = []
        for pair, start in zip(self.pairs, self.starts_K.tolist(), strict=True):
            # The second character, if any, follows the first. `len(columns)` is the index of the first one's width.
            columns += [start, start + int(self.lines.widths_N[len(columns)])][: len(pair.text)]
        self.columns_N = np.array(columns or [self.begin])
        if is_list:
            # Iterate from the right, so that the leftmost pair of each word overwrites the others.
            firsts = {pair.word: int(start) for pair, start in reversed(list(zip(self.pairs, self.starts_K)))}
            self.word_starts = (*(firsts[word] // P for word in sorted(firsts) if word >= 0), self.end // P)

    def spans(self) -> list[Span]:
        spans: list[Span] = []
        for pair, num_patches in zip(self.pairs, self.patches_K.tolist(), strict=True):
            spans += [(pair.start, pair.start + len(pair.text))] * num_patches
        return spans or [(0, 0)]

    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        num = len(self.shown)
        if num == len(self.all_pairs):
            return None
        following = self.all_pairs[num]
        if isinstance(self.content, str):
            begin = following.start
            if stride:
                begin = self.shown[num - stride].start if stride < num else 0
            return begin, self.text[begin:]
        word = following.word if following.word >= 0 else self.all_pairs[num + 1].word
        return word_places(self.content)[word][0], self.content[word:]


def word_places(words: list[str]) -> list[tuple[int, str]]:
    """Return each word with the position at which it begins when the words are joined by spaces."""
    return list(zip(accumulate((len(word) + 1 for word in words), initial=0), words, strict=False))


def bigrams(text: str, *, space_patch: bool, words: list[tuple[int, str]] | None = None) -> list[Bigram]:
    """Split each word into pairs of characters. A word of odd length ends with a single character.

    Args:
        text: The text. It is split into words at white space unless `words` is given.
        space_patch: Add a space as an item of its own between two words.
        words: Each word with the position at which it begins in the text.
    """
    if words is None:
        words = [(match.start(), match.group()) for match in _WORD_OR_SPACE.finditer(text) if not match[0].isspace()]
    pairs: list[Bigram] = []
    for number, (start, word) in enumerate(words):
        if number and space_patch:
            pairs.append(Bigram(start - 1, " ", -1))
        pairs += [Bigram(start + at, word[at : at + 2], number) for at in range(0, len(word), 2)]
    return pairs


def bigram_patches(drawer: Drawer, words: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of patches of each word, int64 (N,). No word may be empty."""
    lengths_N = np.array([len(word) for word in words], np.int64)
    ends_N = np.cumsum(lengths_N)
    letters = "".join(words)
    # Index of each character in its word: characters with an even index begin a pair.
    place_T = np.arange(len(letters)) - (ends_N - lengths_N).repeat(lengths_N)
    widths_K = np.add.reduceat(_letter_widths(drawer, letters), np.flatnonzero(place_T % 2 == 0))
    pairs_N = (lengths_N + 1) // 2
    return np.add.reduceat(_num_patches(drawer, widths_K), np.cumsum(pairs_N) - pairs_N)


def space_patches(drawer: Drawer) -> int:
    """Return the number of patches of a space between words."""
    return int(_num_patches(drawer, _letter_widths(drawer, " "))[0]) if drawer.config.space_patch else 0


def _letter_widths(drawer: Drawer, text: str) -> NDArray[np.int64]:
    """Return the width of each character, measured alone, in pixels, int64 (T,)."""
    distinct = list(dict.fromkeys(text))
    drawn = [drawer.prepared(letter, is_word=True) for letter in distinct]
    widths = dict(zip(distinct, drawer.engine.lines(drawn, is_words=True).widths_N.tolist(), strict=True))
    return np.array([widths[letter] for letter in text], np.int64)


def _num_patches(drawer: Drawer, widths_K: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of patches of each pair, at least one, int64 (K,)."""
    return np.maximum(-(-widths_K // drawer.geometry.patch), 1)
