"""What quantizers have in common.

Dimensions: B images, D width of latents, h x w places, N = B h w, K codes.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn


class Quantized(NamedTuple):
    """Latents as codes."""

    codes_BDhw: Tensor
    """float32; the gradient goes to the latents as if nothing had happened (or as the quantizer says)."""
    ids: Tensor
    """int64 (B, h, w), or (B, heads, h, w) where there are several heads."""
    distance_B: Tensor
    """float32: the mean squared distance of latents from their codes, by image, for the latents to come nearer."""
    latents_ND: Tensor | None
    """float32, without gradient: what codes are moved to; None where codes do not move."""


class Quantizer(nn.Module, ABC):
    """Latents to ids and codes, and ids to codes."""

    @abstractmethod
    def forward(self, latents_BDhw: Tensor, keys_B: Tensor | None = None) -> Quantized:
        """`keys_B` (int64) decide what is drawn in training, where anything is."""

    @abstractmethod
    def codes_of(self, ids: Tensor) -> Tensor:
        """float32 (B, D, h, w) of ids as in `Quantized`."""
