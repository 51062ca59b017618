"""Texts longer than a canvas: further canvases that continue where the one before was full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from pretrainkit.rendering.config import LEFT_MARGIN
from pretrainkit.rendering.encoding import Encoding, Span
from pretrainkit.rendering.page import Page
from pretrainkit.rendering.parts import RunningPart

_NO_TEXT = ((0, 0), (-1, -1))


class NoRoomError(ValueError):
    """A canvas would show nothing but what it repeats."""


class Window(NamedTuple):
    """One of the canvases that show a text."""

    begin: int
    """Place in the whole of the first character of its last text."""
    page: Page
    spans: list[Span] | None
    """What the original says its patches of the last text hold, in the whole text; None: what the page says."""


def windows(page: Page, stride: int) -> Iterator[Window]:
    """The canvases that it takes to show all of the page's last text, or of its words, the page first. What comes
    before the last text is repeated on each.

    Args:
        page: The first canvas.
        stride: Patches that each canvas repeats of the one before; 0 with words.

    Raises:
        NoRoomError: The stride leaves no room for anything new.
    """
    window = Window(0, page, None)
    yield window
    if page.is_originals:
        for window in _original_windows(page, stride):
            yield window
    while (rest := window.page.parts[-1].rest(stride)) is not None:
        step, following = rest
        if step <= 0:
            raise _no_room(window.page, stride)
        window = Window(window.begin + step, window.page.continued(following), None)
        yield window


def _original_windows(page: Page, stride: int) -> Iterator[Window]:
    """The further canvases by the original's rule: it takes their beginnings from the spans of the whole text, and
    makes no more of them than it first computes, which can be too few.

    Where it would leave out characters between two canvases, they are shown.
    """
    part = page.parts[-1]
    assert isinstance(part, RunningPart)
    P, last, spans = part.geometry.patch, part.geometry.last, part.original_spans(of_whole=True)
    over = part.column + part.whole_width - last
    free = last - part.column + LEFT_MARGIN - stride * P
    num_windows = -(-over // free) if over > 0 and free > 0 else 0
    num_hidden = -(-over // P)
    """Patches of the text that no canvas has shown."""
    window = Window(0, page, None)
    while num_windows > 0 and num_hidden > 0:
        index = num_hidden + stride if part.is_backward else len(spans) - num_hidden - stride
        if not 0 <= index < len(spans):
            raise _no_room(window.page, stride)
        entry = spans[index] if spans[index] != (-1, -1) else spans[index - 1]
        shown = window.begin + max((after for _, after in window.page.parts[-1].spans()), default=0)
        begin = min(entry[1] if part.is_backward else entry[0], shown)
        if begin <= window.begin:
            return  # whether anything is left, and has room, the page itself knows
        following = page.continued(part.whole[begin:])
        width = following.parts[-1].whole_width  # type: ignore[attr-defined]  # it is a RunningPart, too
        num_shown = min(LEFT_MARGIN + width, last - part.column) // P
        if part.is_backward:
            num_hidden = max(index - num_shown, 0)
            found = spans[num_hidden : index + 1]
        else:
            found = spans[index : len(spans) - max(num_hidden - num_shown, 0)]
            num_hidden = -(-(part.column + width - last) // P)
        window = Window(begin, following, found)
        yield window
        num_windows -= 1


def encoded(window: Window) -> Encoding:
    """Its encoding, whose offsets count from the beginning of the whole text."""
    page, which = window.page, len(window.page.parts) - 1
    mapping, text_ids = page.offsets(last=window.spans)
    if window.spans is None:
        is_counted = [text == which and span not in _NO_TEXT for span, text in zip(mapping, text_ids, strict=True)]
        shifts = (window.begin if counted else 0 for counted in is_counted)
        mapping = tuple((first + by, after + by) for (first, after), by in zip(mapping, shifts, strict=True))
    return replace(page.encode(), offset_mapping=mapping, text_ids=text_ids)


def _no_room(page: Page, stride: int) -> NoRoomError:
    room = len(page.parts[-1].spans())
    return NoRoomError(
        f"a stride of {stride} patches leaves nothing new on a canvas with {room} patches for the text\n"
        f"  use a stride below {room}, or a smaller text_a_max_length"
    )
