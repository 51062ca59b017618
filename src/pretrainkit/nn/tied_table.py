"""An embedding table that is also an output matrix, without paying twice for its gradient.

Autograd would make one dense gradient per use and add them: two more passes over the vocabulary per step, and fresh
memory for each. Here the head leaves its gradient with the lookup, which comes later in the backward pass and adds its
few rows to it. Float32 weights on a CPU only; elsewhere autograd adds, which GPUs do quickly.

Dimensions: V vocabulary, D width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class TiedTable:
    """The table of one forward pass, as its lookup hands it to the head."""

    def __init__(self, weight_VD: Tensor) -> None:
        self.weight_VD = weight_VD
        """The parameter."""
        self.link: Tensor | None = None
        """A scalar that a head which leaves its gradient here takes as an input: it makes autograd run the lookup's
        backward after the head's. None: let autograd add."""
        self._from_head: Tensor | None = None

    def leave(self, grad_VD: Tensor) -> None:
        """Called by the head's backward: `grad_VD` now belongs to the lookup, which writes into it."""
        self._from_head = grad_VD if self._from_head is None else self._from_head.add_(grad_VD)

    def collect(self) -> Tensor:
        """What was left, once; zeros where no head was used."""
        found, self._from_head = self._from_head, None
        return torch.zeros_like(self.weight_VD) if found is None else found


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VD: Tensor, ids: Tensor, table: TiedTable) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        ctx.table = table
        return F.embedding(ids, weight_VD), weight_VD.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor, _grad_link: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        grad_VD = ctx.table.collect()
        return grad_VD.index_add_(0, ids.flatten(), grad_rows.reshape(-1, grad_VD.shape[1])), None, None


def is_chunked(weight_VD: Tensor) -> bool:
    """Whether the paths that are written out for a CPU take such a table."""
    is_float32_cpu = weight_VD.device.type == "cpu" and weight_VD.dtype == torch.float32
    return is_float32_cpu and not torch.compiler.is_compiling()


def look_up(weight_VD: Tensor, ids: Tensor) -> tuple[Tensor, TiedTable]:
    """Rows of the table, (*ids.shape, D), and the table for the head of the same forward pass."""
    if not is_chunked(weight_VD):
        return F.embedding(ids, weight_VD), TiedTable(weight_VD)
    table = TiedTable(weight_VD)
    rows, table.link = _LookUp.apply(weight_VD, ids, table)
    return rows, table
