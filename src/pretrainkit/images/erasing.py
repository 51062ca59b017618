"""What happens after the uint8 pixels: normalizing, and random boxes overwritten."""

import math

import numpy as np
from numpy.typing import NDArray

from pretrainkit.images.ops import RandomErasing
from pretrainkit.images.pillow import Pixels

Normalized = NDArray[np.float32]
"""(3, height, width)."""

_AREA = (0.02, 1 / 3)
_RATIO = (0.3, 1 / 0.3)
_TRIES = 10


def normalize(image_HW3: Pixels, mean: tuple[float, float, float], deviation: tuple[float, float, float]) -> Normalized:
    """(pixel / 255 - mean) / deviation for each colour, as float32 (3, H, W). What models else do on the device."""
    scale_311 = (1 / (255 * np.array(deviation))).astype(np.float32)[:, None, None]
    shift_311 = (np.array(mean) / np.array(deviation)).astype(np.float32)[:, None, None]
    return image_HW3.transpose(2, 0, 1) * scale_311 - shift_311


def erase(image_3HW: Normalized, op: RandomErasing, rng: np.random.Generator) -> Normalized:
    """With the probability of `op`, a copy with boxes overwritten; else the image itself.

    Boxes together cover 2 to 33 % of the area, with aspect ratios from 0.3 to 3.3, drawn log-uniformly, as in timm. A
    box for which ten draws do not fit into the image is left out.
    """
    if rng.random() >= op.probability:
        return image_3HW
    image_3HW = image_3HW.copy()
    _, height, width = image_3HW.shape
    num_boxes = int(rng.integers(1, op.max_boxes, endpoint=True))
    for _ in range(num_boxes):
        box = _draw_box(height, width, num_boxes, rng)
        if box is not None:
            part = image_3HW[:, *box]
            part[...] = _fill(part.shape, op, rng)
    return image_3HW


def _draw_box(height: int, width: int, num_boxes: int, rng: np.random.Generator) -> tuple[slice, slice] | None:
    for _ in range(_TRIES):
        area = rng.uniform(*_AREA) * height * width / num_boxes
        ratio = math.exp(rng.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        num_rows, num_columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < num_rows < height and 0 < num_columns < width:
            top = int(rng.integers(height - num_rows, endpoint=True))
            left = int(rng.integers(width - num_columns, endpoint=True))
            return slice(top, top + num_rows), slice(left, left + num_columns)
    return None


def _fill(shape: tuple[int, ...], op: RandomErasing, rng: np.random.Generator) -> Normalized:
    match op.fill:
        case "pixel":
            return rng.standard_normal(shape, np.float32)
        case "rand":
            return rng.standard_normal((shape[0], 1, 1), np.float32)
        case "const":
            return np.zeros((1, 1, 1), np.float32)
