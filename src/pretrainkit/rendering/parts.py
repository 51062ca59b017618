"""Parts of a canvas between black patches: running text or words.

Dimensions: N texts, X columns, P pixels per side of a patch.
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
    """Return True if at least two of the first, the middle and the last character are of a right-to-left script. White
    space, ASCII punctuation and digits are ignored; False if there is nothing else."""
    letters = text.translate(_NEUTRAL)
    if not letters:
        return False
    chosen = letters[0], letters[len(letters) // 2], letters[-1]
    return sum(unicodedata.bidirectional(letter) in ("R", "AL") for letter in chosen) >= 2


class Part(ABC):
    """The content before one black patch."""

    end: int
    """First column of the black patch that follows."""
    lines: Lines
    """Measured texts of this part."""
    columns_N: NDArray[np.int64]
    """First column of each text on the canvas."""
    word_starts: tuple[int, ...] | None = None
    """Index of the leftmost patch of each word, then that of the black patch."""

    def paint(self, canvas_XP: NDArray[np.uint8], begin: int) -> None:
        """Paint the columns from `begin` to `end`."""
        self.lines.paint(canvas_XP, self.columns_N - begin)

    @abstractmethod
    def spans(self) -> list[Span]:
        """Return the span of characters of each patch. Words are counted as if they were joined by spaces."""

    @abstractmethod
    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        """Return the rest for a further canvas: the index of its first character, and the text or words from there on.
        None if everything is shown. The index is 0 or negative if the stride leaves no room for new text."""


class RunningPart(Part):
    """A running text."""

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
                # As in the original, `end` is still that of the whole text, and the direction is detected.
                measure = drawer.engine.lines
                self.text = _original_prefix(self.whole, limit, lambda text: self._num_patches(measure([text])))
                self.lines = measure([self.text])
        elif limit is not None and self.end // P - first > limit:
            self._cut((first + limit) * P)
            self.end = self._end()
        elif self._is_too_wide() and (self.is_backward or is_rtl(self.text)):
            self._cut(self.geometry.last)  # otherwise its beginning, at the right, would be cut off
        elif self._is_too_wide() and not drawer.config.cut_letters:
            self._cut(self.geometry.last)
            self.end = self._end()

    def _is_too_wide(self) -> bool:
        return self.column + int(self.lines.widths_N[0]) + LEFT_MARGIN > self.geometry.last

    def _end(self) -> int:
        return self.geometry.next_patch(self.column + int(self.lines.widths_N[0]) + LEFT_MARGIN)

    def _num_patches(self, lines: Lines) -> int:
        """Return the number of patches from the canvas's left end to the right end of the text."""
        return -(-(self.column + int(lines.widths_N[0])) // self.geometry.patch)

    def _cut(self, end: int) -> None:
        """Keep the longest prefix of the text that, with its margin, ends before the column `end`."""
        self.text = _fitting_prefix(self.whole, end - self.column - LEFT_MARGIN, lambda text: self._measure([text]))
        self.lines = self._measure([self.text])

    def spans(self) -> list[Span]:
        P = self.geometry.patch
        return patch_spans(self.lines.edges(0), self.column, self.end, self.column // P, P)

    def original_spans(self, *, of_whole: bool = False) -> list[Span]:
        """Return spans by the original's rule, including patches beyond the canvas, for the drawn text or, with
        `of_whole`, the whole text."""
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
        if begin == len(self.whole):  # only the margin after the text did not fit
            return None
        if stride:
            begin = spans[-stride][0] if stride < len(spans) else 0
        return begin, self.whole[begin:]


class WordsPart(Part):
    """Words that each start a new patch, laid out from the left. With `is_backward`, they are laid out from the right
    and aligned with the right end of their patches."""

    def __init__(self, drawer: Drawer, words: Sequence[str], column: int, *, is_backward: bool = False) -> None:
        self.geometry, self.is_backward = drawer.geometry, is_backward
        P, last = self.geometry.patch, self.geometry.last
        words = [drawer.prepared(word, is_word=True) for word in words]
        drawn = [*(word + " " for word in words[:-1]), words[-1]]
        max_words = (last - column) // P + 2  # each word needs at least one patch
        self.drawn = drawn[: max(max_words, 1)]
        direction = "rtl" if is_backward else None
        lines = drawer.lines(self.drawn, is_words=True, direction=direction)
        widths_N = lines.widths_N.copy()
        if len(self.drawn) == len(drawn):
            widths_N[-1] += LEFT_MARGIN
        widths_N[0] += column % P  # the margin before the first word is in its first patch
        begin = column // P * P
        ends_N = np.minimum(begin + np.cumsum(-(-widths_N // P) * P), last)
        # The word that reaches the last patch is the last drawn word.
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
            available = last - int(starts_N[-1] + margins_N[-1])
            self.drawn = [*self.drawn[:-1], _fitting_prefix(self.drawn[-1], available, lambda text: measure([text]))]
            lines = measure(self.drawn)
        if is_backward:
            # Mirror the layout between the two ends of the part.
            starts_N, ends_N = begin + self.end - ends_N, begin + self.end - starts_N
            columns_N = ends_N - margins_N - lines.widths_N
        else:
            columns_N = starts_N + margins_N
        self.word_starts = (*(starts_N // P).tolist(), self.end // P)
        self.lines, self.columns_N, self.words = lines, columns_N, words
        self._patches_N = list(zip((starts_N // P).tolist(), (ends_N // P).tolist(), strict=True))
        """First patch of each word, and the patch after its last one."""

    def spans(self) -> list[Span]:
        P = self.geometry.patch
        lengths = list(map(len, self.drawn))
        spans_of_part: list[Span] = []
        for index in sorted(range(len(lengths)), key=self._patches_N.__getitem__):
            first, stop = self._patches_N[index]
            spans = patch_spans(self.lines.edges(index), int(self.columns_N[index]), stop * P, first, P)
            before = sum(lengths[:index])
            spans_of_part += [(start + before, after + before) if after else (0, 0) for start, after in spans]
        return spans_of_part

    def rest(self, stride: int) -> tuple[int, str | list[str]] | None:
        num = len(self.drawn)
        num -= self.is_cut and num > 1
        if num == len(self.words):
            return None
        return sum(map(len, self.drawn[:num])), self.words[num:]


def _fitting_prefix(text: str, available: int, measure: Callable[[str], Lines]) -> str:
    """Return the longest prefix of a text that is at most `available` pixels wide."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(text[:middle]).widths_N[0] <= available else (low, middle - 1)
    return text[:low]


def _original_prefix(text: str, limit: int, num_patches: Callable[[str], int]) -> str:
    """Cut a text as the original does: to the first prefix that its bisection finds with exactly `limit` patches, even
    if a longer prefix also has this number."""
    low, high, middle = 0, len(text), 0
    while low <= high:
        middle = (low + high) // 2
        num = num_patches(text[:middle])
        if num == limit:
            break
        low, high = (middle + 1, high) if num < limit else (low, middle - 1)
    return text[:middle]
