"""LAMB: Adam with decoupled decay, each tensor's update rescaled to the norm of the tensor.

Source: You et al. 2019, https://arxiv.org/abs/1904.00962. The paper's phi clamps the weight norm; like optax and
Sabertooth (specification 12.1) we do not clamp, and the ratio is 1 where either norm is 0.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.parameters import in_parts, local_tensors, repeated, tensor_norms


class Lamb(GroupOptimizer):
    """u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p;  p -= lr * (|p| / |u|) * u, per tensor.

    Queries, keys and values that are stored as one tensor count as three (`stacked`). Norms are of the whole
    tensor, also where FSDP2 keeps a shard of it per rank.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        stacked: Mapping[Tensor, int] | None = None,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, settings, stacked)

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        states = self._states(params, "exp_avg", "exp_avg_sq", has_step=True)
        beta1, beta2 = group["betas"]
        torch._foreach_add_([state["step"] for state in states], 1.0)
        steps = [state["step"].item() for state in states]

        grads = local_tensors([param.grad for param in params if param.grad is not None])
        weights = local_tensors(params)
        first = local_tensors(state["exp_avg"] for state in states)
        second = local_tensors(state["exp_avg_sq"] for state in states)
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)

        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, [(1 - beta2**step) ** 0.5 for step in steps])
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(first, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])

        layout, update_parts = repeated(params, self.stacked), in_parts(updates, params, self.stacked)
        weight_norms = tensor_norms(in_parts(weights, params, self.stacked), layout)
        update_norms = tensor_norms(update_parts, layout)
        has_ratio = (weight_norms > 0) & (update_norms > 0)
        ratios = torch.where(has_ratio, weight_norms / update_norms, 1.0) * -group["lr"]
        torch._foreach_mul_(update_parts, list(ratios.unbind()))
        torch._foreach_add_(weights, updates)
