"""The stretches of a canvas between black patches: a running text, words, or bigrams.

Dimensions: N texts, X columns, P pixels of a patch's side.
"""

from __future__ import annotations

import string
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.config import LEFT_MARGIN
from pretrainkit.rendering.drawer import Drawer, Lines
from pretrainkit.rendering.encoding import Span
from pretrainkit.rendering.offsets import original_backward_spans, original_spans, patch_spans

_NEUTRAL = str.maketrans("", "", string.whitespace + string.punctuation + string.digits)


def is_rtl(text: str) -> bool:
    """True where at least two of the first, the middle and the last character are of a right-to-left script; white
    space, punctuation and digits of ASCII do not count, and a text of nothing else is False."""
    letters = text.translate(_NEUTRAL)
    if not letters:
        return False
    chosen = letters[0], letters[len(letters) // 2], letters[-1]
    return sum(unicodedata.bidirectional(letter) in ("R", "AL") for letter in chosen) >= 2


class Part(ABC):
    """The content before one black patch."""

    end: int
    """Column of the black patch after it."""
    lines: Lines
    """Its texts."""
    columns_N: NDArray[np.int64]
    """First column of each of them on the canvas."""
    word_starts: tuple[int, ...] | None = None
    """Index of the first (leftmost) patch of each word, then that of the black patch."""

    def paint(self, canvas_XP: NDArray[np.uint8], begin: int) -> None:
        """Write the columns from `begin` to `end`."""
        self.lines.paint(canvas_XP, self.columns_N - begin)

    @abstractmethod
    def spans(self) -> list[Span]:
        """Characters of each patch; of words, counted as if they were joined by spaces."""

    @abstractmethod
    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        """The rest for a further canvas: the place of its first character, and the text or words from there on; None
        where everything was shown. The place is not positive where the stride leaves no room for anything new."""


class RunningPart(Part):
    """A text that runs on."""

    def __init__(
        self, drawer: Drawer, text: str, column: int, *, direction: str | None, limit: int | None = None
    ) -> None:
        self.geometry, self.column, self.columns_N = drawer.geometry, column, np.array([column])
        self.text = self.whole = drawer.prepared(text, is_word=False)
        self.is_backward = direction == "rtl"
        self._measure = partial(drawer.engine.lines, direction=direction)
        self.lines = drawer.lines([self.text], direction=direction)
        self.whole_width = int(self.lines.widths_N[0])
        self.end = self._end()
        P = self.geometry.patch
        first = column // P
        if drawer.config.parity:
            if limit is not None and self._num_patches(self.lines) > limit:
                # The black patch stays where the whole text ends, and the text's own direction counts.
                measure = drawer.engine.lines
                self.text = _original_beginning(self.whole, limit, lambda text: self._num_patches(measure([text])))
                self.lines = measure([self.text])
        elif limit is not None and self.end // P - first > limit:
            self._cut((first + limit) * P)
            self.end = self._end()
        elif self._is_too_wide() and (self.is_backward or is_rtl(self.text)):
            self._cut(self.geometry.last)  # else its beginning, at the right, would be cut off
        elif self._is_too_wide() and not drawer.config.cut_letters:
            self._cut(self.geometry.last)
            self.end = self._end()

    def _is_too_wide(self) -> bool:
        return self.column + int(self.lines.widths_N[0]) + LEFT_MARGIN > self.geometry.last

    def _end(self) -> int:
        return self.geometry.next_patch(self.column + int(self.lines.widths_N[0]) + LEFT_MARGIN)

    def _num_patches(self, lines: Lines) -> int:
        """Patches from the canvas's left end to the right end of the text."""
        return -(-(self.column + int(lines.widths_N[0])) // self.geometry.patch)

    def _cut(self, end: int) -> None:
        """Keeps the longest beginning of the text that, with its margin, ends before the column `end`."""
        self.text = _beginning(self.whole, end - self.column - LEFT_MARGIN, lambda text: self._measure([text]))
        self.lines = self._measure([self.text])

    def spans(self) -> list[Span]:
        P = self.geometry.patch
        return patch_spans(self.lines.edges(0), self.column, self.end, self.column // P, P)

    def original_spans(self, *, of_whole: bool = False) -> list[Span]:
        """The spans by the original's rule, past the canvas, too; of the text that is drawn, or `of_whole` of all."""
        P, last = self.geometry.patch, self.geometry.last
        lines = self._measure([self.whole]) if of_whole else self.lines
        rule = original_backward_spans if self.is_backward else original_spans
        width = self.whole_width + LEFT_MARGIN
        return rule(lines.edges(0).min(axis=1), self.column, width, self.column // P, P, last)

    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        if len(self.text) == len(self.whole) and not self._is_too_wide():
            return None
        spans = self.spans()
        begin = max((after for _, after in spans), default=0)
        if begin == len(self.whole):  # only the white after the text did not fit
            return None
        if stride:
            begin = spans[-stride][0] if stride < len(spans) else 0
        return begin, self.whole[begin:]


class WordsPart(Part):
    """Words that each begin a patch, from the left; or, `is_backward`, from the right, at their right ends."""

    def __init__(self, drawer: Drawer, words: Sequence[str], column: int, *, is_backward: bool = False) -> None:
        self.geometry, self.is_backward = drawer.geometry, is_backward
        P, last = self.geometry.patch, self.geometry.last
        words = [drawer.prepared(word, is_word=True) for word in words]
        drawn = [*(word + " " for word in words[:-1]), words[-1]]
        room = (last - column) // P + 2  # each word takes a patch at least: no more of them need to be measured
        self.drawn = drawn[: max(room, 1)]
        direction = "rtl" if is_backward else None
        lines = drawer.lines(self.drawn, is_words=True, direction=direction)
        widths_N = lines.widths_N.copy()
        if len(self.drawn) == len(drawn):
            widths_N[-1] += LEFT_MARGIN
        widths_N[0] += column % P  # the margin before the first word lies in its first patch
        begin = column // P * P
        ends_N = np.minimum(begin + np.cumsum(-(-widths_N // P) * P), last)
        # The word that reaches the last patch is the last one that is drawn.
        num_words = min(int(np.searchsorted(ends_N, last)) + 1, len(ends_N))
        ends_N = ends_N[:num_words]
        starts_N = np.concatenate([[begin], ends_N[:-1]])
        self.end = int(ends_N[-1])
        if num_words < len(self.drawn):
            self.drawn = self.drawn[:num_words]
            lines = drawer.engine.lines(self.drawn, is_words=True, direction=direction)
        margins_N = np.where(np.arange(num_words) == 0, column % P, 0)
        self.is_cut = bool(starts_N[-1] + margins_N[-1] + lines.widths_N[-1] > last)
        if self.is_cut and not drawer.config.cut_letters:
            measure = partial(drawer.engine.lines, is_words=True, direction=direction)
            room = last - int(starts_N[-1] + margins_N[-1])
            self.drawn = [*self.drawn[:-1], _beginning(self.drawn[-1], room, lambda text: measure([text]))]
            lines = measure(self.drawn)
        if is_backward:
            # Mirrored between the part's two ends.
            starts_N, ends_N = begin + self.end - ends_N, begin + self.end - starts_N
            columns_N = ends_N - margins_N - lines.widths_N
        else:
            columns_N = starts_N + margins_N
        self.word_starts = (*(starts_N // P).tolist(), self.end // P)
        self.lines, self.columns_N, self.words = lines, columns_N, words
        self._patches_N = list(zip((starts_N // P).tolist(), (ends_N // P).tolist(), strict=True))
        """First patch of each word, and the one after its last."""

    def spans(self) -> list[Span]:
        P = self.geometry.patch
        lengths = list(map(len, self.drawn))
        found: list[Span] = []
        for index in sorted(range(len(lengths)), key=self._patches_N.__getitem__):
            first, stop = self._patches_N[index]
            spans = patch_spans(self.lines.edges(index), int(self.columns_N[index]), stop * P, first, P)
            before = sum(lengths[:index])
            found += [(start + before, after + before) if after else (0, 0) for start, after in spans]
        return found

    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        num = len(self.drawn)
        num -= self.is_cut and num > 1
        if num == len(self.words):
            return None
        return sum(map(len, self.drawn[:num])), self.words[num:]


def _beginning(text: str, room: int, measure: Callable[[str], Lines]) -> str:
    """The longest beginning of a text that is at most `room` pixels wide."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(text[:middle]).widths_N[0] <= room else (low, middle - 1)
    return text[:low]


def _original_beginning(text: str, limit: int, num_patches: Callable[[str], int]) -> str:
    """Cut a text as the original does: to the first beginning that its search finds to take up exactly `limit` patches,
    even if a longer one does, too."""
    low, high, middle = 0, len(text), 0
    while low <= high:
        middle = (low + high) // 2
        found = num_patches(text[:middle])
        if found == limit:
            break
        low, high = (middle + 1, high) if found < limit else (low, middle - 1)
    return text[:middle]
