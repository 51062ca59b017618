"""Engine that draws text with FreeType alone: one glyph per character, side by side, without shaping.

The pixels are equal to those of `pygame.freetype`, which the original used for all published data: each glyph is hinted
and rendered in 256 levels, advances are rounded to whole pixels, and there is no kerning. Neither PyGame nor SDL is
needed. Each glyph is rasterized only once.

Dimensions: N texts, G characters of all texts, T characters of one text, X columns, P rows of a canvas.
"""

from __future__ import annotations

import ctypes
import re
import threading
import unicodedata
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError, import_optional
from pretrainkit.rendering.config import RendererConfig
from pretrainkit.rendering.fonts import drawn_faces
from pretrainkit.rendering.glyph_atlas import GlyphAtlas
from pretrainkit.rendering.painting import Ink, Shades

_NO_INK = -(1 << 20)
_NUM_CODES = 0x110000
_FILLER = re.compile(r"[\u115f-\u1160\u3164\uffa0]")
"""Hangul fillers: blank letters, whose width is that in the font."""
_IGNORABLE = re.compile(
    r"[\u00ad\u034f\u061c\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    r"\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties 15) without the fillers: soft hyphens, joiners,
direction marks, variation selectors. They are not drawn, although many fonts have glyphs for them."""

MARKS_ADVICE = (
    "which the engine freetype draws beside their letters, not above or below them\n"
    "  compose the text (unicodedata.normalize('NFC', text)), or set engine=pango"
)


def num_marks(config: RendererConfig, texts: Sequence[str]) -> int:
    """Count the combining marks in texts that a renderer with this config draws beside their letters."""
    if config.engine != "freetype" or config.parity:
        return 0
    marks = {character for character in set().union(*texts) if is_mark(character)}
    return sum(text.count(mark) for text in texts for mark in marks)


def is_mark(character: str) -> bool:
    """Return True for a combining mark that is drawn."""
    return unicodedata.category(character)[0] == "M" and not _IGNORABLE.match(character)


class FreeTypeEngine:
    """FreeType with the fonts of one config. Threads may share it."""

    def __init__(self, config: RendererConfig) -> None:
        self.config = config
        self.atlas = GlyphAtlas()
        self.shades = Shades(config)
        self._freetype = _import_freetype()
        self._faces = [self._open(*face) for face in drawn_faces(config)]
        self._slots = np.zeros(_NUM_CODES, np.int32)
        self._advances = np.zeros(256, np.int32)
        self._is_missing = np.zeros(256, bool)
        self._has_missing = False
        self._reports_marks = config.on_missing != "ignore" and not config.parity
        self._lock = threading.Lock()

    def _open(self, path: Path, index: int, scale: float) -> Any:
        config, freetype = self.config, self._freetype
        try:
            face = freetype.Face(str(path), index)
            face.set_char_size(0, round(config.font_size * scale * 64), config.dpi, config.dpi)
        except freetype.FT_Exception as error:
            raise DataError(
                f"font {path} cannot be used: {error}\n  give a scalable .ttf, .otf or .ttc file"
            ) from error
        return face

    def lines(self, texts: Sequence[str], *, is_words: bool = False, direction: str | None = None) -> FreeTypeLines:
        codes_G = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
        slots_G = self._slots.take(codes_G)
        if not slots_G.all():
            with self._lock:
                for code in np.unique(codes_G[slots_G == 0]).tolist():
                    if not self._slots[code]:  # another thread may have loaded it
                        self._load_glyph(code)
            slots_G = self._slots.take(codes_G)
        lengths_N = np.fromiter(map(len, texts), np.int64, len(texts))
        missing = list(map(chr, codes_G[self._is_missing.take(slots_G)].tolist())) if self._has_missing else []
        # The box of a text extends from the leftmost to the rightmost edge of its characters. A character's edges are
        # those of its bitmap, or of its advance if it has no ink.
        advances_G = self._advances.take(slots_G)
        atlas, ends_G = self.atlas, np.cumsum(advances_G, dtype=np.int64)
        pens_G = ends_G - advances_G
        width_G = atlas.width.take(slots_G)
        is_ink_G = width_G > 0
        start_G = pens_G + atlas.left.take(slots_G)
        stop_G = np.where(is_ink_G, start_G + width_G, ends_G)
        top_G = np.where(is_ink_G, atlas.top.take(slots_G), _NO_INK)
        bottom_G = np.where(is_ink_G, atlas.bottom.take(slots_G), -_NO_INK)
        is_text_N = lengths_N > 0
        firsts = (np.cumsum(lengths_N) - lengths_N)[is_text_N]
        left_N, widths_N, top_N, height_N = np.zeros((4, len(lengths_N)), np.int64)
        if len(firsts):
            left_N[is_text_N] = np.minimum.reduceat(start_G, firsts)
            widths_N[is_text_N] = np.maximum.reduceat(stop_G, firsts) - left_N[is_text_N]
            top_N[is_text_N] = np.maximum.reduceat(top_G, firsts)
            height_N[is_text_N] = top_N[is_text_N] - np.minimum.reduceat(bottom_G, firsts)
        left_G = left_N[0] if len(lengths_N) == 1 else np.repeat(left_N, lengths_N)
        ink = Ink(
            slots_G=slots_G[is_ink_G],
            columns_G=(start_G - left_G)[is_ink_G],
            layers_G=None,
            # Differences of the cumulative number of glyphs with ink at the end of each text.
            lengths_N=np.diff(np.cumsum(is_ink_G)[np.cumsum(lengths_N) - 1], prepend=0) if len(slots_G) else lengths_N,
            baselines_N=_baselines(self.config, top_N, height_N, is_words=is_words),
        )
        return FreeTypeLines(
            engine=self,
            ink=ink,
            pens_G=pens_G - left_G,
            advances_G=advances_G,
            lengths_N=lengths_N,
            widths_N=widths_N,
            missing=missing,
        )

    def versions(self) -> dict[str, str]:
        return {"freetype": ".".join(map(str, self._freetype.version()))}

    def _load_glyph(self, code: int) -> None:
        if self._reports_marks and is_mark(chr(code)):
            self._reports_marks = False
            warnings.warn(f"the text has combining marks such as U+{code:04X}, {MARKS_ADVICE}", stacklevel=5)
        has_glyph = ((face, index) for face in self._faces if (index := face.get_char_index(code)))
        face, index = next(has_glyph, (self._faces[0], 0))
        is_missing = not index
        is_hidden = _IGNORABLE.match(chr(code)) or (is_missing and _FILLER.match(chr(code)))
        if is_hidden and not self.config.parity:
            advance, is_missing = 0, False
            slot = self.atlas.add(np.zeros((0, 0), np.uint8), 0, 0)
        else:
            try:
                face.load_glyph(index, self._freetype.FT_LOAD_DEFAULT)
                face.glyph.render(self._freetype.FT_RENDER_MODE_NORMAL)
            except self._freetype.FT_Exception as error:
                raise DataError(
                    f"the font's glyph of {chr(code)!r} is damaged: {error}\n  download the font again, or give another"
                ) from error
            advance = (face.glyph.advance.x + 32) >> 6  # from 64ths to the nearest whole pixel
            bitmap = _coverage(face.glyph.bitmap, self._freetype)
            slot = self.atlas.add(bitmap, face.glyph.bitmap_left, face.glyph.bitmap_top)
        if slot >= len(self._advances):
            self._advances = np.concatenate([self._advances, np.zeros_like(self._advances)])
            self._is_missing = np.concatenate([self._is_missing, np.zeros_like(self._is_missing)])
        self._advances[slot], self._is_missing[slot] = advance, is_missing
        self._has_missing |= is_missing
        self._slots[code] = slot


@dataclass(eq=False)
class FreeTypeLines:
    """Measured texts."""

    engine: FreeTypeEngine
    ink: Ink
    """Glyphs with ink. Their columns count from the left edge of each text's box."""
    pens_G: NDArray[np.int64]
    """Column at which each character begins, also from the left edge of the box."""
    advances_G: NDArray[np.int32]
    lengths_N: NDArray[np.int64]
    """Number of characters of each text."""
    widths_N: NDArray[np.int64]
    missing: list[str]
    is_color: bool = False

    def paint(self, canvas_XP: NDArray[np.uint8], columns_N: Sequence[int] | NDArray[np.int64]) -> None:
        coverage_XP = self.ink.coverage(self.engine.atlas, canvas_XP.shape[:2], columns_N)
        self.engine.shades.apply(coverage_XP, canvas_XP)

    def edges(self, index: int) -> NDArray[np.float64]:
        end = int(self.lengths_N[: index + 1].sum())
        chosen = slice(end - int(self.lengths_N[index]), end)
        begin_T = self.pens_G[chosen]
        return np.stack([begin_T, begin_T + self.advances_G[chosen]], axis=1).astype(np.float64)


def _baselines(
    config: RendererConfig, top_N: NDArray[np.int64], height_N: NDArray[np.int64], *, is_words: bool
) -> NDArray[np.int64]:
    """Return the row of each text's baseline. With `parity`, running text is centred by its ink, and words have one
    baseline."""
    P = config.pixels_per_patch
    has_ink_N = height_N > 0
    if config.parity and not is_words:
        return np.where(has_ink_N, P // 2 - height_N // 2 + top_N, 0)
    middle = config.pad_size + P / 2
    if not config.parity:
        return np.full(len(top_N), int(middle))
    return np.where(has_ink_N, np.trunc(middle - top_N).astype(np.int64) + top_N, int(middle))


def _coverage(bitmap: Any, freetype: Any) -> NDArray[np.uint8]:
    """Convert a FreeType bitmap, which has a byte or a bit per pixel, to uint8 (rows, columns)."""
    rows, columns, pitch = bitmap.rows, bitmap.width, bitmap.pitch
    if not rows or not columns:
        return np.zeros((0, 0), np.uint8)
    content = np.array(bitmap.buffer, np.uint8).reshape(rows, abs(pitch))
    if bitmap.pixel_mode == freetype.FT_PIXEL_MODE_MONO:
        return np.unpackbits(content, axis=1)[:, :columns] * np.uint8(255)
    return content[:, :columns]


def _import_freetype() -> Any:
    with suppress(OSError):
        # freetype-py contains a library with the same name as the system's. Cairo would use whichever is loaded first,
        # and Pango's pixels would depend on the order of imports. Loading the system's library first avoids this.
        ctypes.CDLL("libfreetype.so.6")
    return import_optional("freetype", "rendering", "rendering text with FreeType", package="freetype-py")
