"""AutoAugment's 25 ImageNet policies as ZeroVL applies them.

Source: Cubuk et al. 2018, https://arxiv.org/abs/1805.09501, table 9; levels, signs and fills are those of the
implementation ZeroVL uses: rotations have no random sign, and uncovered corners are grey. Results are those of Pillow's
ImageOps and ImageEnhance, bit for bit. Operations that map each value on its own are lookup tables; what follows one
another is merged into one table, for the histogram after a table follows from the one before it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.images.pillow import Pixels, from_pillow, grey_images, planes_of, to_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Stream = np.random.Generator | random.Random
"""A source of draws; Python's gives the sequence of the original."""
Counts = NDArray[np.int64]
"""Pixels of each value, (3, 256)."""
Table = NDArray[np.uint8]
"""The new value for each value, (3, 256)."""

GREY = (128, 128, 128)
_VALUES = np.arange(256)
_POSTERIZE_BITS = (8, 8, 7, 7, 6, 6, 5, 5, 4, 4)


class Choice(NamedTuple):
    """One half of a policy."""

    name: str
    probability: float
    level: int
    """0 to 9."""


class Operation(NamedTuple):
    """What is to be done to an image."""

    name: str
    amount: float
    """shear: pixels per pixel. translate: share of the side. rotate: degrees, counter-clockwise. brightness, color,
    contrast, sharpness: factor. posterize: bits. solarize: threshold. Others: unused."""


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
"""The table has five of its rows twice."""

_ENHANCERS = ("brightness", "color", "contrast", "sharpness")
_GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y")
_SIGNED = (*_GEOMETRIC, *_ENHANCERS)
_TABLES = ("posterize", "solarize", "invert", "autocontrast", "equalize")


def draw(stream: Stream) -> tuple[Operation, ...]:
    """The operations for one image: those of a random policy that come about. At most two.

    Drawn in the order of the original: policy, then for each half whether, then its sign if it has one.
    """
    operations = []
    for choice in POLICIES[int(stream.choice(range(len(POLICIES))))]:
        if stream.random() < choice.probability:
            sign = int(stream.choice((-1, 1))) if choice.name in _SIGNED else 1
            operations.append(Operation(choice.name, amount(choice.name, choice.level, sign)))
    return tuple(operations)


def amount(name: str, level: int, sign: int = 1) -> float:
    """What a level from 0 to 9 means for an operation; `sign` is 1 or -1."""
    share = level / 9
    if name in _ENHANCERS:
        return 1 + sign * 0.9 * share
    match name:
        case "shear_x" | "shear_y":
            return sign * 0.3 * share
        case "translate_x" | "translate_y":
            return sign * 150 / 331 * share
        case "rotate":
            return 30 * share
        case "posterize":
            return _POSTERIZE_BITS[level]
        case "solarize":
            return 256 * (1 - share)
        case "autocontrast" | "equalize" | "invert":
            return 0.0
    raise ValueError(f"AutoAugment has no operation {name!r}")


def apply(image_HW3: Pixels, operations: tuple[Operation, ...]) -> Pixels:
    """The image after all operations, of the same size. Nothing random."""
    table: Table | None = None
    for operation in operations:
        if operation.name in _TABLES:
            following = _table(operation, image_HW3, table)
            table = following if table is None else np.take_along_axis(following, table.astype(np.intp), axis=1)
        else:
            image_HW3 = from_pillow(_change(to_pillow(_look_up(image_HW3, table)), operation))
            table = None
    return _look_up(image_HW3, table)


def _look_up(image_HW3: Pixels, table: Table | None) -> Pixels:
    if table is None:
        return image_HW3
    image_3HW = planes_of(image_HW3)
    # bytes.translate takes a third of the time of NumPy's indexing.
    planes = [plane_HW.tobytes().translate(row.tobytes()) for plane_HW, row in zip(image_3HW, table)]
    return np.frombuffer(b"".join(planes), np.uint8).reshape(image_3HW.shape).transpose(1, 2, 0)


def _table(operation: Operation, image_HW3: Pixels, before: Table | None) -> Table:
    """The table of an operation on an image as it is after the table `before`."""
    match operation.name:
        case "posterize":
            row = _VALUES & ~(2 ** (8 - int(operation.amount)) - 1)
        case "solarize":
            row = np.where(operation.amount > _VALUES, _VALUES, 255 - _VALUES)
        case "invert":
            row = 255 - _VALUES
        case "autocontrast":
            return np.stack([_stretched(counts) for counts in _histogram(image_HW3, before)])
        case _:
            return np.stack([_equalized(counts) for counts in _histogram(image_HW3, before)])
    return np.broadcast_to(row.astype(np.uint8), (3, 256))


def _histogram(image_HW3: Pixels, before: Table | None) -> Counts:
    counts = np.array([plane.histogram() for plane in grey_images(planes_of(image_HW3))], np.int64)
    if before is None:
        return counts
    moved = [np.bincount(row, weights=row_counts, minlength=256) for row, row_counts in zip(before, counts)]
    return np.array(moved, np.int64)


def _stretched(counts: Counts) -> Table:
    """One channel's smallest value to 0, its largest to 255."""
    present = counts.nonzero()[0]
    lowest, highest = int(present[0]), int(present[-1])
    if lowest == highest:
        return _VALUES.astype(np.uint8)
    scale = 255.0 / (highest - lowest)
    return np.clip((_VALUES * scale - lowest * scale).astype(np.int64), 0, 255).astype(np.uint8)


def _equalized(counts: Counts) -> Table:
    """Equally many pixels of each value, as far as a table can."""
    present = counts.nonzero()[0]
    # Pillow leaves out the last value that occurs, so that it becomes 255.
    step = (int(counts.sum()) - int(counts[present[-1]])) // 255
    if len(present) == 1 or step == 0:
        return _VALUES.astype(np.uint8)
    below = step // 2 + counts.cumsum() - counts
    return np.minimum(below // step, 255).astype(np.uint8)


def _change(image: Image, operation: Operation) -> Image:
    from PIL import Image, ImageEnhance

    name, amount = operation
    width, height = image.size
    matrix: tuple[float, ...]
    match name:
        case "brightness":
            return ImageEnhance.Brightness(image).enhance(amount)
        case "color":
            return ImageEnhance.Color(image).enhance(amount)
        case "contrast":
            return ImageEnhance.Contrast(image).enhance(amount)
        case "sharpness":
            return ImageEnhance.Sharpness(image).enhance(amount)
        case "rotate":
            return image.rotate(amount, fillcolor=GREY)
        case "shear_x":
            matrix, kernel = (1, amount, 0, 0, 1, 0), Image.Resampling.BICUBIC
        case "shear_y":
            matrix, kernel = (1, 0, 0, amount, 1, 0), Image.Resampling.BICUBIC
        case "translate_x":
            matrix, kernel = (1, 0, amount * width, 0, 1, 0), Image.Resampling.NEAREST
        case "translate_y":
            matrix, kernel = (1, 0, 0, 0, 1, amount * height), Image.Resampling.NEAREST
        case _:
            raise ValueError(f"AutoAugment has no operation {name!r}")
    return image.transform(image.size, Image.Transform.AFFINE, matrix, kernel, fillcolor=GREY)
