"""LARS: SGD with momentum, each tensor's step in proportion to the norm of the tensor.

Source: You et al. 2017, https://arxiv.org/abs/1708.03888, in the form of ZeroVL's linear probe (its specification,
section 13): the learning rate is inside the momentum buffer.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.parameters import in_parts, local_tensors, repeated, tensor_norms

TRUST = 0.001
_EPSILON = 1e-8


class Lars(GroupOptimizer):
    """local = TRUST * |p| / (|g| + weight_decay * |p| + 1e-8), or 1 where either norm is 0;
    v = momentum * v + local * lr * (g + weight_decay * p);  p -= v, per tensor (nesterov: p -= momentum * v + the new
    part of v). Queries, keys and values that are stored as one tensor count as three (`stacked`).

    Norms are of the whole tensor, also where FSDP2 keeps a shard of it per rank.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        stacked: Mapping[Tensor, int] | None = None,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, settings, stacked)

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        states = self._states(params, "momentum_buffer")
        grads = local_tensors([param.grad for param in params if param.grad is not None])
        weights = local_tensors(params)
        buffers = local_tensors(state["momentum_buffer"] for state in states)

        layout = repeated(params, self.stacked)
        weight_norms = tensor_norms(in_parts(weights, params, self.stacked), layout)
        grad_norms = tensor_norms(in_parts(grads, params, self.stacked), layout)
        denominators = grad_norms + group["weight_decay"] * weight_norms + _EPSILON
        has_ratio = (weight_norms > 0) & (grad_norms > 0)
        rates = torch.where(has_ratio, TRUST * weight_norms / denominators, 1.0) * group["lr"]
        added = torch._foreach_add(grads, weights, alpha=group["weight_decay"])
        torch._foreach_mul_(in_parts(added, params, self.stacked), list(rates.unbind()))
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, added)
        if group["nesterov"]:
            torch._foreach_add_(added, buffers, alpha=group["momentum"])
            torch._foreach_sub_(weights, added)
        else:
            torch._foreach_sub_(weights, buffers)
