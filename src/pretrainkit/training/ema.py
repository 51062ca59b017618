"""Exponential moving average of the weights, optionally used for evaluation and export."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pretrainkit.training.optimizers.parameters import local_tensors, plain_name


class Ema:
    """average = decay * average + (1 - decay) * weights after each update, starting from the initial weights.

    Holds one copy of the parameters, sharded in the same way. Buffers are not averaged.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema_decay is {decay}; it must be strictly between 0 and 1")
        self.decay = decay
        self._average = {plain_name(name): param.detach().clone() for name, param in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Include the weights of `model`, the same as at creation. Call it after each optimizer step."""
        weights = local_tensors(param.detach() for param in model.parameters())
        torch._foreach_lerp_(local_tensors(self._average.values()), weights, 1 - self.decay)

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Put the averaged weights into `model` while the context is active, then restore its own bit for bit. Needs
        memory for one spare tensor."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        weights = local_tensors(param.detach() for param in model.parameters())
        for average, weight in zip(local_tensors(self._average.values()), weights):
            spare = weight.clone()
            weight.copy_(average)
            average.copy_(spare)

    def state_dict(self) -> dict[str, Tensor]:
        """Map each parameter name in the bare model to its average. Checkpoints are read into these tensors."""
        return dict(self._average)
