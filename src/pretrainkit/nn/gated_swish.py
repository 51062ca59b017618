"""The feed-forward layer with a gated swish, (swish(x G^T) * x U^T) W^T, for float32 on a CPU; G above U in one matrix.

What is between the products is one pass of compiled code (`_gated_swish.c`) each way; where there was no compiler at
installation, torch's operators compute the same. Backwards sigmoid and product are made again, which is cheaper than to
read them, and some rows at a time pass through all of it while they are in the cache: their gradients go to those of
the weights at once.

Dimensions: T tokens, D width, F width inside, E = 2 F.
Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pretrainkit.nn.compiled import call, part
from pretrainkit.nn.linear import padded, padded_product, product, product_into

_BLOCK = 1 << 19
"""Elements of the inner width that a thread works on at a time, backwards."""


class _GatedSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, both_ED: Tensor, down_DF: Tensor) -> Tensor:
        width = down_DF.shape[1]
        both_TE = padded_product(x_TD, both_ED)
        inner_TF = padded(x_TD, len(x_TD), width)
        _gate(both_TE, inner_TF, width)
        ctx.save_for_backward(x_TD, both_ED, down_DF, both_TE)
        return product(inner_TF[:, :width], down_DF)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x_TD, both_ED, down_DF, both_TE = ctx.saved_tensors
        grad_TD = grad_TD.contiguous()
        width = down_DF.shape[1]
        num_rows = max(1, min(len(x_TD), torch.get_num_threads() * _BLOCK // width))
        grad_x_TD = torch.empty_like(x_TD) if ctx.needs_input_grad[0] else None
        make = torch.empty_like if len(x_TD) else torch.zeros_like
        grad_both_ED, grad_down_DF = make(both_ED), make(down_DF)
        room, inner_room = padded(x_TD, num_rows, 2 * width), padded(x_TD, num_rows, width)
        for start in range(0, len(x_TD), num_rows):
            rows = slice(start, start + num_rows)
            x, both, grad = x_TD[rows], both_TE[rows], grad_TD[rows]
            found, inner = room[: len(x)], inner_room[: len(x)]
            _gate_back(both, padded_product(grad, down_DF.t()), inner, found, width)
            found, inner = found[:, : 2 * width], inner[:, :width]
            is_added = int(start > 0)
            grad_both_ED.addmm_(found.t(), x, beta=is_added)
            grad_down_DF.addmm_(grad.t(), inner, beta=is_added)
            if grad_x_TD is not None:
                product_into(grad_x_TD[rows], found, both_ED.t())
        return grad_x_TD, grad_both_ED, grad_down_DF


_compiled = partial(part, "_gated_swish")


def _gate(both_TE: Tensor, inner_TF: Tensor, width: int) -> None:
    """swish(gate) * up into `inner_TF`. Rows of both may be longer."""
    compiled = _compiled()
    if compiled is not None:
        call(compiled.forward, both_TE, inner_TF, width, torch.get_num_threads())
        return
    inner_TF = inner_TF[:, :width]
    gate_TF, up_TF = both_TE[:, : 2 * width].chunk(2, dim=1)
    torch.sigmoid(gate_TF, out=inner_TF).mul_(gate_TF).mul_(up_TF)


def _gate_back(both_TE: Tensor, above_TF: Tensor, inner_TF: Tensor, found_TE: Tensor, width: int) -> None:
    """As `_gate`, and the gradient of `both_TE` into `found_TE`, given that of swish(gate) * up."""
    compiled = _compiled()
    if compiled is not None:
        call(compiled.backward, both_TE, inner_TF, above_TF, found_TE, width, torch.get_num_threads())
        return
    above_TF, inner_TF = above_TF[:, :width], inner_TF[:, :width]
    gate_TF, up_TF = both_TE[:, : 2 * width].chunk(2, dim=1)
    to_gate_TF, to_up_TF = found_TE[:, : 2 * width].chunk(2, dim=1)
    sigmoid_TF = gate_TF.sigmoid()
    torch.mul(sigmoid_TF, gate_TF, out=inner_TF).mul_(up_TF)
    above_TF.mul_(sigmoid_TF)
    torch.mul(above_TF, gate_TF, out=to_up_TF)
    # d/dx x s = s + x s (1 - s) = s (1 + x (1 - s))
    slope_TF = sigmoid_TF.neg_().add_(1).mul_(gate_TF).add_(1)
    torch.mul(above_TF, up_TF, out=to_gate_TF).mul_(slope_TF)


def gated_swish(x_TD: Tensor, both_ED: Tensor, down_DF: Tensor) -> Tensor:
    """(swish(x G^T) * x U^T) W^T, (T, D).

    Args:
        x_TD: For which `pretrainkit.nn.gated_gelu.is_fused` is true.
        both_ED: G above U.
        down_DF: W.
    """
    return _GatedSwish.apply(x_TD, both_ED, down_DF)
