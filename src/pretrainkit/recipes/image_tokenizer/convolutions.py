"""What all decoders and encoders of convolutions share.

Dimensions: B images, C channels, H x W places.
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

_MOST_GROUPS = 32


def group_norm(width: int, epsilon: float = 1e-5) -> nn.GroupNorm:
    """Over 32 groups of channels, or as many as divide them."""
    return nn.GroupNorm(math.gcd(_MOST_GROUPS, width), width, epsilon)


class PlaceAttention(nn.Module):
    """x + attention of all places to each other, with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = group_norm(width)
        self.qkv = nn.Conv1d(width, 3 * width, 1)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCP = x_BCHW.flatten(2)
        q_BPC, k_BPC, v_BPC = self.qkv(self.norm(x_BCP)).transpose(1, 2).chunk(3, dim=-1)
        mixed_BPC = F.scaled_dot_product_attention(q_BPC[:, None], k_BPC[:, None], v_BPC[:, None])[:, 0]
        return (x_BCP + self.out(mixed_BPC.transpose(1, 2))).view(x_BCHW.shape)
