"""Root-mean-square norm: y = x / sqrt(mean(x^2) + epsilon) * scale, without mean subtraction and without bias.

Source: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467; T5 has it as its only norm. The statistic is float32
whatever the activations are; the normalised value gets the type of the activations before it meets the scale.

Dimensions: T tokens, D width.
"""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Over the last dimension, with a learned scale that starts at 1."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_TD: Tensor) -> Tensor:
        """(..., D) to the same shape and type."""
        wide = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return normal.to(x_TD.dtype) * self.weight.to(x_TD.dtype)
