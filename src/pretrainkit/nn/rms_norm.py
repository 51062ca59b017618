"""Root-mean-square norm: y = x / sqrt(mean(x^2) + epsilon) * scale, without mean subtraction and without bias.

Source: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467; T5 has it as its only norm. The statistic is float32
whatever the activations are; the normalised value gets the type of the activations before it meets the scale.

Dimensions: T tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn


class _RowNorm(torch.autograd.Function):
    """One pass over the data where autograd would make six, for a CPU."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, scale_D: Tensor, epsilon: float) -> Tensor:
        inverse_T1 = _inverse_rms(x_TD, epsilon)
        normal_TD = (x_TD * inverse_T1).to(x_TD.dtype)
        ctx.save_for_backward(normal_TD, inverse_T1, scale_D)
        return normal_TD * scale_D.to(x_TD.dtype)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, Tensor, None]:
        normal_TD, inverse_T1, scale_D = ctx.saved_tensors
        product_TD = grad_TD * normal_TD
        grad_scale_D = product_TD.flatten(0, -2).sum(0, dtype=scale_D.dtype)
        # d normal / d x = (1 - normal normal^T / D) / rms
        along_T1 = (product_TD.to(scale_D.dtype) @ scale_D)[..., None] / -normal_TD.shape[-1]
        inner_TD = torch.addcmul(grad_TD * scale_D, normal_TD, along_T1)
        return inner_TD.mul_(inverse_T1).to(grad_TD.dtype), grad_scale_D, None


def _inverse_rms(x_TD: Tensor, epsilon: float) -> Tensor:
    wide = x_TD if x_TD.dtype == torch.float64 else x_TD.float()
    norm_T1 = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return norm_T1.square_().mul_(1 / x_TD.shape[-1]).add_(epsilon).rsqrt_()


class RMSNorm(nn.Module):
    """Over the last dimension, with a learned scale that starts at 1."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_TD: Tensor) -> Tensor:
        """(..., D) to the same shape and type."""
        if x_TD.device.type == "cpu" and not torch.compiler.is_compiling():
            return _RowNorm.apply(x_TD, self.weight, self.epsilon)
        wide = x_TD if x_TD.dtype == torch.float64 else x_TD.float()
        normal = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)).to(x_TD.dtype)
        return normal * self.weight.to(x_TD.dtype)
