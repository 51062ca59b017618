"""Colours by name, and coverage to pixels."""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError

Rgb = tuple[int, int, int]

_GREY_WEIGHTS = np.array([0.299, 0.587, 0.114])
"""Of red, green and blue in a grey, ITU-R BT.601."""

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
    """Red, green and blue, 0 to 255, of a name or of #rrggbb.

    Raises:
        ConfigError: Neither.
    """
    known = _NAMES.get(name.lower())
    if known is not None:
        return known
    digits = name.removeprefix("#")
    try:
        value = int(digits, 16)
    except ValueError:
        value = -1
    if value < 0 or len(digits) != 6 or digits == name:
        raise ConfigError(f"colour {name!r} is unknown\n  write it as #rrggbb, or as one of: {', '.join(_NAMES)}")
    return value >> 16, value >> 8 & 255, value & 255


def ramp(font: Rgb, background: Rgb, *, rgb: bool) -> NDArray[np.uint8]:
    """uint8 (256,) or (256, 3): the pixel for every coverage. Black on white is 255 - coverage."""
    coverage = np.arange(256)[:, None]
    colors_KC = np.rint(np.array(background) + (np.array(font) - np.array(background)) * coverage / 255)
    if not rgb:
        colors_KC = np.rint(colors_KC @ _GREY_WEIGHTS)
    return colors_KC.astype(np.uint8)
