"""Random numbers of dropout that are cheap on a CPU.

torch draws one Bernoulli variable per element there. Here one 64-bit draw serves four elements of 16 bits each. The
rate is rounded to a multiple of 2**-16 (0.1 becomes 0.100006) and what is kept is scaled by the exact inverse: the mean
is unchanged. It stays because runs that are resumed, and the golden losses, drew their numbers so. Measured:
benchmarks/RESULTS.md, by hand.
"""

import math

import torch
from torch import Tensor

_LANES = 1 << 16


def keep_factors(shape: torch.Size | tuple[int, ...], rate: float) -> Tensor:
    """float32 of `shape` on the CPU: 0 with probability `rate`, else 1 / (1 - rate), independently."""
    num_dropped_lanes = round(rate * _LANES)
    num_elements = math.prod(shape)
    draws = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(-(2**63), None)
    lanes = draws.view(torch.int16)[:num_elements].float()
    # Lanes are signed: they run from -32768, so the lowest `num_dropped_lanes` of 65536 are dropped.
    is_kept = lanes.ge_(num_dropped_lanes - _LANES // 2)
    return is_kept.mul_(_LANES / (_LANES - num_dropped_lanes)).view(shape)
