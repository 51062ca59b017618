"""Dropout."""

import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.cpu.dispatch import has_cheap_dropout
from pretrainkit.nn.cpu.dropout import keep_factors


def dropout(x: Tensor, rate: float, *, is_training: bool) -> Tensor:
    """Zero a share `rate` of the elements, in [0, 1), and scale up the rest. Returns `x` itself if `is_training` is
    False. Draws from torch's default generator of the device."""
    if not is_training or rate == 0:
        return x
    if has_cheap_dropout(x):  # the factors are float32, so that their mean is also 1 in half precision
        return (x * keep_factors(x.shape, rate)).to(x.dtype)
    return F.dropout(x, rate)
