"""The renderer: draws a text, a pair of texts or a list of words on a canvas of one line.

Dimensions: N texts, X columns, P pixels per side of a patch, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.drawer import Drawer
from pretrainkit.rendering.encoding import Encoding
from pretrainkit.rendering.page import Page, Text, encoded, windows


class Renderer(Drawer):
    """Renders texts with one config. Threads and processes may share it: it is pickled as its config, and its engine is
    created on first use and again after a fork."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Renderer, (self.config,)

    def opened(self) -> Renderer:
        """Open fonts and libraries now instead of when the first text is drawn, and return the renderer. Raises
        MissingPackageError or DataError if one is missing or cannot be used."""
        self.engine.versions()
        return self

    def __call__(
        self,
        text: Text,
        *,
        return_offset_mapping: bool = False,
        return_overflowing_patches: bool = False,
        stride: int = 0,
        text_a_max_length: int | None = None,
        rtl: bool | None = None,
    ) -> Encoding:
        """Render a text, a pair of texts or a list of words.

        Args:
            text: A `str`; a tuple of two, drawn with a black patch between them; or a list of words, each of which
                starts a new patch.
            return_offset_mapping: Fill `offset_mapping` and `text_ids`.
            return_overflowing_patches: Fill `overflowing_patches` with the text that did not fit, on as many canvases
                as necessary. The first text of a pair is repeated on each. Requires `return_offset_mapping`.
            stride: Number of patches that a canvas repeats of the previous one.
            text_a_max_length: Maximum number of patches of the first text of a pair. The rest of it is cut off.
            rtl: Base direction from right to left. Words are then laid out from the right, too, each aligned with the
                right end of its patches. None: detect the direction from the text (a pair is right to left only if both
                texts are), and lay words out from the left. With `parity`, this affects only pairs.

        Raises:
            TypeError: The text has another type.
            ValueError: A tuple of another length, an empty list, or overflow without offsets.
            DataError: A character that no font has, if `on_missing` is "error".
        """
        _check(text)
        if return_overflowing_patches and not return_offset_mapping:
            raise ValueError("return_overflowing_patches needs return_offset_mapping\n  set both to True")
        page = Page(self, text, text_a_max_length=text_a_max_length, rtl=rtl)
        encoding = page.encode(with_offsets=return_offset_mapping)
        if not return_overflowing_patches:
            return encoding
        _, *further = windows(page, stride)
        return replace(encoding, overflowing_patches=tuple(map(encoded, further)))

    def columns(self, text: Text) -> NDArray[np.uint8]:
        """Return the columns of the text up to and including its end patch, uint8 (X, P) or (X, P, C). X is a multiple
        of P."""
        _check(text)
        return Page(self, text).paint()

    def width(self, text: str) -> int:
        """Return the width of a running text in pixels."""
        return int(self.widths([text])[0])

    def widths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the width of each text as running text, in pixels, int64 (N,)."""
        return self.engine.lines([self.prepared(text, is_word=False) for text in texts]).widths_N

    def num_text_patches(self, text: Text) -> int:
        """Return the number of patches before the end patch, without drawing."""
        _check(text)
        return Page(self, text).end // self.config.pixels_per_patch

    def missing(self, text: str) -> list[str]:
        """Return the distinct characters of the text that no font has, in order."""
        return list(dict.fromkeys(self.engine.lines([self.prepared(text, is_word=False)]).missing))


def _check(text: object) -> None:
    if isinstance(text, str):
        return
    if not isinstance(text, (tuple, list)):
        raise TypeError(f"{type(text).__name__} cannot be rendered\n  give a str, a tuple of two str or a list of str")
    if isinstance(text, tuple) and len(text) != 2:
        raise ValueError(f"a tuple of {len(text)} texts cannot be rendered\n  give a pair: (first, second)")
    if not text:
        raise ValueError("an empty list of words cannot be rendered\n  give at least one word, or a text")
    if wrong := [type(part).__name__ for part in text if not isinstance(part, str)]:
        raise TypeError(f"{type(text).__name__} with {wrong[0]} in it cannot be rendered\n  give only str")
