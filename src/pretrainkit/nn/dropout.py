"""Dropout."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.cpu.dropout import keep_factors


def dropout(x: Tensor, rate: float, *, is_training: bool) -> Tensor:
    """Zero a share `rate` of the elements and scale up the rest. Draws from torch's default generator of the device.

    Args:
        x: Any shape.
        rate: In [0, 1).
        is_training: False returns `x` itself.
    """
    if not is_training or rate == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    # The factors stay float32, so that their mean is 1 in half precision too.
    return (x * keep_factors(x.shape, rate)).to(x.dtype)
