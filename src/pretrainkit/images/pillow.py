"""Conversions between pixel arrays and Pillow's images, and small pictures as data URIs, for pages that need no other
files. Pillow (extra [vision]) is imported when it is first needed."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import import_optional

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
"""RGB, (height, width, 3), in any memory layout: decoders give pixels, `resize` gives planes of one colour each, seen
through a transposition. May be read-only; no step writes into what it is given."""
Planes = NDArray[np.uint8]
"""RGB, (3, height, width), contiguous. May be read-only."""


def planes_of(image_HW3: Pixels) -> Planes:
    """One plane for each colour; a copy only where memory is laid out otherwise."""
    return np.ascontiguousarray(image_HW3.transpose(2, 0, 1))


def require_pillow(purpose: str = "reading and changing images") -> None:
    """Raises MissingPackageError, with the install line, where Pillow is not installed."""
    import_optional("PIL.Image", "vision", purpose, package="pillow")


def to_pillow(image_HW3: Pixels) -> Image:
    """A copy as Pillow's image of mode RGB."""
    from PIL import Image

    if image_HW3.flags.c_contiguous:
        return Image.fromarray(image_HW3)
    return Image.merge("RGB", grey_images(planes_of(image_HW3)))


def grey_images(image_3HW: Planes) -> list[Image]:
    """Each plane as Pillow's image of mode L, on the same memory."""
    from PIL import Image

    _, height, width = image_3HW.shape
    return [Image.frombuffer("L", (width, height), plane_HW, "raw", "L", 0, 1) for plane_HW in image_3HW]


def thumbnail(image_CHW: NDArray[np.uint8], height: int = 96) -> str:
    """Return uint8 RGB (3, H, W) as a JPEG of at most `height` pixels, in a data URI of some kilobytes. Raises
    MissingPackageError where Pillow is not installed."""
    require_pillow("a picture in the report")
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image_CHW.transpose(1, 2, 0)), "RGB")
    picture.thumbnail((3 * height, height))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
