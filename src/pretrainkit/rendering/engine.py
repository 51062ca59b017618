"""The interface of what draws text.

Dimensions: N texts, T characters of one text, X columns, P rows of a canvas, C = 3 colours (absent in greyscale).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Lines(Protocol):
    """Texts that have been measured and can be painted."""

    widths_N: NDArray[np.int64]
    """Pixels that each text takes up."""
    missing: list[str]
    """Characters that no font has, in order, perhaps several times. Each is drawn as an empty box."""
    is_color: bool
    """Whether a glyph has colours of its own."""

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
