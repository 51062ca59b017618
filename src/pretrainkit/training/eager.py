"""Optimizers whose step is never compiled, so that the first update of a run does not load torch's compiler.

`torch.optim` wraps the methods of every optimizer in guards that import `torch._dynamo` (and with it sympy) when first
called. This takes about 1.5 CPU-seconds of every cold start. Here only blocks and heads of a model are compiled, so the
classes below use torch's own methods without the guards. Arithmetic, state, hooks of `step` and fused kernels are
torch's.
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
    """Base class of our own optimizers. A subclass defines the update of the parameters of one group.

    Parameters and state change only by torch's fused kernels, which do nothing if `found_inf` is 1. So the device
    itself skips an update with a non-finite gradient, and the host does not wait for the decision.
    """

    _step_supports_amp_scaling = True
    """torch.amp.GradScaler sets `found_inf` and `grad_scale` for `step`, as with torch's fused optimizers."""
    found_inf: Tensor | None = None
    """1.0 to skip the update, otherwise 0.0; a float32 scalar on the device."""
    usual: ClassVar[Mapping[str, Any]] = {}
    """Further settings with their default values, besides learning rate and weight decay."""

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        weight_decay: float = 0.0,
        stacked: Mapping[Tensor, int] | None = None,
        **settings: Any,
    ) -> None:
        """Set up the parameter groups; for `stacked` see `stacked_parameters` in
        `pretrainkit.training.optimizers.parameters`."""
        if unknown := settings.keys() - self.usual.keys():
            raise TypeError(f"{type(self).__name__} has no settings {sorted(unknown)}")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **self.usual, **settings})
        self.stacked = stacked or {}
        self._kept: dict[Any, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient once. The host does not wait for the device."""
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
        """Load the state. Step counts are moved to the device, and parameters with the same count share one tensor."""
        super().load_state_dict(state_dict)
        shared: dict[tuple[torch.device, float], Tensor] = {}
        for param, state in self.state.items():
            if "step" in state:
                key = param.device, float(state["step"])
                if key not in shared:
                    shared[key] = from_host(key[1], param.device)
                state["step"] = shared[key]

    def _batches(self, params: Sequence[Tensor]) -> Batches:
        """Allocate buffers for an update of these parameters."""
        return Batches(params, self.stacked, self._kept)

    def _moments(self, params: list[Tensor], name: str) -> list[Tensor]:
        """Return this rank's part of this moment of each parameter. Moments have the shape and sharding of the
        parameter and are zero before its first update."""
        for param in params:
            if name not in self.state[param]:
                self.state[param][name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return local_tensors(self.state[param][name] for param in params)

    def _counted(self, params: list[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Yield sets of parameters with equally many updates, together with this number, including the current update.

        The number is a float32 scalar on the device, because only the device knows which updates were skipped. The
        parameters share it, so that one kernel serves all of them.
        """
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
                step = step.clone()  # the others have no gradient this time, or belong to another group
                for param in members:
                    self.state[param]["step"] = step
            self._subtract([step], [self._number_one(step.device)], maximize=True)
            yield step, members

    def _number_one(self, device: torch.device) -> Tensor:
        """Return the number 1 on the device."""
        key = "one", device
        if key not in self._kept:
            self._kept[key] = torch.ones((), device=device)
        return self._kept[key]

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
        """Make one SGD update by torch's kernel: params -= lr * (updates + decay * params), with momentum if `buffers`
        are given. `maximize` inverts the sign of the updates."""
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
        """Compute averages += share * (values - averages)."""
        if isinstance(share, float) and share < 0.5:
            self._subtract(averages, values, lr=share, decay=1.0, maximize=True)
            return
        # In a single sum, a small value would be lost next to a large average of which little remains.
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
        """Apply AdamW's update to `weights`, with the gradients and moments of `params`."""
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
        """Update the parameters of each group, which all have a gradient."""
        for params, group in groups:
            self._update(params, group)

    @abstractmethod
    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters, which all have a gradient, with the settings of their group."""


class EagerAdamW(EagerOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` without the guards: bitwise the same update, and the same state."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
