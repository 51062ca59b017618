"""LARS, LAMB and scaled AdamW, whose steps are proportional to the size of each tensor. Also SGD and Lion, which have
no such rule.

Queries, keys and values that are stored as one tensor count as three tensors (`stacked`). Norms are taken over the
whole tensor, even where FSDP2 keeps a shard per rank.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.parameters import Batches, local_gradients, local_tensors

TRUST = 0.001
_LARS_EPSILON = 1e-8
SMALLEST_RMS = 1e-3


class Sgd(GroupOptimizer):
    """SGD with the state of `torch.optim.SGD`: g += weight_decay * p;  v = momentum * v + g;  p -= lr * v (nesterov:
    p -= lr * (g + momentum * v))."""

    usual: ClassVar = {"momentum": 0.0, "nesterov": False}

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        self._subtract(
            local_tensors(params),
            local_gradients(params),
            lr=group["lr"],
            decay=group["weight_decay"],
            buffers=self._moments(params, "momentum_buffer") if group["momentum"] else (),
            momentum=group["momentum"],
            nesterov=group["nesterov"],
        )


class Lion(GroupOptimizer):
    """u = sign(beta1 * m + (1 - beta1) * g);  p -= lr * (u + weight_decay * p);  m = beta2 * m + (1 - beta2) * g.

    Source: Chen et al. 2023, https://arxiv.org/abs/2302.06675, algorithm 2.
    """

    usual: ClassVar = {"betas": (0.9, 0.99)}

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads, moments = local_gradients(params), self._moments(params, "exp_avg")
        beta1, beta2 = group["betas"]
        updates = torch._foreach_lerp(moments, grads, 1 - beta1)
        torch._foreach_sign_(updates)
        self._subtract(local_tensors(params), updates, lr=group["lr"], decay=group["weight_decay"])
        self._average(moments, grads, 1 - beta2)


class Lars(GroupOptimizer):
    """SGD with momentum. Per tensor: local = TRUST * |p| / (|g| + weight_decay * |p| + 1e-8), or 1 where a norm is 0;
    v = momentum * v + local * lr * (g + weight_decay * p);  p -= v (nesterov: p -= momentum * v + the new part of v).

    Source: You et al. 2017, https://arxiv.org/abs/1708.03888, in the form of ZeroVL's linear probe: the learning
    rate is inside the momentum buffer.
    """

    usual: ClassVar = {"momentum": 0.9, "nesterov": False}

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        batches = self._batches(params)
        params, added = batches.params, batches.views()
        grads, weights = local_gradients(params), local_tensors(params)
        weight_norms, grad_norms = batches.norms(weights, grads)
        denominators = grad_norms + group["weight_decay"] * weight_norms + _LARS_EPSILON
        has_ratio = (weight_norms > 0) & (grad_norms > 0)
        rates = torch.where(has_ratio, TRUST * weight_norms / denominators, 1.0) * group["lr"]
        torch._foreach_copy_(added, grads)
        torch._foreach_add_(added, weights, alpha=group["weight_decay"])
        batches.scale_(rates)
        buffers = self._moments(params, "momentum_buffer")
        self._subtract(weights, added, buffers=buffers, momentum=group["momentum"], nesterov=group["nesterov"])


class _Adam(GroupOptimizer):
    """Base class of optimizers that rescale the direction of Adam."""

    usual: ClassVar = {"betas": (0.9, 0.999), "eps": 1e-6}

    def _directions(self, params: list[Tensor], step: Tensor, group: dict[str, Any]) -> Batches:
        """Update the moments and return m_hat / (sqrt(v_hat) + eps) of each parameter. It is computed as AdamW's update
        of zeros with a learning rate of -1."""
        batches = self._batches(params)
        updates = batches.views()
        torch._foreach_zero_(updates)
        self._adam(updates, batches.params, step, group, lr=-1.0)
        return batches


class Lamb(_Adam):
    """u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p;  p -= lr * (|p| / |u|) * u, per tensor.

    Source: You et al. 2019, https://arxiv.org/abs/1904.00962. The paper's phi clamps the weight norm; like optax and
    Sabertooth we do not clamp, and the ratio is 1 where either norm is 0.
    """

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for step, members in self._counted(params):
            batches = self._directions(members, step, group)
            weights, updates = local_tensors(batches.params), batches.views()
            if group["weight_decay"]:
                torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            weight_norms, update_norms = batches.norms(weights, updates)
            has_ratio = (weight_norms > 0) & (update_norms > 0)
            batches.scale_(torch.where(has_ratio, weight_norms / update_norms, 1.0) * group["lr"])
            self._subtract(weights, updates)


class ScaledAdamW(_Adam):
    """u = m_hat / (sqrt(v_hat) + eps);  p -= lr * max(SMALLEST_RMS, rms(p)) * u;  p -= lr * weight_decay * p.

    Here rms(p) is that of the tensor before the step, as in Adafactor.

    Source: nanoT5's recipe, Nawrot 2023, https://arxiv.org/abs/2309.02373.
    """

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for step, members in self._counted(params):
            batches = self._directions(members, step, group)
            weights, updates = local_tensors(batches.params), batches.views()
            rms = batches.norms(weights)[0] / batches.root_sizes()
            decay = group["lr"] * group["weight_decay"]
            # The decay is of the parameter after the step: (p - u) * (1 - decay) = p - u * (1 - decay) - decay * p.
            batches.scale_(rms.clamp(min=SMALLEST_RMS) * (group["lr"] * (1 - decay)))
            self._subtract(weights, updates, decay=decay)
