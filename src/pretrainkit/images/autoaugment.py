"""AutoAugment's 25 ImageNet policies as ZeroVL applies them.

Source: Cubuk et al. 2018, https://arxiv.org/abs/1805.09501, table 9. Levels, signs and fills are those of the
implementation that ZeroVL uses: rotations have no random sign, and uncovered corners are grey. Results equal those of
Pillow's ImageOps and ImageEnhance bit for bit. An operation that is a lookup table made from the histogram is combined
with the following operations on values: the histogram after a table can be computed from the one before it.
"""

from __future__ import annotations

import math
import random
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.images.pillow import Pixels, grey_images, planes_of, to_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Stream = np.random.Generator | random.Random
"""A random number generator. Python's gives the same sequence as the original."""
Counts = NDArray[np.int64]
"""Histogram: number of pixels of each of the V = 256 values, (3, V)."""
Table = NDArray[np.uint8]
"""Lookup table: new value for each value, (3, V)."""

GREY = (128, 128, 128)
_VALUES = np.arange(256)
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
    table_3V: Table | None = None
    for operation in operations:
        if operation.name in _FROM_VALUES:
            if table_3V is None:
                image_HW3 = _from_values(image_HW3, operation)
            else:
                table_3V = _from_values(table_3V, operation)
        elif operation.name in _FROM_HISTOGRAM:
            next_3V = _FROM_HISTOGRAM[operation.name](_histogram(image_HW3, table_3V))
            # The second table is indexed by the values of the first.
            table_3V = next_3V if table_3V is None else np.take_along_axis(next_3V, table_3V.astype(np.intp), axis=1)
        else:
            image_HW3 = np.asarray(_change(to_pillow(_look_up(image_HW3, table_3V)), operation))
            table_3V = None
    return _look_up(image_HW3, table_3V)


def _from_values(values: Pixels, operation: Operation) -> Pixels:
    """Apply a value-wise operation to an image or to the values of a table, uint8 of any shape."""
    match operation.name:
        case "posterize":
            return values & np.uint8(256 - 2 ** (8 - int(operation.amount)))
        case "solarize":
            if operation.amount > 255:
                return values  # NumPy 2.0 to 2.2 crash when a strided array is compared with 256
            is_inverted = values >= math.ceil(operation.amount)
            return values ^ np.negative(is_inverted.view(np.uint8))
        case _:
            return ~values


def _histogram(image_HW3: Pixels, before_3V: Table | None) -> Counts:
    """Return the histogram of an image after applying the table `before_3V` to it."""
    counts_3V = np.array([plane.histogram() for plane in grey_images(planes_of(image_HW3))], np.int64)
    if before_3V is None:
        return counts_3V
    after = [np.bincount(row_V, weights=counts_V, minlength=256) for row_V, counts_V in zip(before_3V, counts_3V)]
    return np.array(after, np.int64)


def _stretched(counts_3V: Counts) -> Table:
    """Return a table that maps the smallest value of each colour to 0 and the largest to 255."""
    is_present_3V = counts_3V > 0
    lowest_31 = is_present_3V.argmax(axis=1, keepdims=True)
    highest_31 = 255 - is_present_3V[:, ::-1].argmax(axis=1, keepdims=True)
    scale_31 = 255.0 / np.maximum(highest_31 - lowest_31, 1)
    table_3V = np.clip((_VALUES * scale_31 - lowest_31 * scale_31).astype(np.int64), 0, 255)
    return np.where(lowest_31 == highest_31, _VALUES, table_3V).astype(np.uint8)


def _equalized(counts_3V: Counts) -> Table:
    """Return a table that equalizes the histogram: as far as possible, each value gets the same number of pixels."""
    highest_31 = 255 - (counts_3V > 0)[:, ::-1].argmax(axis=1, keepdims=True)
    # Pillow leaves out the largest value that occurs, so that it becomes 255.
    num_others_31 = counts_3V.sum(axis=1, keepdims=True) - np.take_along_axis(counts_3V, highest_31, axis=1)
    step_31 = num_others_31 // 255
    below_3V = step_31 // 2 + counts_3V.cumsum(axis=1) - counts_3V
    table_3V = np.minimum(below_3V // np.maximum(step_31, 1), 255)
    return np.where(step_31 == 0, _VALUES, table_3V).astype(np.uint8)


_FROM_VALUES = ("posterize", "solarize", "invert")
_FROM_HISTOGRAM = {"autocontrast": _stretched, "equalize": _equalized}


def _look_up(image_HW3: Pixels, table_3V: Table | None) -> Pixels:
    if table_3V is None:
        return image_HW3
    image_3HW = planes_of(image_HW3)
    # bytes.translate takes a third of the time of NumPy's indexing.
    planes = [plane_HW.tobytes().translate(row_V.tobytes()) for plane_HW, row_V in zip(image_3HW, table_3V)]
    return np.frombuffer(b"".join(planes), np.uint8).reshape(image_3HW.shape).transpose(1, 2, 0)


def _change(image: Image, operation: Operation) -> Image:
    from PIL import Image, ImageEnhance

    name, amount = operation
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
