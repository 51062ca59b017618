"""Small pictures as data URIs, for pages that are complete in themselves."""

import base64
import io

import numpy as np
from numpy.typing import NDArray

from pretrainkit.images.pillow import require_pillow


def thumbnail(image_CHW: NDArray[np.uint8], height: int = 96) -> str:
    """uint8 RGB (3, H, W) to a JPEG of at most `height` pixels, as a data URI of some kilobytes.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    require_pillow("a picture in the report")
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image_CHW.transpose(1, 2, 0)), "RGB")
    picture.thumbnail((3 * height, height))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
