"""Generated images and files for the tests of this folder."""

import io
from typing import Any

import numpy as np


def smooth_image(width: int, height: int, seed: int = 0) -> np.ndarray:
    """uint8 (height, width, 3) with edges and gradients, which JPEG keeps well."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    image = np.zeros((height, width, 3))
    for _ in range(6):
        speed_x, speed_y, phase = rng.uniform(0, (0.08, 0.08, 6))
        image += np.sin(columns * speed_x + rows * speed_y + phase)[..., None] * rng.uniform(0, 40, 3)
    return np.clip(image + 128, 0, 255).astype(np.uint8)


def noise_image(width: int, height: int, seed: int = 0) -> np.ndarray:
    """uint8 (height, width, 3), every value drawn on its own."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def encoded(image: np.ndarray, format: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    """The content of a file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).convert(mode).save(file, format, **options)
    return file.getvalue()
