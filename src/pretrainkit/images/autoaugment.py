"""AutoAugment's 25 ImageNet policies as ZeroVL applies them.

Source: Cubuk et al. 2018, https://arxiv.org/abs/1805.09501, table 9. Levels, signs and fills are those of the
implementation that ZeroVL uses: rotations have no random sign, and uncovered corners are grey.
"""

from __future__ import annotations

import math
import random
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pretrainkit.images.pillow import Pixels, to_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Stream = np.random.Generator | random.Random
"""A random number generator. Python's gives the same sequence as the original."""

GREY = (128, 128, 128)
_POSTERIZE_BITS = (8, 8, 7, 7, 6, 6, 5, 5, 4, 4)


class Choice(NamedTuple):
    """One of the two operations of a policy."""

    name: str
    probability: float
    level: int
    """Strength, 0 to 9."""


class Operation(NamedTuple):
    """An operation to apply to an image."""

    name: str
    amount: float
    """shear: pixels per pixel. translate: share of the width or height. rotate: degrees, counter-clockwise. brightness,
    color, contrast, sharpness: factor. posterize: bits. solarize: threshold. Others: unused."""


_TWENTY = (
    (Choice("posterize", 0.4, 8), Choice("rotate", 0.6, 9)),
    (Choice("solarize", 0.6, 5), Choice("autocontrast", 0.6, 5)),
    (Choice("equalize", 0.8, 8), Choice("equalize", 0.6, 3)),
    (Choice("posterize", 0.6, 7), Choice("posterize", 0.6, 6)),
    (Choice("equalize", 0.4, 7), Choice("solarize", 0.2, 4)),
    (Choice("equalize", 0.4, 4), Choice("rotate", 0.8, 8)),
    (Choice("solarize", 0.6, 3), Choice("equalize", 0.6, 7)),
    (Choice("posterize", 0.8, 5), Choice("equalize", 1.0, 2)),
    (Choice("rotate", 0.2, 3), Choice("solarize", 0.6, 8)),
    (Choice("equalize", 0.6, 8), Choice("posterize", 0.4, 6)),
    (Choice("rotate", 0.8, 8), Choice("color", 0.4, 0)),
    (Choice("rotate", 0.4, 9), Choice("equalize", 0.6, 2)),
    (Choice("equalize", 0.0, 7), Choice("equalize", 0.8, 8)),
    (Choice("invert", 0.6, 4), Choice("equalize", 1.0, 8)),
    (Choice("color", 0.6, 4), Choice("contrast", 1.0, 8)),
    (Choice("rotate", 0.8, 8), Choice("color", 1.0, 2)),
    (Choice("color", 0.8, 8), Choice("solarize", 0.8, 7)),
    (Choice("sharpness", 0.4, 7), Choice("invert", 0.6, 8)),
    (Choice("shear_x", 0.6, 5), Choice("equalize", 1.0, 9)),
    (Choice("color", 0.4, 0), Choice("equalize", 0.6, 3)),
)
POLICIES = (*_TWENTY, _TWENTY[4], _TWENTY[1], _TWENTY[13], _TWENTY[14], _TWENTY[2])
"""All 25 policies; the published table contains five rows twice."""

_ENHANCERS = ("brightness", "color", "contrast", "sharpness")
_GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y")
_SIGNED = (*_GEOMETRIC, *_ENHANCERS)


def draw(stream: Stream) -> tuple[Operation, ...]:
    """Draw a random policy and return the operations that it applies to one image, at most two.

    Random numbers are drawn in the order of the original: the policy, then for each of its two choices whether it is
    applied, and its sign if it has one.
    """
    operations = []
    for choice in POLICIES[_below(stream, len(POLICIES))]:
        if stream.random() < choice.probability:
            sign = (-1, 1)[_below(stream, 2)] if choice.name in _SIGNED else 1
            operations.append(Operation(choice.name, amount(choice.name, choice.level, sign)))
    return tuple(operations)


def _below(stream: Stream, num: int) -> int:
    return int(stream.integers(num)) if isinstance(stream, np.random.Generator) else stream.randrange(num)


@cache
def amount(name: str, level: int, sign: int = 1) -> float:
    """Return the amount of an operation for a level from 0 to 9; `sign` is 1 or -1."""
    share = level / 9
    amounts = {
        **dict.fromkeys(_ENHANCERS, 1 + sign * 0.9 * share),
        **dict.fromkeys(("shear_x", "shear_y"), sign * 0.3 * share),
        **dict.fromkeys(("translate_x", "translate_y"), sign * 150 / 331 * share),
        "rotate": 30 * share,
        "posterize": _POSTERIZE_BITS[level],
        "solarize": 256 * (1 - share),
        **dict.fromkeys(("autocontrast", "equalize", "invert"), 0.0),
    }
    if name not in amounts:
        raise ValueError(f"AutoAugment has no operation {name!r}")
    return amounts[name]


def apply(image_HW3: Pixels, operations: tuple[Operation, ...]) -> Pixels:
    """Apply all operations in order, and return an image of the same size."""
    if not operations:
        return image_HW3
    image = to_pillow(image_HW3)
    for operation in operations:
        image = _change(image, operation)
    return np.asarray(image)


def _change(image: Image, operation: Operation) -> Image:
    from PIL import Image, ImageEnhance, ImageOps

    name, amount = operation
    if name == "posterize":
        return ImageOps.posterize(image, int(amount))
    if name == "solarize":
        return ImageOps.solarize(image, math.ceil(amount))
    if name in ("autocontrast", "equalize", "invert"):
        return getattr(ImageOps, name)(image)
    if name in _ENHANCERS:
        return getattr(ImageEnhance, name.capitalize())(image).enhance(amount)
    if name == "rotate":
        return image.rotate(amount, fillcolor=GREY)
    # A pixel at (x, y) comes from column a x + b y + c and row d x + e y + f.
    matrices: dict[str, tuple[float, ...]] = {
        "shear_x": (1, amount, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, amount, 1, 0),
        "translate_x": (1, 0, amount * image.width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, amount * image.height),
    }
    if name not in matrices:
        raise ValueError(f"AutoAugment has no operation {name!r}")
    kernel = Image.Resampling.BICUBIC if name.startswith("shear") else Image.Resampling.NEAREST
    return image.transform(image.size, Image.Transform.AFFINE, matrices[name], kernel, fillcolor=GREY)
