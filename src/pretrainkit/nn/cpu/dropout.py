"""Random numbers for dropout that are cheap on a CPU.

torch draws one Bernoulli variable per element there. Here one 64-bit draw serves four elements of 16 bits each. The
rate is rounded to a multiple of 2**-16 (0.1 becomes 0.100006), and kept elements are scaled by the exact inverse, so
the mean is unchanged. Do not change how numbers are drawn: resumed runs and the golden losses depend on it.
Measurements: benchmarks/RESULTS.md, section "By hand".
"""

import math

import torch
from torch import Tensor

_LANES = 1 << 16


def keep_factors(shape: torch.Size | tuple[int, ...], rate: float) -> Tensor:
    """Return float32 factors of `shape` on the CPU: 0 with probability `rate`, otherwise 1 / (1 - rate),
    independently."""
    num_dropped_lanes = round(rate * _LANES)
    num_elements = math.prod(shape)
    draws = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(-(2**63), None)
    lanes = draws.view(torch.int16)[:num_elements].float()
    # Lanes are signed and start at -32768, so the lowest `num_dropped_lanes` of 65536 values are dropped.
    is_kept = lanes.ge_(num_dropped_lanes - _LANES // 2)
    return is_kept.mul_(_LANES / (_LANES - num_dropped_lanes)).view(shape)
