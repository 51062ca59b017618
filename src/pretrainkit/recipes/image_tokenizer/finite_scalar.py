"""Each number of a latent is rounded to one of a few values; there is no table.

Dimensions: B images, D numbers of a latent, h x w places.
Source: Mentzer et al. 2023, https://arxiv.org/abs/2309.15505, section 3.1.
"""

import numpy as np
import torch
from torch import Tensor

from pretrainkit.nn.autocast import in_float32
from pretrainkit.recipes.image_tokenizer.model_config import FiniteScalarConfig
from pretrainkit.recipes.image_tokenizer.quantizer import Quantized, Quantizer

_MARGIN = 1e-3
"""By which the bounds lie outside of the last values, so that those are reached."""


class FiniteScalar(Quantizer):
    """Ids count in the mixed base of the levels, the first number fastest."""

    def __init__(self, config: FiniteScalarConfig) -> None:
        super().__init__()
        levels = np.array(config.levels)
        self.register_buffer("levels_D", torch.from_numpy(levels), persistent=False)
        self.register_buffer("base_D", torch.from_numpy(np.cumprod([1, *levels[:-1]])), persistent=False)

    levels_D: Tensor
    base_D: Tensor

    def initialise(self) -> None:
        """Nothing is drawn."""

    def forward(self, latents_BDhw: Tensor, keys_B: Tensor | None = None) -> Quantized:
        with in_float32(latents_BDhw):
            latents_BhwD = latents_BDhw.float().permute(0, 2, 3, 1)
            half_D = (self.levels_D - 1) * (1 + _MARGIN) / 2
            offset_D = torch.where(self.levels_D % 2 == 0, 0.5, 0.0)
            bounded_BhwD = torch.tanh(latents_BhwD + (offset_D / half_D).atanh()) * half_D - offset_D
            rounded_BhwD = bounded_BhwD + (bounded_BhwD.round() - bounded_BhwD).detach()
            codes_BhwD = rounded_BhwD / (self.levels_D // 2)
            ids = ((rounded_BhwD.detach().round().long() + self.levels_D // 2) * self.base_D).sum(-1)
        zero_B = latents_BhwD.new_zeros(len(latents_BhwD))
        return Quantized(codes_BhwD.permute(0, 3, 1, 2), ids, zero_B, None)

    def codes_of(self, ids: Tensor) -> Tensor:
        places_BhwD = ids[..., None] // self.base_D % self.levels_D
        return ((places_BhwD - self.levels_D // 2) / (self.levels_D // 2)).permute(0, 3, 1, 2)
