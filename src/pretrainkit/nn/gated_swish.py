"""The feed-forward layer with a gated swish, (swish(x G^T) * x U^T) W^T, for float32 on a CPU; G above U in one matrix.

As in `pretrainkit.nn.gated_gelu`: some rows at a time pass through all of it while they are in the cache, and what the
backward pass needs is made then.

Dimensions: T tokens, D width, F width inside, E = 2 F.
Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.
"""

from typing import Any

import torch
from torch import Tensor

from pretrainkit.nn.linear import product

_BLOCK = 1 << 18
"""Elements of the inner width that are worked on at a time."""


class _GatedSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, both_ED: Tensor, down_DF: Tensor) -> Tensor:
        num_tokens, width = len(x_TD), len(both_ED) // 2
        inner_TF, slopes_TE = x_TD.new_empty(num_tokens, width), x_TD.new_empty(num_tokens, 2 * width)
        num_rows = max(1, _BLOCK // width)
        parts = zip(x_TD.split(num_rows), inner_TF.split(num_rows), slopes_TE.split(num_rows), strict=True)
        for x, inner, slopes in parts:
            gate, up = product(x, both_ED).chunk(2, dim=1)
            to_gate, swish = slopes.chunk(2, dim=1)
            sigmoid = gate.sigmoid()
            torch.mul(gate, sigmoid, out=swish)
            torch.mul(swish, up, out=inner)
            # d/dx x s = s + x s (1 - s)
            sigmoid.addcmul_(torch.rsub(sigmoid, 1), swish)
            torch.mul(sigmoid, up, out=to_gate)
        ctx.save_for_backward(x_TD, both_ED, down_DF, inner_TF, slopes_TE)
        return product(inner_TF, down_DF)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x_TD, both_ED, down_DF, inner_TF, slopes_TE = ctx.saved_tensors
        grad_TD = grad_TD.contiguous()
        width = inner_TF.shape[1]
        grad_TE = torch.empty_like(slopes_TE)
        num_rows = max(1, _BLOCK // width)
        for grad, slopes, found in zip(*(t.split(num_rows) for t in (grad_TD, slopes_TE, grad_TE)), strict=True):
            grad_inner = product(grad, down_DF.t())
            torch.mul(grad_inner[:, None], slopes.unflatten(1, (2, width)), out=found.unflatten(1, (2, width)))
        grad_x_TD = product(grad_TE, both_ED.t()) if ctx.needs_input_grad[0] else None
        return grad_x_TD, grad_TE.t() @ x_TD, grad_TD.t() @ inner_TF


def gated_swish(x_TD: Tensor, both_ED: Tensor, down_DF: Tensor) -> Tensor:
    """(swish(x G^T) * x U^T) W^T, (T, D).

    Args:
        x_TD: For which `pretrainkit.nn.gated_gelu.is_fused` is true.
        both_ED: G above U.
        down_DF: W.
    """
    return _GatedSwish.apply(x_TD, both_ED, down_DF)
