"""Between pixel arrays and Pillow's images. Pillow (extra [vision]) is imported when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import MissingPackageError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
"""RGB, (height, width, 3). May be read-only: no step writes into the pixels it is given."""


def require_pillow() -> None:
    """Raises MissingPackageError, with the install line, where Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("pillow", "vision", "reading and changing images") from error


def to_pillow(image_HW3: Pixels) -> Image:
    """A copy as Pillow's image of mode RGB."""
    require_pillow()
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(image_HW3))


def from_pillow(image: Image) -> Pixels:
    """The pixels of an image of mode RGB, read-only."""
    return np.asarray(image)
