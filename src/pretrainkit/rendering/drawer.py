"""A drawer of texts by a config, with what it reports; and the interface of the engines.

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
    """Texts that have been measured and can be painted."""

    widths_N: NDArray[np.int64]
    """Pixels that each text takes up."""
    missing: list[str]
    """Characters that no font has, in order, perhaps several times. Each is drawn as an empty box."""
    is_color: bool
    """True if a glyph has colours of its own."""

    def paint(self, canvas_XP: NDArray[np.uint8], columns_N: Sequence[int] | NDArray[np.int64]) -> None:
        """Draws each text from its column on.

        Writes all of `canvas_XP`, uint8 (X, P) or (X, P, C), background included; what lies outside of it is cut off.
        Texts do not overlap.
        """

    def edges(self, index: int) -> NDArray[np.float64]:
        """(T, 2): pixels from the left end of a text to where each character begins and where it ends, in its direction
        of reading; all characters of a cluster have the cluster's."""


class Engine(Protocol):
    """Draws text with given fonts. Of one process; to be made anew after a fork."""

    def lines(self, texts: Sequence[str], *, is_words: bool = False, direction: str | None = None) -> Lines:
        """Measures texts.

        Args:
            texts: Each becomes a line of its own.
            is_words: They are words beside each other, which the original places otherwise than running text.
            direction: "ltr" or "rtl" as the base direction; None: as the text says. Engines without shaping draw all
                text from left to right.
        """

    def versions(self) -> dict[str, str]:
        """Name to version of the libraries that decide about pixels."""


class Drawer:
    """The engine of a config and of this process, its colours and its canvas. A fork gets an engine of its own."""

    def __init__(self, config: RendererConfig) -> None:
        self.config = config
        self.geometry: Geometry = config.geometry
        self.shades = Shades(config)
        self.background = np.asarray(self.shades.ramp[0])
        """uint8 () or (C,): the pixels where nothing is drawn."""
        self._made: tuple[int, Engine] | None = None
        self._warned: set[str] = set()

    @property
    def engine(self) -> Engine:
        """The engine of this process. No lock, which a fork could leave locked: at worst two threads make one each.
        Raises MissingPackageError or DataError where a library or a font is missing."""
        made = self._made
        if made is None or made[0] != os.getpid():
            if self.config.engine == "pango":
                from pretrainkit.rendering.pango_engine import PangoEngine as Kind
            else:
                from pretrainkit.rendering.freetype_engine import FreeTypeEngine as Kind  # type: ignore[assignment]
            made = self._made = os.getpid(), Kind(self.config)
        return made[1]

    def lines(self, texts: Sequence[str], *, is_words: bool = False, direction: str | None = None) -> Lines:
        """Measures texts, and reports characters that no font has as `on_missing` says."""
        lines = self.engine.lines(texts, is_words=is_words, direction=direction)
        if not lines.missing or self.config.on_missing == "ignore":
            return lines
        missing = list(dict.fromkeys(lines.missing))
        if self.config.on_missing == "error":
            raise DataError(
                f"no font has {_names(missing)}\n  add a font that does to fallback_fonts, or set on_missing=warn"
            )
        if new := [character for character in missing if character not in self._warned]:
            self._warned.update(new)
            warnings.warn(
                f"no font has {_names(new)}; drawn as an empty box\n  add a font that does to fallback_fonts",
                stacklevel=3,
            )
        return lines

    def prepared(self, text: str, *, is_word: bool) -> str:
        """The text as it is drawn, of the same length: a space for each tab and line end, or pictures of all control
        characters. The original draws them, but for newlines of running text with Pango."""
        if self.config.show_controls:
            return text if text.isprintable() else text.translate(_PICTURES)
        if not self.config.parity:
            return text if text.isprintable() else text.translate(_BLANKS)  # which takes as long as drawing the line
        return text if is_word or self.config.engine == "freetype" else text.replace("\n", " ")


def _names(characters: Sequence[str]) -> str:
    shown = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in characters[:10])
    return f"{shown} and {len(characters) - 10} more" if len(characters) > 10 else shown
