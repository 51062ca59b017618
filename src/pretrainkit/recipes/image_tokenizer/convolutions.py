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

    def stacked_layers(self) -> dict[str, int]:
        return {"qkv": 3}

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCP = x_BCHW.flatten(2)
        q_BPC, k_BPC, v_BPC = self.qkv(self.norm(x_BCP)).transpose(1, 2).chunk(3, dim=-1)
        mixed_BPC = F.scaled_dot_product_attention(q_BPC[:, None], k_BPC[:, None], v_BPC[:, None])[:, 0]
        return (x_BCP + self.out(mixed_BPC.transpose(1, 2))).view(x_BCHW.shape)


class TimedBlock(nn.Module):
    """x + two convolutions of norm and swish, of which the first is told the time."""

    def __init__(self, width_in: int, width_out: int, time_width: int) -> None:
        super().__init__()
        self.norm_1 = group_norm(width_in)
        self.convolution_1 = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.time = nn.Linear(time_width, width_out)
        self.norm_2 = group_norm(width_out)
        self.convolution_2 = nn.Conv2d(width_out, width_out, 3, padding=1)
        self.skip = nn.Identity() if width_in == width_out else nn.Conv2d(width_in, width_out, 1)

    def forward(self, x_BCHW: Tensor, time_BE: Tensor) -> Tensor:
        h_BCHW = self.convolution_1(F.silu(self.norm_1(x_BCHW)))
        h_BCHW = h_BCHW + self.time(F.silu(time_BE))[:, :, None, None]
        h_BCHW = self.convolution_2(F.silu(self.norm_2(h_BCHW)))
        return self.skip(x_BCHW) + h_BCHW
