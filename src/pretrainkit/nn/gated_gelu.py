"""The feed-forward layer with a gated GELU, (gelu_tanh(x G^T) * x U^T) W^T, for float32 on a CPU.

As single operations it reads and writes the wide activations a dozen times, in fresh memory. Here some rows at a time
pass through all of it while they are in the cache, and what the backward pass needs is made then: the derivative to
either projection, so that backwards two products per element are left.

Dimensions: T tokens, D width, F width inside.
Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.dropout import keep_factors

_SLOPE = math.sqrt(8 / math.pi)
_CUBIC = 0.044715
_BLOCK = 1 << 18
"""Elements that are worked on at a time: with them a block of each of the arrays below stays in the cache."""


class _GatedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor, dropout_rate: float) -> Tensor:
        num_tokens, width = len(x_TD), len(gate_FD)
        inner_TF = x_TD.new_empty(num_tokens, width)
        num_rows = max(1, _BLOCK // width)
        keep = keep_factors(inner_TF.shape, dropout_rate).split(num_rows) if dropout_rate else ()
        slopes = []
        for number, (x, inner) in enumerate(zip(x_TD.split(num_rows), inner_TF.split(num_rows), strict=True)):
            gelu, slope = _gelu(F.linear(x, gate_FD))
            up = F.linear(x, up_FD)
            if keep:
                gelu.mul_(keep[number])
                slope.mul_(keep[number])
            torch.mul(gelu, up, out=inner)
            slopes += [slope.mul_(up), gelu]
        ctx.save_for_backward(x_TD, gate_FD, up_FD, down_DF, inner_TF, *slopes)
        return F.linear(inner_TF, down_DF)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, gate_FD, up_FD, down_DF, inner_TF, *slopes = ctx.saved_tensors
        grad_TD = grad_TD.contiguous()
        width, num_rows = len(gate_FD), len(slopes[0])
        both_TE = x_TD.new_empty(len(x_TD), 2 * width)  # the gradients at both projections, side by side
        parts = zip(grad_TD.split(num_rows), both_TE.split(num_rows), slopes[::2], slopes[1::2], strict=True)
        for grad, both, to_gate, to_up in parts:
            grad_inner = F.linear(grad, down_DF.t())
            torch.mul(grad_inner, to_gate, out=both[:, :width])
            torch.mul(grad_inner, to_up, out=both[:, width:])
        grad_ED = both_TE.t() @ x_TD
        grad_x_TD = F.linear(both_TE, torch.cat((gate_FD, up_FD)).t()) if ctx.needs_input_grad[0] else None
        return grad_x_TD, grad_ED[:width], grad_ED[width:], grad_TD.t() @ inner_TF, None


def _gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    """gelu_tanh(x) and its derivative, in the two arrays that this takes beside x.

    gelu_tanh(x) = x s(v) with a sigmoid s and v = sqrt(8/pi) (x + 0.044715 x^3): see `pretrainkit.nn.activations`. Its
    derivative is s + x s (1 - s) v'.
    """
    square = x * x
    gate = torch.mul(square, _CUBIC * _SLOPE).add_(_SLOPE).mul_(x).sigmoid_()
    gelu = x.mul_(gate)
    slope = square.mul_(3 * _CUBIC * _SLOPE).add_(_SLOPE).mul_(gelu)
    return gelu, slope.addcmul_(slope, gate, value=-1).add_(gate)


def is_fused(x: Tensor, weight: Tensor) -> bool:
    """Whether `gated_gelu` takes this input: float32 on a CPU, not compiled, and gradients are wanted."""
    is_float32_cpu = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    is_plain = is_float32_cpu and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    return is_plain and torch.is_grad_enabled() and x.ndim == 2 and len(x) > 0


def gated_gelu(x_TD: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor, *, dropout_rate: float = 0.0) -> Tensor:
    """(gelu_tanh(x G^T) * x U^T, dropped) W^T, (T, D).

    Args:
        x_TD: For which `is_fused` is true.
        gate_FD: G.
        up_FD: U.
        down_DF: W.
        dropout_rate: On the product, in [0, 1).
    """
    return _GatedGelu.apply(x_TD, gate_FD, up_FD, down_DF, dropout_rate)
