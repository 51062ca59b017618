"""Image files to arrays. Dimensions: B images, H x W pixels."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrainkit.images.transforms import Compose


def load_batch(files: Sequence[Path], transform: Compose, keys_B: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """uint8 (B, 3, H, W), RGB; everything random about an image is a function of its key.

    Raises:
        ImageError: A file is missing or broken.
    """
    images = [transform.load(file, np.random.default_rng(int(key))) for file, key in zip(files, keys_B, strict=True)]
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))
