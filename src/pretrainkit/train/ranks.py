"""What this process adds up with: the data-parallel ranks. One rank needs no process group."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """The processes that each hold a slice of the batch. Methods are collectives: all ranks call them in one order."""

    index: int = 0
    """This rank's place; rank r holds rows [r * b, (r + 1) * b) of the global batch."""
    count: int = 1
    group: dist.ProcessGroup | None = None
    """None: all processes."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of `tensor` over ranks. Nothing waits for the device."""
        if self.count == 1:
            return tensor
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """(b, ...) to (count * b, ...) in rank order, without autograd. The shape is the same on all ranks."""
        tensor = tensor.detach()
        if self.count == 1:
            return tensor
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.count)]
        dist.all_gather(parts, tensor.contiguous(), group=self.group)
        return torch.cat(parts)

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's `value` (small, on the host) in rank order. Waits; not for the training step."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self.group)
        return values
