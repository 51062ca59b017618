"""Base class of renderers, which draws texts with an engine and reports missing characters; interface of engines.

Dimensions: N texts, T characters of one text, X columns, P rows of a canvas, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.rendering.config import Geometry, RendererConfig
from pretrainkit.rendering.painting import Shades

_BLANKS = dict.fromkeys(map(ord, "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029"), " ")

_PICTURES = _BLANKS | {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}


class Lines(Protocol):
    """Measured texts that can be painted."""

    widths_N: NDArray[np.int64]
    """Width of each text in pixels."""
    missing: list[str]
    """Characters that no font has, in order, with repetitions. Each is drawn as an empty box."""
    is_color: bool
    """True if there are colour glyphs, such as emoji."""

    def paint(self, canvas_XP: NDArray[np.uint8], columns_N: Sequence[int] | NDArray[np.int64]) -> None:
        """Draw each text, starting at its column.

        Overwrites all of `canvas_XP`, uint8 (X, P) or (X, P, C), including the background. Pixels outside of the canvas
        are cut off. Texts must not overlap.
        """

    def edges(self, index: int) -> NDArray[np.float64]:
        """Return where each character of a text begins and ends in its reading direction, in pixels from the text's
        left end, float64 (T, 2). All characters of a cluster have the edges of the cluster."""


class Engine(Protocol):
    """Draws text with given fonts. An engine belongs to one process and must be created again after a fork."""

    def lines(self, texts: Sequence[str], *, is_words: bool = False, direction: str | None = None) -> Lines:
        """Measure texts.

        Args:
            texts: Each text becomes a line of its own.
            is_words: The texts are words side by side, which the original places differently from running text.
            direction: Base direction "ltr" or "rtl"; None: detect it from the text. Engines without shaping draw all
                text from left to right.
        """

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that determine the pixels, by name."""


class Drawer:
    """Engine, colours and canvas of a config. After a fork, each process has its own engine."""

    def __init__(self, config: RendererConfig) -> None:
        self.config = config
        self.geometry: Geometry = config.geometry
        self.shades = Shades(config)
        self.background = np.asarray(self.shades.ramp[0])
        """Background pixel, uint8 () or (C,)."""
        self._engine_of_process: tuple[int, Engine] | None = None
        self._warned: set[str] = set()

    @property
    def engine(self) -> Engine:
        """The engine of this process, created on first use. Raises MissingPackageError or DataError if a library or a
        font is missing."""
        # Without a lock, which a fork could leave locked: at worst, two threads create an engine each.
        engine_of_process = self._engine_of_process
        if engine_of_process is None or engine_of_process[0] != os.getpid():
            if self.config.engine == "pango":
                from pretrainkit.rendering.pango_engine import PangoEngine as Kind
            else:
                from pretrainkit.rendering.freetype_engine import FreeTypeEngine as Kind  # type: ignore[assignment]
            engine_of_process = self._engine_of_process = os.getpid(), Kind(self.config)
        return engine_of_process[1]

    def lines(self, texts: Sequence[str], *, is_words: bool = False, direction: str | None = None) -> Lines:
        """Measure texts, and report characters that no font has according to `on_missing`."""
        lines = self.engine.lines(texts, is_words=is_words, direction=direction)
        if not lines.missing or self.config.on_missing == "ignore":
            return lines
        missing = list(dict.fromkeys(lines.missing))
        if self.config.on_missing == "error":
            raise DataError(
                f"no font has {_names(missing)}\n  add a font with them to fallback_fonts, or set on_missing=warn"
            )
        if new := [character for character in missing if character not in self._warned]:
            self._warned.update(new)
            warnings.warn(
                f"no font has {_names(new)}; drawn as an empty box\n  add a font with them to fallback_fonts",
                stacklevel=3,
            )
        return lines

    def prepared(self, text: str, *, is_word: bool) -> str:
        """Replace characters before drawing; the length stays the same. Tabs and line ends become spaces, or all
        control characters become symbols (`show_controls`). With `parity`, only newlines of running text with Pango
        become spaces, as in the original."""
        if self.config.show_controls:
            return text if text.isprintable() else text.translate(_PICTURES)
        if not self.config.parity:
            # Most texts are printable: str.translate takes as long as drawing the line.
            return text if text.isprintable() else text.translate(_BLANKS)
        return text if is_word or self.config.engine == "freetype" else text.replace("\n", " ")


def _names(characters: Sequence[str]) -> str:
    shown = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in characters[:10])
    return f"{shown} and {len(characters) - 10} more" if len(characters) > 10 else shown
