"""The stretches of a canvas between black patches: a running text, words, or bigrams.

Dimensions: N texts, X columns, P pixels of a patch's side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.drawer import Drawer
from pretrainkit.rendering.encoding import Span
from pretrainkit.rendering.engine import Lines
from pretrainkit.rendering.geometry import LEFT_MARGIN
from pretrainkit.rendering.offsets import original_spans, patch_spans
from pretrainkit.rendering.rtl import is_rtl


class Part(ABC):
    """What lies before one black patch."""

    end: int
    """Column of the black patch after it."""
    lines: Lines
    """Its texts."""
    word_starts: tuple[int, ...] | None = None
    """Index of the patch in which each word begins, then that of the black patch."""

    @abstractmethod
    def paint(self, canvas_XP: NDArray[np.uint8], begin: int) -> None:
        """Writes the columns from `begin` to `end`."""

    @abstractmethod
    def spans(self) -> list[Span]:
        """Characters of each patch; of words, counted as if they were joined by spaces."""

    @abstractmethod
    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        """What a further canvas would show: the place of its first character, and the text or words from there on.

        None where everything was shown. The place is not positive where the stride leaves no room for anything new.
        """


class RunningPart(Part):
    """A text that runs on."""

    def __init__(
        self, drawer: Drawer, text: str, column: int, *, direction: str | None, limit: int | None = None
    ) -> None:
        self.geometry, self.column = drawer.geometry, column
        self.text = self.whole = drawer.prepared(text, is_word=False)
        self.follows_original = drawer.config.parity and drawer.config.engine == "pango" and not is_rtl(self.text)
        self.lines = drawer.lines([self.text], direction=direction)
        self.end = self._end()
        P = self.geometry.patch
        first = column // P
        if limit is not None and self.end // P - first > limit:
            full = self.end
            self._cut(drawer, direction, (first + limit) * P)
            self.end = full if drawer.config.parity else self._end()
        elif self._is_too_wide() and not drawer.config.parity and (direction == "rtl" or is_rtl(self.text)):
            self._cut(drawer, direction, self.geometry.last)  # else its beginning, at the right, would be cut off

    def _is_too_wide(self) -> bool:
        return self.column + int(self.lines.widths_N[0]) + LEFT_MARGIN > self.geometry.last

    def _end(self) -> int:
        return self.geometry.next_patch(self.column + int(self.lines.widths_N[0]) + LEFT_MARGIN)

    def _cut(self, drawer: Drawer, direction: str | None, end: int) -> None:
        """Keeps the longest beginning of the text that, with its margin, ends before the column `end`."""
        room = end - self.column - LEFT_MARGIN
        low, high = 0, len(self.whole)
        while low < high:
            middle = (low + high + 1) // 2
            fits = drawer.engine.lines([self.whole[:middle]], direction=direction).widths_N[0] <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        self.text = self.whole[:low]
        self.lines = drawer.lines([self.text], direction=direction)

    def paint(self, canvas_XP: NDArray[np.uint8], begin: int) -> None:
        self.lines.paint(canvas_XP, [self.column - begin])

    def spans(self) -> list[Span]:
        P = self.geometry.patch
        first, edges_T2 = self.column // P, self.lines.edges(0)
        if self.follows_original:
            width = int(self.lines.widths_N[0]) + LEFT_MARGIN
            return original_spans(edges_T2[:, 0], self.column, width, first, P, self.geometry.last)
        return patch_spans(edges_T2, self.column, self.end, first, P)

    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        if len(self.text) == len(self.whole) and not self._is_too_wide():
            return None
        spans = self.spans()
        begin = max((after for _, after in spans), default=0)
        if stride:
            begin = spans[-stride][0] if stride < len(spans) else 0
        return begin, self.whole[begin:]


class WordsPart(Part):
    """Words that each begin a patch."""

    def __init__(self, drawer: Drawer, words: Sequence[str], column: int) -> None:
        self.geometry = drawer.geometry
        P, last = self.geometry.patch, self.geometry.last
        words = [drawer.prepared(word, is_word=True) for word in words]
        drawn = [*(word + " " for word in words[:-1]), words[-1]]
        room = (last - column) // P + 2
        self.drawn = drawn[: max(room, 1)]
        lines = drawer.lines(self.drawn, is_words=True)
        widths_N = lines.widths_N.copy()
        if len(self.drawn) == len(drawn):
            widths_N[-1] += LEFT_MARGIN
        widths_N[0] += column % P
        begin = column // P * P
        ends_N = np.minimum(begin + np.cumsum(-(-widths_N // P) * P), last)
        num_words = min(int(np.searchsorted(ends_N, last)) + 1, len(ends_N))
        starts_N = np.concatenate([[begin], ends_N[: num_words - 1]])
        self.word_starts = (*(starts_N // P).tolist(), int(ends_N[num_words - 1]) // P)
        self.end = int(ends_N[num_words - 1])
        starts_N[0] = column
        if num_words < len(self.drawn):
            self.drawn = self.drawn[:num_words]
            lines = drawer.engine.lines(self.drawn, is_words=True)
        self.lines, self.columns_N = lines, starts_N
        self.words = words

    def paint(self, canvas_XP: NDArray[np.uint8], begin: int) -> None:
        self.lines.paint(canvas_XP, self.columns_N - begin)

    def spans(self) -> list[Span]:
        P = self.geometry.patch
        assert self.word_starts is not None
        found: list[Span] = []
        first = 0
        for index, word in enumerate(self.drawn):
            column, end = int(self.columns_N[index]), self.word_starts[index + 1] * P
            spans = patch_spans(self.lines.edges(index), column, end, column // P, P)
            found += [(start + first, stop + first) if stop else (0, 0) for start, stop in spans]
            first += len(word)
        return found

    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        num = len(self.drawn)
        is_cut = int(self.columns_N[-1] + self.lines.widths_N[-1]) > self.geometry.last
        num -= is_cut and num > 1
        if num == len(self.words):
            return None
        return sum(map(len, self.drawn[:num])), self.words[num:]
