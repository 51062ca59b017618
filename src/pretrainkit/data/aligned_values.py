"""Values of one file of an aligned data set: maps with all their bits, arrays, depth without its scale."""

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_NUMPY = b"\x93NUMPY"
_FARTHEST = 10.0
"""Deviations; of the depth of corridors (TartanAir) 0.5 % lies beyond."""


def read_map(content: bytes, name: str) -> NDArray[Any]:
    """(H, W) the first channel of an image with all its bits (of a palette image the numbers), or a stored array.

    Raises:
        DataError: It is broken, or an array of another shape.
    """
    if content[: len(_NUMPY)] == _NUMPY:
        found = read_array(content, name)
        if found.ndim != 2:
            raise DataError(f"{name} holds {found.shape}, not a map (H, W)\n  replace the file or leave its sample out")
        return found
    from pretrainkit.images.pillow import require_pillow

    require_pillow()
    from PIL import Image

    try:
        values = np.asarray(Image.open(io.BytesIO(content)))
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise DataError(f"image {name} is broken: {error}\n  replace the file or leave its sample out") from error
    return values if values.ndim == 2 else values[..., 0]


def read_array(content: bytes, name: str) -> NDArray[Any]:
    """One array that `numpy.save` wrote.

    Raises:
        DataError: It is none.
    """
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{name} cannot be read as an array: {error}\n  write it with numpy.save") from error
    if not isinstance(found, np.ndarray):
        raise DataError(f"{name} holds several arrays\n  write one with numpy.save")
    return found


def standardised(depth_HW: NDArray[np.floating]) -> NDArray[np.float64]:
    """Depth without its scale and offset: mean 0 and deviation 1 of the middle 80 %, at most `_FARTHEST` from 0.

    The original has no such limit. Where the middle is flat, as of small things on a wide ground, all else is then
    thousands of deviations away, and a loss sees nothing but that.
    """
    values = np.sort(depth_HW, axis=None)
    edge = len(values) // 10
    middle = values[edge : len(values) - edge] if len(values) > 2 * edge else values
    mean = middle.mean(dtype=np.float64)
    found = (depth_HW - mean) / math.sqrt(middle.var(dtype=np.float64) + 1e-6)
    return found.clip(-_FARTHEST, _FARTHEST)
