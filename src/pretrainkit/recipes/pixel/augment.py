"""Augmentation of training text: random fonts, sizes and colours. This module does not import torch.

Dimensions: B rows of a batch, P pixels per side of a patch, X columns, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.pixel.config import PixelAugmentConfig
from pretrainkit.rendering.folder import validated
from pretrainkit.rendering.fonts import font_files, font_sha256
from pretrainkit.rendering.painting import parse_color, ramp
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.rng import Keys, fold, uniform

_STREAM = 2
"""Random stream of a record's key. Masks use two other streams."""


class FontChoice(NamedTuple):
    """Font and size with which a row is drawn. None: that of its renderer."""

    font: str | None = None
    size: float | None = None


UNCHANGED = FontChoice()


class Augmenter:
    """Chooses fonts, sizes and colours of rows according to `data.augment`. They depend only on the record's key."""

    def __init__(self, config: PixelAugmentConfig) -> None:
        self.config = config
        self._fonts: tuple[str | None, ...] = (None, *config.fonts)
        self._sizes: tuple[float | None, ...] = (None, *config.sizes)
        inks = [(0, 0, 0), *map(parse_color, config.inks)]
        papers = [(255, 255, 255), *map(parse_color, config.papers)]
        has_color = any(len(set(color)) > 1 for color in (*inks, *papers))
        self._tables = [[ramp(ink, paper, rgb=has_color)[::-1] for paper in papers] for ink in inks]
        """Pixel for each grey level of black-on-white text, by ink and paper, uint8 (256,) or (256, C)."""
        self.redraws = bool(config.fonts or config.sizes)
        """True if fonts or sizes vary. Then rows must be drawn again, and their numbers of patches change."""
        self.recolors = bool(config.inks or config.papers)

    @property
    def fingerprint(self) -> str:
        """Description of everything that variations depend on; empty if nothing varies."""
        if not self.redraws and not self.recolors:
            return ""
        fonts = [font_sha256(path) for font in self.config.fonts for path in font_files(font, ())]
        return f"{self.config.model_dump_json(exclude={'fonts'})} {fonts}"

    @property
    def all_font_choices(self) -> list[FontChoice]:
        """All combinations of fonts and sizes."""
        return [FontChoice(font, size) for font in self._fonts for size in self._sizes]

    def font_choices(self, keys: Keys) -> list[FontChoice]:
        """Return font and size of each row, for keys (B,)."""
        fonts_B, sizes_B, _, _ = self._choices(keys)
        return [FontChoice(self._fonts[font], self._sizes[size]) for font, size in zip(fonts_B, sizes_B, strict=True)]

    def recolored(self, strips: list[NDArray[np.uint8]], keys: Keys) -> list[NDArray[np.uint8]]:
        """Return the rows, uint8 (P, X) or (P, X, C), in their random colours."""
        _, _, inks_B, papers_B = self._choices(keys)
        return [
            _mapped(strip, self._tables[ink][paper]) for strip, ink, paper in zip(strips, inks_B, papers_B, strict=True)
        ]

    def _choices(self, keys: Keys) -> NDArray[np.int64]:
        """Draw the indices of font, size, ink and paper, int64 (4, B). Index 0 means unchanged."""
        # Four numbers for the choices, and one that decides if the row is varied. All are always drawn, so that a
        # setting does not change the draws of the others.
        draws_B5 = uniform(fold(keys, _STREAM), 5)
        counts = np.array([len(self._fonts), len(self._sizes), len(self._tables), len(self._tables[0])])
        chosen_B4 = (draws_B5[:, :4] * counts).astype(np.int64)
        return np.where(draws_B5[:, 4:] < self.config.share, chosen_B4, 0).T


@lru_cache(maxsize=64)
def renderer_with(renderer: Renderer, choice: FontChoice) -> Renderer:
    """Return a renderer with another font or size; the original font becomes its first fallback font. Raises
    ConfigError or DataError if the font cannot be used or the size does not fit the canvas."""
    if choice == UNCHANGED:
        return renderer
    values = renderer.config.model_dump()
    if choice.font is not None:
        values["fallback_fonts"] = (renderer.config.font_file, *renderer.config.fallback_fonts)
        values["font_file"], values["font_index"] = choice.font, 0
    if choice.size is not None:
        values["font_size"] = choice.size
    return Renderer(validated(values, Path("data.augment", "font"))).opened()


def _mapped(strip: NDArray[np.uint8], table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Map a strip through a table of pixels; for a coloured strip, each colour channel through its own column."""
    if strip.ndim == 2 or table.ndim == 1:
        return table[strip]
    return np.stack([table[strip[..., color], color] for color in range(3)], axis=-1)
