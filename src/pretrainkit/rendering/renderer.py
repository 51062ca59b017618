"""Text to pixels: one running text, a pair of texts or a list of words on a canvas of one line.

Dimensions: N texts, X columns, P pixels of a patch's side, L patches of a canvas, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.rendering.config import RendererConfig
from pretrainkit.rendering.encoding import Encoding, Span
from pretrainkit.rendering.engine import Engine, Lines
from pretrainkit.rendering.geometry import LEFT_MARGIN, Geometry
from pretrainkit.rendering.painting import Shades
from pretrainkit.rendering.parts import BigramsPart, Part, RunningPart, WordsPart
from pretrainkit.rendering.rtl import is_rtl
from pretrainkit.rendering.windows import overflow

Text = str | tuple[str, str] | list[str]
"""A running text, a pair of texts, or words that each begin a patch."""


class Renderer:
    """Renders texts by one config. Threads and processes may share it: it is pickled as its config, and what draws is
    made on first use and anew after a fork."""

    def __init__(self, config: RendererConfig) -> None:
        self.config = config
        self.geometry: Geometry = config.geometry
        self.shades = Shades(config)
        self.paper = np.asarray(self.shades.ramp[0])
        self._made: tuple[int, Engine] | None = None
        self._warned: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Renderer, (self.config,)

    @property
    def engine(self) -> Engine:
        """What draws, of this process. No lock, which a fork could leave locked: at worst two threads make one each."""
        made = self._made
        if made is None or made[0] != os.getpid():
            made = self._made = os.getpid(), make_engine(self.config)
        return made[1]

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
        """Renders one text.

        Args:
            text: A `str`; a tuple of two, drawn with a black patch between them; or a list of words, each of which
                begins a patch.
            return_offset_mapping: Fill `offset_mapping` and `text_ids`.
            return_overflowing_patches: Fill `overflowing_patches` with what did not fit, on as many canvases as it
                takes; the first text of a pair is repeated on each. Needs the offset mapping.
            stride: Patches that a canvas repeats of the one before.
            text_a_max_length: Patches the first text of a pair may take up; what is beyond is cut off.
            rtl: Base direction from right to left. None: as the text says, and both texts of a pair must agree.

        Raises:
            TypeError: The text is neither of the three.
            ValueError: A tuple of another length, no words, or overflow without offsets.
            DataError: A character that no font has, if `on_missing` is "error".
        """
        _check(text)
        if return_overflowing_patches and not return_offset_mapping:
            raise ValueError("return_overflowing_patches needs return_offset_mapping\n  set both to True")
        page = Page(self, text, text_a_max_length=text_a_max_length, rtl=rtl)
        encoding = page.encode(with_offsets=return_offset_mapping)
        if not return_overflowing_patches:
            return encoding
        return overflow(page, encoding, stride)

    def columns(self, text: Text) -> NDArray[np.uint8]:
        """uint8 (X, P) or (X, P, C): the columns of the text up to and with its end patch; X is a multiple of P."""
        _check(text)
        return Page(self, text).paint()

    def width(self, text: str) -> int:
        """Pixels of a running text."""
        return int(self.engine.lines([text]).widths_N[0])

    def widths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """(N,): pixels of each text alone, as running text."""
        return self.engine.lines(list(texts)).widths_N

    def num_text_patches(self, text: Text) -> int:
        """Patches before the end patch, without drawing."""
        _check(text)
        return Page(self, text).end // self.config.pixels_per_patch

    def missing(self, text: str) -> list[str]:
        """Distinct characters that no font has, in order."""
        return list(dict.fromkeys(self.engine.lines([text]).missing))

    def lines(self, texts: Sequence[str], *, is_words: bool = False, direction: str | None = None) -> Lines:
        """Measures texts, and reports characters that no font has as `on_missing` says."""
        lines = self.engine.lines(texts, is_words=is_words, direction=direction)
        if self.config.on_missing != "ignore":
            self._report(lines.missing)
        return lines

    def prepared(self, text: str, *, is_word: bool) -> str:
        """The text as it is drawn: with spaces for line ends, unless the original draws them."""
        is_drawn = self.config.parity and (is_word or self.config.engine == "freetype")
        return text if is_drawn or "\n" not in text else text.replace("\n", " ")

    def _report(self, found: Sequence[str]) -> None:
        if not found:
            return
        missing = list(dict.fromkeys(found))
        if missing and self.config.on_missing == "error":
            raise DataError(
                f"no font has {_names(missing)}\n  add a font that does to fallback_fonts, or set on_missing=warn"
            )
        new = [character for character in missing if character not in self._warned]
        if new:
            self._warned.update(new)
            warnings.warn(
                f"no font has {_names(new)}; drawn as an empty box\n  add a font that does to fallback_fonts",
                stacklevel=4,
            )


class Page:
    """One text with the place of everything on its canvas."""

    def __init__(
        self,
        renderer: Renderer,
        text: Text,
        *,
        text_a_max_length: int | None = None,
        rtl: bool | None = None,
    ) -> None:
        self.renderer, self.geometry = renderer, renderer.geometry
        self.text, self.rtl, self.text_a_max_length = text, rtl, text_a_max_length
        strategy = renderer.config.strategy
        self.parts: list[Part] = []
        column = LEFT_MARGIN
        texts = list(text) if isinstance(text, tuple) else [text]
        direction = self._direction(texts)
        for number, content in enumerate(texts):
            if isinstance(content, list):
                part: Part = WordsPart(renderer, content, column)
            elif strategy == "words":
                part = WordsPart(renderer, content.split() or [""], column)
            elif strategy == "bigrams":
                part = BigramsPart(renderer, content, column)
            else:
                limit = text_a_max_length if len(texts) == 2 and number == 0 else None
                part = RunningPart(renderer, content, column, direction=direction, limit=limit)
            self.parts.append(part)
            column = part.end + self.geometry.patch + LEFT_MARGIN
        self.end = self.parts[-1].end

    def _direction(self, texts: Sequence[str | list[str]]) -> str | None:
        if self.rtl is not None:
            return "rtl" if self.rtl else None
        both = len(texts) == 2 and all(isinstance(text, str) and is_rtl(text) for text in texts)
        return "rtl" if both else None

    def continued(self, rest: str | list[str]) -> Page:
        """The canvas with `rest` in place of the last text."""
        assert isinstance(rest, str) or not isinstance(self.text, tuple)
        text: Text = (self.text[0], str(rest)) if isinstance(self.text, tuple) else rest
        return Page(self.renderer, text, text_a_max_length=self.text_a_max_length, rtl=self.rtl)

    def paint(self) -> NDArray[np.uint8]:
        """uint8 (X, P) or (X, P, C): the columns up to and with the end patch."""
        P, rgb, shades = self.geometry.patch, self.renderer.config.rgb, self.renderer.shades
        is_plain = not rgb or (shades.is_neutral and not any(part.lines.is_color for part in self.parts))
        canvas_XP = np.empty((self.end + P, P, *(() if is_plain else (3,))), np.uint8)
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
        mapping, text_ids = self._offsets() if with_offsets else (None, None)
        return Encoding(
            columns_XP=self.paint(),
            num_patches=L,
            background=self.renderer.paper,
            sep_patches=tuple(part.end // P for part in self.parts),
            word_starts=words,
            offset_mapping=mapping,
            text_ids=text_ids,
        )

    def _offsets(self) -> tuple[tuple[Span, ...], tuple[int, ...]]:
        L = self.geometry.num_patches
        spans: list[Span] = []
        ids: list[int] = []
        for number, part in enumerate(self.parts):
            found = part.spans()
            spans += [*found, (0, 0)]
            ids += [number] * len(found) + [-1]
        spans, ids = spans[:L], ids[:L]
        return tuple(spans + [(0, 0)] * (L - len(spans))), tuple(ids + [-1] * (L - len(ids)))


def make_engine(config: RendererConfig) -> Engine:
    """What draws by this config.

    Raises:
        MissingPackageError, DataError: A library or a font is missing.
    """
    if config.engine == "pango":
        from pretrainkit.rendering.pango_engine import PangoEngine

        return PangoEngine(config)
    from pretrainkit.rendering.freetype_engine import FreeTypeEngine

    return FreeTypeEngine(config)


def _check(text: object) -> None:
    if isinstance(text, str):
        return
    if isinstance(text, tuple):
        if len(text) != 2:
            raise ValueError(f"a tuple of {len(text)} texts cannot be rendered\n  give a pair: (first, second)")
        parts: Sequence[object] = text
    elif isinstance(text, list):
        if not text:
            raise ValueError("an empty list of words cannot be rendered\n  give at least one word, or a text")
        parts = text
    else:
        raise TypeError(f"{type(text).__name__} cannot be rendered\n  give a str, a tuple of two str or a list of str")
    wrong = [type(part).__name__ for part in parts if not isinstance(part, str)]
    if wrong:
        raise TypeError(f"{type(text).__name__} with {wrong[0]} in it cannot be rendered\n  give str only")


def _names(characters: Sequence[str]) -> str:
    shown = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in characters[:10])
    return f"{shown} and {len(characters) - 10} more" if len(characters) > 10 else shown
