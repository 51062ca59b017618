"""The layout of a text on a canvas, and on further canvases if it is longer.

Dimensions: X columns, P pixels per side of a patch, L patches of a canvas, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.bigrams import BigramsPart
from pretrainkit.rendering.config import LEFT_MARGIN
from pretrainkit.rendering.drawer import Drawer
from pretrainkit.rendering.encoding import Encoding, Span
from pretrainkit.rendering.parts import Part, RunningPart, WordsPart, is_rtl

Text = str | tuple[str, str] | list[str]
"""A running text, a pair of texts, or a list of words that each start a new patch."""
_NO_TEXT = ((0, 0), (-1, -1))


class Page:
    """The layout of a text, a pair of texts or a list of words on a canvas."""

    def __init__(
        self,
        drawer: Drawer,
        text: Text,
        *,
        text_a_max_length: int | None = None,
        rtl: bool | None = None,
    ) -> None:
        self.drawer, self.geometry = drawer, drawer.geometry
        self.text, self.text_a_max_length = text, text_a_max_length
        config, strategy = drawer.config, drawer.config.strategy
        is_original_engine = config.parity and config.engine == "pango" and strategy == "continuous"
        self.is_originals = is_original_engine and isinstance(text, tuple)
        """True for a pair that is drawn as by the original's PangoCairo renderer, which has offsets only for pairs."""
        self.parts: list[Part] = []
        column = LEFT_MARGIN
        texts = list(text) if isinstance(text, tuple) else [text]
        if rtl is None:
            is_backward = len(texts) == 2 and all(isinstance(content, str) and is_rtl(content) for content in texts)
        else:
            is_backward = rtl and not (config.parity and len(texts) == 1)
        self.direction = direction = "rtl" if is_backward else None
        for number, content in enumerate(texts):
            if strategy == "bigrams":
                part: Part = BigramsPart(drawer, content, column)
            elif isinstance(content, list):
                part = WordsPart(drawer, content, column, is_backward=direction == "rtl")
            elif strategy == "words":
                part = WordsPart(drawer, content.split() or [""], column, is_backward=direction == "rtl")
            else:
                limit = text_a_max_length if len(texts) == 2 and number == 0 else None
                if self.is_originals and number == 1 and direction == "rtl":
                    limit = self.geometry.num_patches - 1
                part = RunningPart(drawer, content, column, direction=direction, limit=limit)
            self.parts.append(part)
            column = part.end + self.geometry.patch + LEFT_MARGIN
        self.end = self.parts[-1].end

    def continued(self, rest: str | list[str]) -> Page:
        """Return a page with `rest` instead of the last text, laid out in the same direction."""
        assert isinstance(rest, str) or not isinstance(self.text, tuple)
        text: Text = (self.text[0], str(rest)) if isinstance(self.text, tuple) else rest
        return Page(self.drawer, text, text_a_max_length=self.text_a_max_length, rtl=self.direction == "rtl")

    def paint(self) -> NDArray[np.uint8]:
        """Return the columns up to and including the end patch, uint8 (X, P) or (X, P, C)."""
        P, rgb, shades = self.geometry.patch, self.drawer.config.rgb, self.drawer.shades
        is_plain = not rgb or (shades.is_neutral and not any(part.lines.is_color for part in self.parts))
        canvas_XP = np.empty((self.end + P, P, *(() if is_plain else (3,))), np.uint8)
        # Three equal colours are drawn once, and repeated by a stride of 0.
        ink = shades.ramp[255, 0] if is_plain and rgb else shades.ramp[255]
        begin = 0
        for part in self.parts:
            if begin < part.end:
                part.paint(canvas_XP[begin : part.end], begin)
            canvas_XP[part.end : part.end + P] = ink
            begin = min(part.end + P, self.end)
        return np.broadcast_to(canvas_XP[:, :, None], (*canvas_XP.shape, 3)) if is_plain and rgb else canvas_XP

    def encode(self, *, with_offsets: bool = False) -> Encoding:
        """Paint the page and return its encoding."""
        P, L = self.geometry.patch, self.geometry.num_patches
        mapping, text_ids = self.offsets() if with_offsets else (None, None)
        return Encoding(
            columns_XP=self.paint(),
            num_patches=L,
            background=self.drawer.background,
            sep_patches=tuple(part.end // P for part in self.parts),
            word_starts=self.parts[0].word_starts if isinstance(self.text, list) else None,
            offset_mapping=mapping,
            text_ids=text_ids,
        )

    def offsets(self, last: list[Span] | None = None) -> tuple[tuple[Span, ...], tuple[int, ...]]:
        """Return `offset_mapping` and `text_ids` of the encoding. `last` replaces the spans of the last text."""
        L = self.geometry.num_patches
        spans: list[Span] = []
        ids: list[int] = []
        for number, part in enumerate(self.parts):
            if last is not None and part is self.parts[-1]:
                spans_of_part = last
            elif self.is_originals and isinstance(part, RunningPart):
                spans_of_part = part.original_spans()
            else:
                spans_of_part = part.spans()
            spans += [*spans_of_part, (0, 0)]
            ids += [number] * len(spans_of_part) + [-1]
        spans, ids = spans[: L - 1], ids[: L - 1]
        return tuple(spans + [(0, 0)] * (L - len(spans))), tuple(ids + [-1] * (L - len(ids)))


class NoRoomError(ValueError):
    """A further canvas would show only repeated patches and nothing new."""


class Window(NamedTuple):
    """One of the canvases that show a text."""

    begin: int
    """Index in the whole text of the first character that this canvas shows of the last text."""
    page: Page
    spans: list[Span] | None
    """Spans of the last text's patches by the original's rule, counted in the whole text. None: those of the page."""


def windows(page: Page, stride: int) -> Iterator[Window]:
    """Yield the canvases that show all of the page's last text or its words, starting with the page itself.

    Each canvas repeats the first text of a pair, and `stride` patches of the previous canvas (none with words).
    Raises NoRoomError if the stride leaves no room for new text."""
    yield (window := Window(0, page, None))
    if page.is_originals:
        for window in _original_windows(page, stride):
            yield window
    while (rest := window.page.parts[-1].rest(stride)) is not None:
        shift, following = rest
        if shift <= 0:
            raise _no_room(window.page, stride)
        yield (window := Window(window.begin + shift, window.page.continued(following), None))


def _original_windows(page: Page, stride: int) -> Iterator[Window]:
    """Yield the further canvases by the original's rule, which takes their start from the spans of the whole text. It
    computes their number in advance, which can be too few.

    The original can leave out characters between two canvases; here they are shown.
    """
    part = page.parts[-1]
    assert isinstance(part, RunningPart)
    P, last, spans = part.geometry.patch, part.geometry.last, part.original_spans(of_whole=True)
    over = part.column + part.whole_width - last
    free = last - part.column + LEFT_MARGIN - stride * P
    num_windows = -(-over // free) if over > 0 and free > 0 else 0
    num_hidden = -(-over // P)
    """Number of patches of the text that no canvas has shown yet."""
    window = Window(0, page, None)
    while num_windows > 0 and num_hidden > 0:
        index = num_hidden + stride if part.is_backward else len(spans) - num_hidden - stride
        if not 0 <= index < len(spans):
            raise _no_room(window.page, stride)
        entry = spans[index] if spans[index] != (-1, -1) else spans[index - 1]
        shown = window.begin + max((after for _, after in window.page.parts[-1].spans()), default=0)
        begin = min(entry[1] if part.is_backward else entry[0], shown)
        if begin <= window.begin:
            return  # `windows` continues with the page's own rule if text is left
        following = page.continued(part.whole[begin:])
        width = following.parts[-1].whole_width  # type: ignore[attr-defined]  # it is a RunningPart, too
        num_shown = min(LEFT_MARGIN + width, last - part.column) // P
        if part.is_backward:
            num_hidden = max(index - num_shown, 0)
            window_spans = spans[num_hidden : index + 1]
        else:
            window_spans = spans[index : len(spans) - max(num_hidden - num_shown, 0)]
            num_hidden = -(-(part.column + width - last) // P)
        yield (window := Window(begin, following, window_spans))
        num_windows -= 1


def encoded(window: Window) -> Encoding:
    """Return the encoding of a window, with offsets from the beginning of the whole text."""
    page, last_part = window.page, len(window.page.parts) - 1
    mapping, text_ids = page.offsets(last=window.spans)
    if window.spans is None:
        is_counted = [text == last_part and span not in _NO_TEXT for span, text in zip(mapping, text_ids, strict=True)]
        shifts = (window.begin if counted else 0 for counted in is_counted)
        mapping = tuple((first + shift, after + shift) for (first, after), shift in zip(mapping, shifts, strict=True))
    return replace(page.encode(), offset_mapping=mapping, text_ids=text_ids)


def _no_room(page: Page, stride: int) -> NoRoomError:
    num_patches = len(page.parts[-1].spans())
    return NoRoomError(
        f"a stride of {stride} patches leaves no room for new text: a canvas has {num_patches} patches for text\n"
        f"  use a stride below {num_patches}, or a smaller text_a_max_length"
    )
