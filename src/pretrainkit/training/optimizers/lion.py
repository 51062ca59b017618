"""Lion: the sign of a momentum.

Source: Chen et al. 2023, https://arxiv.org/abs/2302.06675, algorithm 2.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.parameters import local_gradients, local_tensors


class Lion(GroupOptimizer):
    """u = sign(beta1 * m + (1 - beta1) * g);  p -= lr * (u + weight_decay * p);  m = beta2 * m + (1 - beta2) * g."""

    usual: ClassVar = {"betas": (0.9, 0.99)}

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads, moments = local_gradients(params), self._moments(params, "exp_avg")
        beta1, beta2 = group["betas"]
        updates = torch._foreach_lerp(moments, grads, 1 - beta1)
        torch._foreach_sign_(updates)
        self._subtract(local_tensors(params), updates, lr=group["lr"], decay=group["weight_decay"])
        self._average(moments, grads, 1 - beta2)
