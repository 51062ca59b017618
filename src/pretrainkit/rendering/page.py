"""One text with the place of everything on its canvas.

Dimensions: X columns, P pixels of a patch's side, L patches of a canvas, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.bigrams import BigramsPart
from pretrainkit.rendering.config import LEFT_MARGIN
from pretrainkit.rendering.drawer import Drawer
from pretrainkit.rendering.encoding import Encoding, Span
from pretrainkit.rendering.parts import Part, RunningPart, WordsPart, is_rtl

Text = str | tuple[str, str] | list[str]
"""A running text, a pair of texts, or words that each begin a patch."""


class Page:
    """One text with the place of everything on its canvas."""

    def __init__(
        self,
        drawer: Drawer,
        text: Text,
        *,
        text_a_max_length: int | None = None,
        rtl: bool | None = None,
    ) -> None:
        self.drawer, self.geometry = drawer, drawer.geometry
        self.text, self.rtl, self.text_a_max_length = text, rtl, text_a_max_length
        config, strategy = drawer.config, drawer.config.strategy
        is_engines = config.parity and config.engine == "pango" and strategy == "continuous"
        self.is_originals = is_engines and isinstance(text, tuple)
        """A pair that is drawn as by the original's PangoCairo renderer, which alone knows offsets."""
        self.parts: list[Part] = []
        column = LEFT_MARGIN
        texts = list(text) if isinstance(text, tuple) else [text]
        self.direction = direction = self._direction(texts)
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

    def _direction(self, texts: Sequence[str | list[str]]) -> str | None:
        if self.rtl is not None:
            is_ignored = self.drawer.config.parity and len(texts) == 1
            return "rtl" if self.rtl and not is_ignored else None
        both = len(texts) == 2 and all(isinstance(text, str) and is_rtl(text) for text in texts)
        return "rtl" if both else None

    def continued(self, rest: str | list[str]) -> Page:
        """The canvas with `rest` in place of the last text, laid out in the same direction."""
        assert isinstance(rest, str) or not isinstance(self.text, tuple)
        text: Text = (self.text[0], str(rest)) if isinstance(self.text, tuple) else rest
        return Page(self.drawer, text, text_a_max_length=self.text_a_max_length, rtl=self.direction == "rtl")

    def paint(self) -> NDArray[np.uint8]:
        """uint8 (X, P) or (X, P, C): the columns up to and with the end patch."""
        P, rgb, shades = self.geometry.patch, self.drawer.config.rgb, self.drawer.shades
        is_plain = not rgb or (shades.is_neutral and not any(part.lines.is_color for part in self.parts))
        canvas_XP = np.empty((self.end + P, P, *(() if is_plain else (3,))), np.uint8)
        # Three equal colours are drawn once, and shown three times by a stride of 0.
        ink = shades.ramp[255, 0] if is_plain and rgb else shades.ramp[255]
        begin = 0
        for part in self.parts:
            if begin < part.end:
                part.paint(canvas_XP[begin : part.end], begin)
            canvas_XP[part.end : part.end + P] = ink
            begin = min(part.end + P, self.end)
        return np.broadcast_to(canvas_XP[:, :, None], (*canvas_XP.shape, 3)) if is_plain and rgb else canvas_XP

    def encode(self, *, with_offsets: bool = False) -> Encoding:
        """The picture and what lies where."""
        P, L = self.geometry.patch, self.geometry.num_patches
        words = self.parts[0].word_starts if isinstance(self.text, list) else None
        mapping, text_ids = self.offsets() if with_offsets else (None, None)
        return Encoding(
            columns_XP=self.paint(),
            num_patches=L,
            background=self.drawer.paper,
            sep_patches=tuple(part.end // P for part in self.parts),
            word_starts=words,
            offset_mapping=mapping,
            text_ids=text_ids,
        )

    def offsets(self, last: list[Span] | None = None) -> tuple[tuple[Span, ...], tuple[int, ...]]:
        """`offset_mapping` and `text_ids` of the encoding; `last`: other spans of the last text."""
        L = self.geometry.num_patches
        spans: list[Span] = []
        ids: list[int] = []
        for number, part in enumerate(self.parts):
            if last is not None and part is self.parts[-1]:
                found = last
            elif self.is_originals and isinstance(part, RunningPart):
                found = part.original_spans()
            else:
                found = part.spans()
            spans += [*found, (0, 0)]
            ids += [number] * len(found) + [-1]
        spans, ids = spans[: L - 1], ids[: L - 1]
        return tuple(spans + [(0, 0)] * (L - len(spans))), tuple(ids + [-1] * (L - len(ids)))
