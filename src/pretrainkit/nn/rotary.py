"""Rotary positions (Su et al. 2021, https://arxiv.org/abs/2104.09864), pairing the two halves of a head like GPT-NeoX.

Dimensions: T tokens, H heads, K width of a head, J = K / 2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pretrainkit.dist.compiled import vary


@dataclass(frozen=True, eq=False)
class Rotation:
    """float32 cosines and sines of every token's angles. It is not a tuple, because FSDP2 would cast that to
    bfloat16."""

    cos_TJ: Tensor
    sin_TJ: Tensor


def rotation(positions_T: Tensor, width: int, theta: float) -> Rotation:
    """Compute the angles position / theta^(2j / K) for j < K / 2, from integer positions in the examples and an even
    K."""
    exponents_J = torch.arange(0, width, 2, dtype=torch.float32, device=positions_T.device) / width
    angles_TJ = positions_T[:, None].float() * (1.0 / theta**exponents_J)
    cos_TJ, sin_TJ = angles_TJ.cos(), angles_TJ.sin()
    vary(cos_TJ, sin_TJ)
    return Rotation(cos_TJ, sin_TJ)


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate (T, ..., H, K) by each token's angles. Computed in float32, returned in the dtype of `x`."""
    first, second = x.float().chunk(2, dim=-1)
    # One angle per token and pair of features, the same for all heads.
    shape = (len(x), *(1 for _ in x.shape[1:-1]), -1)
    cos, sin = by.cos_TJ.view(shape), by.sin_TJ.view(shape)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
