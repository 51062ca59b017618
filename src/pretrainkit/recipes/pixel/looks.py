"""Training text that looks otherwise than its renderer draws it: other fonts, sizes and colours. Torch-free.

Dimensions: B rows of a batch, P pixels of a patch's side, X columns, C = 3 colours (absent in greyscale).
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
"""Of a record's key; masks have two others."""


class Look(NamedTuple):
    """Changes of how a row is drawn; None: unchanged, as its renderer says."""

    font: str | None = None
    size: float | None = None


OWN = Look()


class Looks:
    """Looks of rows by `data.augment`. A look follows from the key of its record alone."""

    def __init__(self, config: PixelAugmentConfig) -> None:
        self.config = config
        self._fonts: tuple[str | None, ...] = (None, *config.fonts)
        self._sizes: tuple[float | None, ...] = (None, *config.sizes)
        inks = [(0, 0, 0), *map(parse_color, config.inks)]
        papers = [(255, 255, 255), *map(parse_color, config.papers)]
        has_color = any(len(set(color)) > 1 for color in (*inks, *papers))
        self._tables = [[ramp(ink, paper, rgb=has_color)[::-1] for paper in papers] for ink in inks]
        """By ink and paper: uint8 (256,) or (256, C), a pixel for each grey of what was drawn black on white."""
        self.redraws = bool(config.fonts or config.sizes)
        """Fonts or sizes change, and with them the numbers of patches."""
        self.recolors = bool(config.inks or config.papers)

    @property
    def fingerprint(self) -> str:
        """Hash of all that looks depend on; empty where nothing changes."""
        if not self.redraws and not self.recolors:
            return ""
        fonts = [font_sha256(path) for font in self.config.fonts for path in font_files(font, ())]
        return f"{self.config.model_dump_json(exclude={'fonts'})} {fonts}"

    @property
    def all(self) -> list[Look]:
        """Every way in which a row can be drawn."""
        return [Look(font, size) for font in self._fonts for size in self._sizes]

    def drawn(self, keys: Keys) -> list[Look]:
        """Return the look of each of (B,) rows."""
        fonts_B, sizes_B, _, _ = self._choices(keys)
        return [Look(self._fonts[font], self._sizes[size]) for font, size in zip(fonts_B, sizes_B, strict=True)]

    def colored(self, strips: list[NDArray[np.uint8]], keys: Keys) -> list[NDArray[np.uint8]]:
        """The rows, uint8 (P, X) or (P, X, C), in their colours."""
        _, _, inks_B, papers_B = self._choices(keys)
        return [
            _mapped(strip, self._tables[ink][paper]) for strip, ink, paper in zip(strips, inks_B, papers_B, strict=True)
        ]

    def _choices(self, keys: Keys) -> NDArray[np.int64]:
        """(4, B): numbers of font, size, ink and paper; 0 is a row's own."""
        # Four choices, and whether the row is varied at all: always drawn, so that no setting moves another's draw.
        draws_B5 = uniform(fold(keys, _STREAM), 5)
        counts = np.array([len(self._fonts), len(self._sizes), len(self._tables), len(self._tables[0])])
        chosen_B4 = (draws_B5[:, :4] * counts).astype(np.int64)
        return np.where(draws_B5[:, 4:] < self.config.share, chosen_B4, 0).T


@lru_cache(maxsize=64)
def dressed(renderer: Renderer, look: Look) -> Renderer:
    """Return the renderer that draws so; its own font remains the first to be asked for characters that the other one
    lacks. Raises ConfigError or DataError where the font cannot be used, or the size does not fit the canvas."""
    if look == OWN:
        return renderer
    values = renderer.config.model_dump()
    if look.font is not None:
        values["fallback_fonts"] = (renderer.config.font_file, *renderer.config.fallback_fonts)
        values["font_file"], values["font_index"] = look.font, 0
    if look.size is not None:
        values["font_size"] = look.size
    return Renderer(validated(values, Path("data.augment", "font"))).opened()


def _mapped(strip: NDArray[np.uint8], table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A grey strip through a table of pixels; of a coloured one each colour through its own."""
    if strip.ndim == 2 or table.ndim == 1:
        return table[strip]
    return np.stack([table[strip[..., color], color] for color in range(3)], axis=-1)
