"""Paint lines of glyphs for every engine; parse colours.

Dimensions: G glyphs, N texts, X columns, P rows of a canvas, C = 3 colours (absent in greyscale).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError
from pretrainkit.rendering.config import RendererConfig
from pretrainkit.rendering.glyph_atlas import GlyphAtlas

Rgb = tuple[int, int, int]

_GREY_WEIGHTS = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in grey, ITU-R BT.601."""

_NAMES: dict[str, Rgb] = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "gray": (128, 128, 128),
    "grey": (128, 128, 128),
    "silver": (192, 192, 192),
    "red": (255, 0, 0),
    "lime": (0, 255, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "navy": (0, 0, 128),
    "teal": (0, 128, 128),
    "maroon": (128, 0, 0),
    "purple": (128, 0, 128),
    "olive": (128, 128, 0),
    "yellow": (255, 255, 0),
    "cyan": (0, 255, 255),
    "magenta": (255, 0, 255),
    "orange": (255, 165, 0),
    "brown": (165, 42, 42),
    "pink": (255, 192, 203),
}


def parse_color(name: str) -> Rgb:
    """Parse a colour name or #rrggbb to red, green and blue from 0 to 255. Raises ConfigError if it is neither."""
    if name.lower() in _NAMES:
        return _NAMES[name.lower()]
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", name):
        raise ConfigError(f"colour {name!r} is unknown\n  write it as #rrggbb, or as one of: {', '.join(_NAMES)}")
    red, green, blue = bytes.fromhex(name[1:])
    return red, green, blue


def ramp(font: Rgb, background: Rgb, *, rgb: bool) -> NDArray[np.uint8]:
    """Return the pixel for every coverage, uint8 (256,) or (256, 3). For black on white it is 255 - coverage."""
    coverage = np.arange(256)[:, None]
    colors_KC = np.rint(np.array(background) + (np.array(font) - np.array(background)) * coverage / 255)
    if not rgb:
        colors_KC = np.rint(colors_KC @ _GREY_WEIGHTS)
    return colors_KC.astype(np.uint8)


class Shades:
    """Converts coverage to pixels in the colours of a config."""

    def __init__(self, config: RendererConfig) -> None:
        font, background = parse_color(config.font_color), parse_color(config.background_color)
        self.ramp = ramp(font, background, rgb=config.rgb)
        self.is_neutral = not config.rgb or bool((self.ramp == self.ramp[:, :1]).all())
        """True if red, green and blue are equal in all pixels, except for those of colour glyphs."""
        self._is_inverse = (font, background) == ((0, 0, 0), (255, 255, 255))

    def apply(self, coverage_XP: NDArray[np.uint8], canvas_XP: NDArray[np.uint8]) -> None:
        """Write the pixels to `canvas_XP`: (X, P, C), or (X, P) if there is one colour or all colours are equal."""
        if canvas_XP.ndim == 2:
            self._apply(self.ramp if self.ramp.ndim == 1 else self.ramp[:, 0], coverage_XP, canvas_XP)
            return
        for color in range(3):  # a strided pass per colour is far faster than one pass with an inner loop of three
            self._apply(self.ramp[:, color], coverage_XP, canvas_XP[..., color])

    def _apply(self, ramp: NDArray[np.uint8], coverage_XP: NDArray[np.uint8], plane_XP: NDArray[np.uint8]) -> None:
        if self._is_inverse:
            np.subtract(255, coverage_XP, out=plane_XP)
        else:
            plane_XP[:] = ramp.take(coverage_XP)


@dataclass(frozen=True, eq=False)
class Ink:
    """The glyphs with ink of several texts, in drawing order."""

    slots_G: NDArray[np.int32]
    columns_G: NDArray[np.int64]
    """First column of each bitmap, from the left end of its text."""
    layers_G: NDArray[np.int32] | None
    """Layer of each glyph. Overlapping glyphs of a layer are added up; layers are then composed. None: each glyph is
    composed over the previous ones."""
    lengths_N: NDArray[np.int64]
    """Number of glyphs of each text."""
    baselines_N: NDArray[np.int64]
    """Number of rows of the canvas above each text's baseline."""

    def coverage(
        self, atlas: GlyphAtlas, shape_XP: tuple[int, int], columns_N: Sequence[int] | NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return the coverage of the texts, each starting at its column, uint8 (X, P)."""
        columns_G = self.columns_G + self._each(np.asarray(columns_N, np.int64))
        line_XP = np.empty(shape_XP, np.uint8)
        baselines = set(self.baselines_N.tolist())
        if len(baselines) <= 1:
            baseline = baselines.pop() if baselines else 0
            atlas.paint(line_XP, self.slots_G, columns_G, baseline, self.layers_G)
            return line_XP
        line_XP[:] = 0
        baseline_G, part_XP = self._each(self.baselines_N), np.empty_like(line_XP)
        for baseline in baselines:
            is_here_G = baseline_G == baseline
            layers = None if self.layers_G is None else self.layers_G[is_here_G]
            atlas.paint(part_XP, self.slots_G[is_here_G], columns_G[is_here_G], baseline, layers)
            np.maximum(line_XP, part_XP, out=line_XP)  # texts do not overlap
        return line_XP

    def _each(self, values_N: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.broadcast_to(values_N, len(self.slots_G)) if len(values_N) == 1 else values_N.repeat(self.lengths_N)
