"""A small data set of aligned images, depth and classes, and settings of the smallest tokenizers."""

from pathlib import Path

import numpy as np
from PIL import Image

from pretrainkit.recipes.image_tokenizer.model_config import (
    CodebookConfig,
    Domain,
    ImageTokenizerModelConfig,
    ViTCoderConfig,
)

CODER = ViTCoderConfig(hidden_size=16, num_layers=1, num_heads=2)
RGB = Domain(name="rgb", kind="colors", num_channels=3)


def model(**changes) -> ImageTokenizerModelConfig:
    """Return a config for images of 16 x 16 pixels, 4 tokens each."""
    values = {
        "domain": RGB,
        "image_size": 16,
        "patch_size": 8,
        "encoder": CODER,
        "quantizer": CodebookConfig(size=8, width=4),
        "decoder": CODER,
    }
    return ImageTokenizerModelConfig(**(values | changes))


def write_images(folder: Path, num: int, seed: int) -> Path:
    """Coloured squares, with depth and classes."""
    rng = np.random.default_rng(seed)
    for index in range(num):
        left, top, kind = (int(value) for value in rng.integers(0, (10, 6, 3)))
        image = np.full((20, 24, 3), rng.integers(0, 255, 3), np.uint8)
        depth, classes = np.full((20, 24), 9000, np.uint16), np.full((20, 24), 255, np.uint8)
        window = slice(top, top + 12), slice(left, left + 12)
        image[window], depth[window], classes[window] = rng.integers(0, 255, 3), 2000 + 500 * kind, kind
        for name, values in (("rgb", image), ("depth", depth), ("semseg", classes)):
            place = folder / name / "0000" / f"{index:05d}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(place)
    return folder
