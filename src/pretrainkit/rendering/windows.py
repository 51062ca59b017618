"""Texts longer than a canvas: further canvases that go on where the one before was full."""

from __future__ import annotations

from dataclasses import replace

from pretrainkit.rendering.encoding import Encoding, Span
from pretrainkit.rendering.page import Page


def overflow(page: Page, encoding: Encoding, stride: int) -> Encoding:
    """The encoding with the canvases that show the rest of the page's last text, or of its words.

    Offsets count from the beginning of the whole text. What comes before the last text is repeated on each canvas.

    Args:
        page: The first canvas.
        encoding: Its encoding, with offsets.
        stride: Patches that each canvas repeats of the one before; 0 with words.

    Raises:
        ValueError: The stride leaves no room for anything new.
    """
    found: list[Encoding] = []
    begun = 0
    while (rest := page.parts[-1].rest(stride)) is not None:
        step, following = rest
        if step <= 0:
            room = len(page.parts[-1].spans())
            raise ValueError(
                f"a stride of {stride} patches leaves nothing new on a canvas with {room} patches for the text\n"
                f"  use a stride below {room}, or a smaller text_a_max_length"
            )
        begun += step
        page = page.continued(following)
        found.append(_shifted(page.encode(with_offsets=True), len(page.parts) - 1, begun))
    return replace(encoding, overflowing_patches=tuple(found))


def _shifted(encoding: Encoding, text: int, begun: int) -> Encoding:
    assert encoding.offset_mapping is not None
    assert encoding.text_ids is not None
    spans: list[Span] = [
        (first + begun, after + begun) if which == text and after else (first, after)
        for (first, after), which in zip(encoding.offset_mapping, encoding.text_ids, strict=True)
    ]
    return replace(encoding, offset_mapping=tuple(spans))
