"""Conversions between pixel arrays and Pillow's images, and thumbnails as data URIs for self-contained HTML pages.
Pillow (extra [vision]) is imported when it is first needed."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import import_optional

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
"""RGB, (height, width, 3), in any memory layout: decoders return pixels, `resize` returns a transposed view of colour
planes. It may be read-only; no step writes to its input."""
Planes = NDArray[np.uint8]
"""RGB, (3, height, width), contiguous. It may be read-only."""


def planes_of(image_HW3: Pixels) -> Planes:
    """Return one plane per colour. The data are copied only if their memory layout is different."""
    return np.ascontiguousarray(image_HW3.transpose(2, 0, 1))


def require_pillow(purpose: str = "reading and changing images") -> None:
    """Raise MissingPackageError with the install command if Pillow is not installed."""
    import_optional("PIL.Image", "vision", purpose, package="pillow")


def open_with_pillow(content: bytes | bytearray | memoryview) -> Image:
    """Read the header of an image file. Raises ValueError for PostScript, which Pillow would
    run with Ghostscript. Other errors are those of `PIL.Image.open`."""
    from PIL import Image

    opened = Image.open(io.BytesIO(content))
    if opened.format == "EPS":
        raise ValueError("it is PostScript, a program, which is not run; convert it to PNG")
    return opened


def to_pillow(image_HW3: Pixels) -> Image:
    """Copy the pixels to a Pillow image of mode RGB."""
    from PIL import Image

    if image_HW3.flags.c_contiguous:
        return Image.fromarray(image_HW3)
    return Image.merge("RGB", grey_images(planes_of(image_HW3)))


def grey_images(image_3HW: Planes) -> list[Image]:
    """Return each plane as a Pillow image of mode L that shares its memory."""
    from PIL import Image

    _, height, width = image_3HW.shape
    return [Image.frombuffer("L", (width, height), plane_HW, "raw", "L", 0, 1) for plane_HW in image_3HW]


def thumbnail(image_CHW: NDArray[np.uint8], height: int = 96, *, format: Literal["JPEG", "PNG"] = "JPEG") -> str:
    """Encode uint8 RGB (3, H, W) as a picture that is at most `height` pixels high, in a data URI of a few kilobytes.
    Raises MissingPackageError if Pillow is not installed."""
    require_pillow("a picture in the report")
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image_CHW.transpose(1, 2, 0)), "RGB")
    picture.thumbnail((3 * height, height))
    file = io.BytesIO()
    picture.save(file, format, quality=80)
    return f"data:image/{format.lower()};base64," + base64.b64encode(file.getvalue()).decode("ascii")
