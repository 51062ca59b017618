"""Dropout."""

import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.cpu.dispatch import has_cheap_dropout
from pretrainkit.nn.cpu.dropout import cheap_dropout


def dropout(x: Tensor, rate: float, *, is_training: bool) -> Tensor:
    """Zero a share `rate` of the elements, in [0, 1), and scale up the rest; where `is_training` is False, return `x`
    itself. Draws from torch's default generator of the device."""
    if not is_training or rate == 0:
        return x
    return cheap_dropout(x, rate) if has_cheap_dropout(x) else F.dropout(x, rate)
