"""Dropout whose random numbers are cheap on a CPU.

`torch.nn.functional.dropout` draws one Bernoulli variable per element there, which costs as much as dozens of passes
over the data. Here one 64-bit draw serves four elements of 16 bits each: about six times cheaper. The rate is rounded
to a multiple of 2**-16 (0.1 becomes 0.100006) and what is kept is scaled by the exact inverse: the mean is unchanged.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_LANES = 1 << 16


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


def keep_factors(shape: torch.Size | tuple[int, ...], rate: float) -> Tensor:
    """float32 of `shape` on the CPU: 0 with probability `rate`, else 1 / (1 - rate), independently."""
    num_dropped_lanes = round(rate * _LANES)
    num_elements = 1
    for size in shape:
        num_elements *= size
    draws = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(-(2**63), None)
    lanes = draws.view(torch.int16)[:num_elements].float()
    is_kept = lanes.ge_(num_dropped_lanes - _LANES // 2)
    return is_kept.mul_(_LANES / (_LANES - num_dropped_lanes)).view(shape)
