"""Conditions under which the operations of `nn` use another implementation on a CPU."""

import torch
from torch import Tensor

from pretrainkit.dist.devices import planned_card


def _is_on_cpu(some: Tensor) -> bool:
    return some.device.type == "cpu" and planned_card() is None


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
    view just as fast, so it needs no copy."""
    return matrix.contiguous() if _is_on_cpu(matrix) else matrix
