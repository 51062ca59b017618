"""AdamW whose step is relative to the size of the parameter, as Adafactor's is: nanoT5's recipe.

Source: Nawrot 2023, https://arxiv.org/abs/2309.02373.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.parameters import in_parts, local_tensors, repeated, tensor_norms

SMALLEST_RMS = 1e-3


class ScaledAdamW(GroupOptimizer):
    """u = m_hat / (sqrt(v_hat) + eps);  p -= lr * max(SMALLEST_RMS, rms(p)) * u;  p -= lr * weight_decay * p.

    The root mean square is of the whole tensor before the step (of three where queries, keys and values are stored as
    one: `stacked`), also where FSDP2 keeps a shard of it per rank.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
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

        layout = repeated(params, self.stacked)
        sizes = torch.tensor(
            [param.numel() // self.stacked.get(param, 1) for param in layout],
            dtype=torch.float32,
            device=weights[0].device,
        )
        norms = tensor_norms(in_parts(weights, params, self.stacked), layout)
        scales = (norms / sizes.sqrt()).clamp(min=SMALLEST_RMS) * -group["lr"]
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, [(1 - beta2**step) ** 0.5 for step in steps])
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(first, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, denominators)
        torch._foreach_mul_(in_parts(updates, params, self.stacked), list(scales.unbind()))
        torch._foreach_add_(weights, updates)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
