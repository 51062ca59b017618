"""Optimizers whose step is never compiled, so that a run does not load torch's compiler to make its first update.

`torch.optim` wraps the methods of every optimizer in guards that import `torch._dynamo` (and sympy with it) when first
called, about 1.5 CPU-seconds of every cold start. Here only blocks and heads of a model are ever compiled, so the
classes below use torch's own methods without them. Arithmetic, state, hooks of `step` and fused kernels are torch's.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pretrainkit.dist.devices import from_host
from pretrainkit.training.optimizers.parameters import Batches, local_gradients, local_tensors


class EagerOptimizer(torch.optim.Optimizer):
    """`torch.optim.Optimizer` without the guards. Not for use inside a compiled function."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class GroupOptimizer(EagerOptimizer, ABC):
    """An optimizer of our own: a subclass says what happens to the parameters of one group.

    Parameters and state change only by torch's fused kernels. With `found_inf` 1 these do nothing, so an update whose
    gradient is not finite is left out by the device itself, and the host does not wait to hear of it.
    """

    _step_supports_amp_scaling = True
    """torch.amp.GradScaler sets `found_inf` and `grad_scale` for `step`, as with torch's fused optimizers."""
    found_inf: Tensor | None = None
    """1.0 where the update is to be left out, else 0.0; a float32 scalar on the device."""
    usual: ClassVar[Mapping[str, Any]] = {}
    """Its settings besides learning rate and weight decay, with the values that are taken where none is given."""

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        weight_decay: float = 0.0,
        stacked: Mapping[Tensor, int] | None = None,
        **settings: Any,
    ) -> None:
        """`stacked`: see `pretrainkit.training.optimizers.parameters.stacked_parameters`."""
        if unknown := settings.keys() - self.usual.keys():
            raise TypeError(f"{type(self).__name__} has no settings {sorted(unknown)}")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **self.usual, **settings})
        self.stacked = stacked or {}
        self._kept: dict[Any, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient. Nothing waits for the device."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        scale = getattr(self, "grad_scale", None)  # of a GradScaler whose `unscale_` was not called
        with_grads = [
            ([param for param in group["params"] if param.grad is not None], group) for group in self.param_groups
        ]
        groups = [(params, group) for params, group in with_grads if params]
        if scale is not None:
            for params, _ in groups:
                torch._foreach_div_(local_gradients(params), scale)
        self._update_groups(groups)
        return loss

    def load_state_dict(self, state_dict: Any) -> None:
        """Numbers of updates go to the device, and parameters with the same number share it."""
        super().load_state_dict(state_dict)
        shared: dict[tuple[torch.device, float], Tensor] = {}
        for param, state in self.state.items():
            if "step" in state:
                key = param.device, float(state["step"])
                if key not in shared:
                    shared[key] = from_host(key[1], param.device)
                state["step"] = shared[key]

    def _batches(self, params: Sequence[Tensor]) -> Batches:
        """Room for an update of parameters."""
        return Batches(params, self.stacked, self._kept)

    def _moments(self, params: list[Tensor], name: str) -> list[Tensor]:
        """What of this moment of each parameter lies on this rank: shaped and sharded as the parameter, before its
        first update made of zeros."""
        for param in params:
            if name not in self.state[param]:
                self.state[param][name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return local_tensors(self.state[param][name] for param in params)

    def _counted(self, params: list[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Sets of parameters with equally many updates, and that number, this update included: a float32 scalar on the
        device, where alone it is known which updates were left out. The parameters share it, so that one kernel serves
        them all."""
        new = [param for param in params if "step" not in self.state[param]]
        if new:
            zero = torch.zeros((), device=new[0].device)
            for param in new:
                self.state[param]["step"] = zero
        sets: dict[Tensor, list[Tensor]] = {}
        for param in params:
            sets.setdefault(self.state[param]["step"], []).append(param)
        for step, members in sets.items():
            if len(members) < sum(state.get("step") is step for state in self.state.values()):
                step = step.clone()  # the others have no gradient this time, or are of another group
                for param in members:
                    self.state[param]["step"] = step
            step += 1.0 if self.found_inf is None else 1.0 - self.found_inf
            yield step, members

    def _subtract(
        self,
        params: Sequence[Tensor],
        updates: Sequence[Tensor],
        *,
        lr: float | Tensor = 1.0,
        decay: float = 0.0,
        buffers: Sequence[Tensor] = (),
        momentum: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        """One update of SGD by torch's kernel: params -= lr * (updates + decay * params), with the momentum in
        `buffers` where there are such. With `maximize` the updates have the other sign."""
        torch._fused_sgd_(
            list(params),
            list(updates),
            list(buffers),
            weight_decay=decay,
            momentum=momentum,
            lr=cast(Any, lr),  # a number, or a scalar on the device
            dampening=0.0,
            nesterov=nesterov,
            maximize=maximize,
            is_first_step=False,
            found_inf=self.found_inf,
        )

    def _average(self, averages: Sequence[Tensor], values: Sequence[Tensor], share: float | Tensor) -> None:
        """averages += share * (values - averages)."""
        if isinstance(share, float) and share < 0.5:
            self._subtract(averages, values, lr=share, decay=1.0, maximize=True)
            return
        # In one sum, a small value would be lost beside a large average of which little is to stay.
        self._subtract(averages, averages, lr=share)
        self._subtract(averages, values, lr=share, maximize=True)

    def _adam(
        self,
        weights: Sequence[Tensor],
        params: list[Tensor],
        step: Tensor,
        group: dict[str, Any],
        *,
        lr: float,
        weight_decay: float = 0.0,
    ) -> None:
        """AdamW's update of `weights` by the gradients and moments of `params`."""
        torch._fused_adamw_(
            list(weights),
            local_gradients(params),
            self._moments(params, "exp_avg"),
            self._moments(params, "exp_avg_sq"),
            [],
            [step] * len(params),
            lr=lr,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=weight_decay,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=self.found_inf,
        )

    def _update_groups(self, groups: Sequence[tuple[list[Tensor], dict[str, Any]]]) -> None:
        """Update the parameters of each group, all with a gradient."""
        for params, group in groups:
            self._update(params, group)

    @abstractmethod
    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters, all with a gradient, by the settings of their group."""


class EagerAdamW(EagerOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` without the guards: the same update to the bit, and the same state."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
