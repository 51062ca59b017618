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
        DataError: It is broken, an array of another shape, or has values that are not numbers.
    """
    if content[: len(_NUMPY)] == _NUMPY:
        found = read_array(content, name)
        if found.ndim != 2:
            raise DataError(f"{name} holds {found.shape}, not a map (H, W)\n  replace the file or leave its sample out")
        require_numbers(found, name)
        return found
    try:
        values = np.asarray(_open(content))
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise _broken(name, error) from error
    return values if values.ndim == 2 else values[..., 0]


def map_size(content: bytes, name: str) -> tuple[int, int]:
    """(height, width) of what `read_map` gives; of an image by its header alone.

    Raises:
        DataError: It is broken, or an array of another shape.
    """
    if content[: len(_NUMPY)] == _NUMPY:
        height, width = read_map(content, name).shape
        return height, width
    try:
        width, height = _open(content).size
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise _broken(name, error) from error
    return height, width


def require_numbers(values: NDArray[Any], name: str) -> None:
    """Refuse NaN, which would turn a whole part, and then a loss, into NaN.

    Raises:
        DataError: There is one.
    """
    if values.dtype.kind == "f" and (num_nan := int(np.isnan(values).sum())):
        raise DataError(
            f"{name} has NaN in {num_nan:,} of {values.size:,} places\n"
            "  write numbers there, such as the largest depth, or leave its sample out"
        )


def _open(content: bytes) -> Any:
    from pretrainkit.images.pillow import require_pillow

    require_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:  # its own text is the address of a buffer
        raise ValueError("of no known image format" if content else "the file is empty") from error


def _broken(name: str, error: Exception) -> DataError:
    return DataError(f"image {name} is broken: {error}\n  replace the file or leave its sample out")


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
