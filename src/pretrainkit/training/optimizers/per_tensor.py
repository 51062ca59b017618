"""LARS, LAMB and scaled AdamW: the length of each tensor's step is in proportion to the tensor's own size.

Queries, keys and values that are stored as one tensor count as three (`stacked`). Norms are of the whole tensor, also
where FSDP2 keeps a shard of it per rank.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from pretrainkit.dist.devices import from_host
from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.parameters import in_parts, local_gradients, local_tensors, repeated, tensor_norms

TRUST = 0.001
_LARS_EPSILON = 1e-8
SMALLEST_RMS = 1e-3

_Tensors = list[Tensor]


class Lars(GroupOptimizer):
    """SGD with momentum. Per tensor: local = TRUST * |p| / (|g| + weight_decay * |p| + 1e-8), or 1 where a norm is 0;
    v = momentum * v + local * lr * (g + weight_decay * p);  p -= v (nesterov: p -= momentum * v + the new part of v).

    Source: You et al. 2017, https://arxiv.org/abs/1708.03888, in the form of ZeroVL's linear probe: the learning
    rate is inside the momentum buffer.
    """

    usual: ClassVar = {"momentum": 0.9, "nesterov": False}

    def _update(self, params: _Tensors, group: dict[str, Any]) -> None:
        grads, weights = local_gradients(params), local_tensors(params)
        buffers = local_tensors(state["momentum_buffer"] for state in self._states(params, "momentum_buffer"))
        weight_norms, grad_norms = (_norms(tensors, params, self.stacked) for tensors in (weights, grads))
        denominators = grad_norms + group["weight_decay"] * weight_norms + _LARS_EPSILON
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


class _Adam(GroupOptimizer):
    """The direction of Adam, which subclasses rescale."""

    usual: ClassVar = {"betas": (0.9, 0.999), "eps": 1e-6}

    def _directions(self, params: _Tensors, group: dict[str, Any]) -> _Tensors:
        """m_hat / (sqrt(v_hat) + eps) of each parameter, after the moments took in its gradient."""
        states = self._states(params, "exp_avg", "exp_avg_sq", has_step=True)
        beta1, beta2 = group["betas"]
        torch._foreach_add_([state["step"] for state in states], 1.0)
        steps = [state["step"].item() for state in states]
        grads = local_gradients(params)
        first = local_tensors(state["exp_avg"] for state in states)
        second = local_tensors(state["exp_avg_sq"] for state in states)
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, [(1 - beta2**step) ** 0.5 for step in steps])
        torch._foreach_add_(denominators, group["eps"])
        directions = torch._foreach_div(first, [1 - beta1**step for step in steps])
        torch._foreach_div_(directions, denominators)
        return list(directions)


class Lamb(_Adam):
    """u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p;  p -= lr * (|p| / |u|) * u, per tensor.

    Source: You et al. 2019, https://arxiv.org/abs/1904.00962. The paper's phi clamps the weight norm; like optax and
    Sabertooth we do not clamp, and the ratio is 1 where either norm is 0.
    """

    def _update(self, params: _Tensors, group: dict[str, Any]) -> None:
        weights, updates = local_tensors(params), self._directions(params, group)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        weight_norms, update_norms = (_norms(tensors, params, self.stacked) for tensors in (weights, updates))
        has_ratio = (weight_norms > 0) & (update_norms > 0)
        ratios = torch.where(has_ratio, weight_norms / update_norms, 1.0) * -group["lr"]
        torch._foreach_mul_(in_parts(updates, params, self.stacked), list(ratios.unbind()))
        torch._foreach_add_(weights, updates)


class ScaledAdamW(_Adam):
    """u = m_hat / (sqrt(v_hat) + eps);  p -= lr * max(SMALLEST_RMS, rms(p)) * u;  p -= lr * weight_decay * p, where
    rms(p) is of the tensor before the step, as in Adafactor.

    Source: nanoT5's recipe, Nawrot 2023, https://arxiv.org/abs/2309.02373.
    """

    def _update(self, params: _Tensors, group: dict[str, Any]) -> None:
        weights, updates = local_tensors(params), self._directions(params, group)
        counts = [float(param.numel() // self.stacked.get(param, 1)) for param in repeated(params, self.stacked)]
        sizes = from_host(counts, weights[0].device)
        rms = _norms(weights, params, self.stacked) / sizes.sqrt()
        scales = rms.clamp(min=SMALLEST_RMS) * -group["lr"]
        torch._foreach_mul_(in_parts(updates, params, self.stacked), list(scales.unbind()))
        torch._foreach_add_(weights, updates)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])


def _norms(shards: _Tensors, params: _Tensors, stacked: Mapping[Tensor, int]) -> Tensor:
    """Of each of the tensors in `shards`, which are shaped as `params`."""
    return tensor_norms(in_parts(shards, params, stacked), repeated(params, stacked))
