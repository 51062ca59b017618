"""Optimizers whose step is never compiled, so that a run does not load torch's compiler to make its first update.

`torch.optim` prepares every optimizer for `torch.compile(optimizer.step)`: its methods are wrapped in guards that
import `torch._dynamo` (and sympy with it) when first called, about 1.5 CPU-seconds of every cold start. Here only
blocks and heads of a model are ever compiled, so the guards guard nothing; the classes below use torch's own methods
without them. The arithmetic, the state and the hooks of `step` are torch's, and so is the fused kernel. A torch that
has no such guards is served as well.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT


class EagerOptimizer(torch.optim.Optimizer):
    """`torch.optim.Optimizer` without the guards. Not for use inside a compiled function."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class GroupOptimizer(EagerOptimizer, ABC):
    """An optimizer of our own: a subclass says what happens to the parameters of one group."""

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

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient. Nothing waits for the device."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self._update(params, group)
        return loss

    def _states(self, params: list[Tensor], *moments: str, has_step: bool = False) -> list[dict[str, Any]]:
        """The state of each parameter, before its first update made of zeros: the moments of these names, shaped and
        sharded as the parameter, and maybe the number of updates."""
        for param in params:
            state = self.state[param]
            if not state:
                if has_step:
                    # As torch's own Adam: a float32 scalar on the host, so that reading it costs no synchronisation.
                    state["step"] = torch.tensor(0.0)
                for name in moments:
                    state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return [self.state[param] for param in params]

    @abstractmethod
    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters, all with a gradient, by the settings of their group."""


class EagerAdamW(EagerOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` without the guards: the same update to the bit, and the same state."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class EagerSGD(EagerOptimizer, torch.optim.SGD):
    """`torch.optim.SGD` without the guards: the same update to the bit, and the same state."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
