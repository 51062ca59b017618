"""FLOPs of training on a pair, for throughput and MFU.

Only matrix products and real tokens count, with 2 FLOPs per multiply-add. Causal attention counts half, and recomputed
activations do not count. Our own towers are counted by formula, those of other libraries in a forward pass on the
device "meta".

Dimensions: B captions, D width, F inner width, S tokens, L layers.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.clip.config import ClipRun, ProjectionConfig, TextTransformerConfig, TowerConfig, VitConfig

if TYPE_CHECKING:
    from torch import nn

_CHANNELS = 3


def transformer_flops(
    config: VitConfig | TextTransformerConfig, num_tokens: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (B,) the forward FLOPs of the blocks for inputs of `num_tokens` (B,) tokens."""
    is_causal = isinstance(config, TextTransformerConfig) and config.causal
    width, inner = config.hidden_size, config.intermediate_size
    # Four products of width x width (queries, keys, values, output) and two of width x inner; 2 per multiply-add.
    per_token, keys_and_values = 8 * width**2 + 4 * width * inner, 4 * width**2
    attention = 4 * width * num_tokens**2 * (0.5 if is_causal else 1)
    block = per_token * num_tokens + attention
    if config.pool != "cls":
        return config.num_layers * block
    # Only the output of one token is used, so the last block needs only keys and values of the others.
    last = keys_and_values * num_tokens + (per_token - keys_and_values) + 4 * width * num_tokens
    return (config.num_layers - 1) * block + last


def vit_flops(config: VitConfig) -> float:
    """Return the forward FLOPs of one image through our own vision transformer in training."""
    num_patches = (config.image_size // config.patch_size) ** 2
    num_kept = max(1, round(num_patches * (1 - config.patch_dropout)))
    embedding = 2 * num_kept * _CHANNELS * config.patch_size**2 * config.hidden_size
    return embedding + float(transformer_flops(config, np.array([num_kept + 1.0]))[0])


def projection_flops(width: int, projection: ProjectionConfig, *, is_text: bool = False) -> float:
    """Return the forward FLOPs of one vector."""
    if projection.kind == "text_mlp" and is_text:
        return 2 * projection.mlp_width(width) * (width + projection.dim)
    second = 2 * projection.dim**2 if projection.kind == "residual" else 0
    return 2 * width * projection.dim + second


def passes(tower: TowerConfig, num_layers: int | None = None) -> float:
    """Return the cost of training in forward passes: 3 for a trainable tower (the backward pass costs two), 1 for a
    frozen tower, and a value in between if only some of the last of `num_layers` blocks are trainable."""
    if not tower.trainable:
        return 1.0
    if tower.num_trainable_layers is None or num_layers is None:
        return 3.0
    return 1 + 2 * min(1.0, tower.num_trainable_layers / num_layers)


class PairFlops:
    """FLOPs of a forward and backward pass over pairs."""

    def __init__(self, config: ClipRun) -> None:
        self._config = config
        self._per_image: dict[tuple[int, int], float] = {}

    def __call__(
        self, image_size: tuple[int, int] | None, num_tokens_B: NDArray[np.int64], *, has_captions: bool = True
    ) -> float:
        """Return the FLOPs for pairs with images of this height and width and captions of `num_tokens_B` tokens,
        including the similarities with all pairs of the step's batch.

        If the batch has cached features (no image size, no captions), nearly all FLOPs are those of the similarities,
        and the projections are not counted.
        """
        config, num_pairs = self._config, len(num_tokens_B)
        lengths_B = np.asarray(num_tokens_B, np.float64)
        if image_size is not None and image_size not in self._per_image:
            self._per_image[image_size] = self._count_image(image_size)
        num_products = 1 if config.objective.loss == "siglip" else 2
        similarities = 3 * 2 * num_products * num_pairs * config.data.batch_size * config.model.projection.dim
        images = 0.0 if image_size is None else num_pairs * self._per_image[image_size]
        return images + (float(self._captions(lengths_B).sum()) if has_captions else 0.0) + similarities

    def _count_image(self, image_size: tuple[int, int]) -> float:
        tower, projection = self._config.model.image, self._config.model.projection
        if isinstance(tower, VitConfig):
            projected = 0 if projection.kind == "text_only" else 3 * projection_flops(tower.hidden_size, projection)
            return passes(tower, tower.num_layers) * vit_flops(tower) + projected
        from pretrainkit.training.forward_flops import fake_zeros, forward_flops

        # Two images, because batch norm fails for a single image with a single pixel.
        return passes(tower) * forward_flops(self._model, image=fake_zeros(2, _CHANNELS, *image_size)) / 2

    def _captions(self, lengths_B: NDArray[np.float64]) -> NDArray[np.float64]:
        tower, projection = self._config.model.text, self._config.model.projection
        if isinstance(tower, TextTransformerConfig):
            if tower.attends_padding:  # it is computed like tokens
                lengths_B = np.full_like(lengths_B, self._config.data.max_length)
            encoded = transformer_flops(tower, lengths_B)
            projected = 3 * projection_flops(tower.hidden_size, projection, is_text=True)
            return passes(tower, tower.num_layers) * encoded + projected
        square, linear, constant = self._caption_polynomial
        return passes(tower) * ((square * lengths_B + linear) * lengths_B + constant)

    @cached_property
    def _caption_polynomial(self) -> tuple[float, float, float]:
        """Coefficients of the forward FLOPs of a caption as a polynomial of its length, highest power first."""
        from pretrainkit.training.forward_flops import text_flops

        return text_flops(self._model, "input_ids")

    @cached_property
    def _model(self) -> nn.Module:
        """The model, with tensors that have shapes but no values."""
        import torch

        from pretrainkit.recipes.clip.model import DualEncoder
        from pretrainkit.training.fake_step import faked

        with torch.device("meta"):
            return faked(DualEncoder(self._config)).requires_grad_(False)
