"""Small models and generated pictures of text for the tests of this recipe."""

import numpy as np
import torch
from torch import Tensor

from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import PixelModelConfig, PixelRun
from pretrainkit.recipes.pixel.presets import tiny


def small_model(**settings: object) -> PixelModelConfig:
    """Patches of 4 pixels, at most 16 of them; no dropout."""
    chosen = {
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "intermediate_size": 24,
        "decoder_hidden_size": 12,
        "decoder_num_layers": 2,
        "decoder_num_heads": 3,
        "decoder_intermediate_size": 20,
        "patch_size": 4,
        "max_patches": 16,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return PixelModelConfig(**(chosen | settings))


def small_run(**settings: object) -> PixelRun:
    """A run of `small_model(**settings)`."""
    preset = tiny()
    model = small_model(**settings)
    data = preset.data.model_copy(update={"max_patches": model.max_patches, "min_text_patches": 1})
    return preset.model_copy(update={"model": model, "data": data})


def pictures(
    seed: int, lengths: list[int], *, num_patches: int = 16, patch: int = 4, colors: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """uint8 pixels with white after the end patch, text patches of each row, and bool masks with at least one of them.

    Args:
        lengths: Of each row, the end patch included.
        colors: 3, or 0 for grey.
    """
    rng = np.random.default_rng(seed)
    shape = (len(lengths), patch, num_patches * patch, *([colors] if colors else []))
    pixels = rng.integers(0, 256, shape, np.uint8)
    is_masked = rng.random((len(lengths), num_patches)) < 0.3
    for row, length in enumerate(lengths):
        pixels[row, :, length * patch :] = 255
        pixels[row, :, (length - 1) * patch : length * patch] = 0
        is_masked[row, rng.integers(length)] = True
    return pixels, np.array(lengths, np.int32) - 1, is_masked


def batch_of(seed: int, lengths: list[int], *, pad_to: int = 1, **settings: int) -> dict[str, Tensor]:
    """A packed batch of `pictures`."""
    found = pack(*pictures(seed, lengths, **settings), pad_to=pad_to)
    return {name: torch.from_numpy(array) for name, array in found.items()}
