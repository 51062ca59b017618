"""The feed-forward layer with a gated swish, (swish(x G^T) * x U^T) W^T, for float32 on a CPU; G above U in one matrix.

As in `pretrainkit.nn.gated_gelu`, some rows at a time pass through all of it, backwards too: their gradients go to
those of the weights at once. What is between the products is one pass of compiled code (`_gated_swish.c`) each way;
where there was no compiler at installation, torch's operators compute the same. Backwards sigmoid and product are made
again: that is cheaper than to read them.

Dimensions: T tokens, D width, F width inside, E = 2 F.
Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.
"""

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pretrainkit.nn.linear import product, product_into

_BLOCK = 1 << 20
"""Elements of the inner width that a thread works on at a time. Many, as Intel's products of few rows are up to a third
slower."""


class _GatedSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, both_ED: Tensor, down_DF: Tensor) -> Tensor:
        width = len(both_ED) // 2
        num_rows = min(len(x_TD), max(1, torch.get_num_threads() * _BLOCK // width))
        room_TF, found_TD = x_TD.new_empty(num_rows, width), torch.empty_like(x_TD)
        parts = []
        for x, found in zip(x_TD.split(num_rows), found_TD.split(num_rows), strict=True):
            parts.append(product(x, both_ED))
            inner = room_TF[: len(x)]
            _gate(parts[-1], inner)
            product_into(found, inner, down_DF)
        ctx.save_for_backward(x_TD, both_ED, down_DF, *parts)
        return found_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x_TD, both_ED, down_DF, *parts = ctx.saved_tensors
        grad_TD = grad_TD.contiguous()
        num_rows = len(parts[0])
        grad_x_TD = torch.empty_like(x_TD) if ctx.needs_input_grad[0] else None
        grad_both_ED, grad_down_DF = torch.empty_like(both_ED), torch.empty_like(down_DF)
        room, inner_room = torch.empty_like(parts[0]), x_TD.new_empty(num_rows, down_DF.shape[1])
        arrays = (one.split(num_rows) for one in (x_TD, grad_TD))
        for number, (part, x, grad) in enumerate(zip(parts, *arrays, strict=True)):
            found, inner = room[: len(part)], inner_room[: len(part)]
            _gate_back(part, product(grad, down_DF.t()), inner, found)
            is_added = int(number > 0)
            grad_both_ED.addmm_(found.t(), x, beta=is_added)
            grad_down_DF.addmm_(grad.t(), inner, beta=is_added)
            if grad_x_TD is not None:
                product_into(grad_x_TD[number * num_rows : number * num_rows + len(part)], found, both_ED.t())
        return grad_x_TD, grad_both_ED, grad_down_DF


@cache
def _compiled() -> ModuleType | None:
    try:
        import pretrainkit.nn._gated_swish as compiled
    except ImportError:
        return None
    return compiled


def _gate(both_TE: Tensor, inner_TF: Tensor) -> None:
    """swish(gate) * up into `inner_TF`."""
    compiled = _compiled()
    if compiled is not None:
        compiled.forward(both_TE.numpy(), inner_TF.numpy(), inner_TF.shape[1], torch.get_num_threads())
        return
    gate_TF, up_TF = both_TE.chunk(2, dim=1)
    torch.sigmoid(gate_TF, out=inner_TF).mul_(gate_TF).mul_(up_TF)


def _gate_back(both_TE: Tensor, above_TF: Tensor, inner_TF: Tensor, found_TE: Tensor) -> None:
    """As `_gate`, and the gradient of `both_TE` into `found_TE`, given that of swish(gate) * up."""
    compiled = _compiled()
    if compiled is not None:
        arrays = (one.numpy() for one in (both_TE, above_TF, inner_TF, found_TE))
        compiled.backward(*arrays, above_TF.shape[1], torch.get_num_threads())
        return
    gate_TF, up_TF = both_TE.chunk(2, dim=1)
    to_gate_TF, to_up_TF = found_TE.chunk(2, dim=1)
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
