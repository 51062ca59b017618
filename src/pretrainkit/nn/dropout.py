"""Dropout."""

import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.cpu import dispatch
from pretrainkit.nn.cpu.dropout import keep_factors
from pretrainkit.nn.cuda import dropout as gpu


def dropout(x: Tensor, rate: float, *, is_training: bool) -> Tensor:
    """Zero a share `rate` of the elements, in [0, 1), and scale up the rest. Returns `x` itself if `is_training` is
    False. Draws from torch's default generator of the device."""
    if not is_training or rate == 0:
        return x
    if dispatch.has_cheap_dropout(x):  # the factors are float32, so that their mean is also 1 in half precision
        return (x * keep_factors(x.shape, rate)).to(x.dtype)
    if gpu.has_cheap_dropout(x):
        return (x * gpu.keep_factors(x, rate)).to(x.dtype)
    return F.dropout(x, rate)
