"""Conditions under which the operations of `nn` use another implementation on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_planned_card: tuple[int, int] | None = None


@contextmanager
def planned_for(card: tuple[int, int] | None) -> Iterator[None]:
    """Within this context, operations on tensors of the CPU take the path of a GPU with this compute capability (None:
    their own). It is for tensors without numbers, which show what a step allocates on hardware that is not here."""
    global _planned_card
    before, _planned_card = _planned_card, card
    try:
        yield
    finally:
        _planned_card = before


def planned_card() -> tuple[int, int] | None:
    """Return the compute capability for which a step is planned; None outside of `planned_for`."""
    return _planned_card


def _is_on_cpu(some: Tensor) -> bool:
    return some.device.type == "cpu" and _planned_card is None


def drops_padding(some: Tensor) -> bool:
    """True if work on padding, or on outputs that are not used, is skipped on the device of a tensor.

    On a CPU it is skipped: sizes are read from the data immediately, and most possible savings come from this.
    Elsewhere shapes must not depend on the data, because reading a size waits for the device.
    """
    return _is_on_cpu(some)


def has_cheap_dropout(x: Tensor) -> bool:
    """True if `cpu.dropout` draws for `x`. In compiled code torch's own dropout is as fast."""
    return _is_on_cpu(x) and not torch.compiler.is_compiling()


def chunks_vocabulary(weight_VD: Tensor) -> bool:
    """True if `cpu.cross_entropy` is used for this weight. In compiled code plain logits are as fast."""
    return _is_on_cpu(weight_VD) and weight_VD.dtype == torch.float32 and not torch.compiler.is_compiling()


def laid_out(matrix: Tensor) -> Tensor:
    """Return the matrix in the layout in which products with few rows are fastest: contiguous on a CPU. A GPU reads a
    view as fast, which saves the copy."""
    return matrix.contiguous() if _is_on_cpu(matrix) else matrix
