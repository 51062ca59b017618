"""What is computed in another way on a CPU: asked by the operations of `nn`."""

import torch
from torch import Tensor


def drops_padding(some: Tensor) -> bool:
    """True if work on padding, or on outputs that nothing reads, is left out on the device of a tensor.

    On a CPU it is: sizes are read from the data at once, and the work saved is most of what can be won. Elsewhere
    shapes must not depend on the data, because reading a size waits for the device.
    """
    return some.device.type == "cpu"


def has_cheap_dropout(x: Tensor) -> bool:
    """True if `cpu.dropout` draws for `x`; compiled, torch's own is as cheap."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def chunks_vocabulary(weight_VD: Tensor) -> bool:
    """True if `cpu.cross_entropy` takes this weight; compiled, plain logits are as fast."""
    return weight_VD.device.type == "cpu" and weight_VD.dtype == torch.float32 and not torch.compiler.is_compiling()


def laid_out(matrix: Tensor) -> Tensor:
    """The matrix as products with few rows are fastest: contiguous on a CPU. A GPU takes a view just as well, which
    saves the copy."""
    return matrix.contiguous() if matrix.device.type == "cpu" else matrix
