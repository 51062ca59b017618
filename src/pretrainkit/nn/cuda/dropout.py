"""Random numbers for dropout that are cheap in compiled code on a GPU.

Inductor computes four 32-bit numbers per element there and uses one of them. Here torch's generator writes 16 bits per
element first, and the compiled code reads them. As on a CPU, the rate is rounded to a multiple of 2**-16 (0.1 becomes
0.100006), and kept elements are scaled by the exact inverse. Measurements: docs/gpu.md.
"""

import math

import torch
from torch import Tensor

_LANES = 1 << 16


def has_cheap_dropout(x: Tensor) -> bool:
    """True if `keep_factors` is used for `x`. Outside of compiled code torch's own kernel is as fast."""
    return x.is_cuda and torch.compiler.is_compiling()


def keep_factors(x: Tensor, rate: float) -> Tensor:
    """Return float32 factors of the shape of `x`: 0 with probability `rate`, otherwise 1 / (1 - rate)."""
    num_dropped_lanes = round(rate * _LANES)
    # Lanes are signed and start at -32768, so the lowest `num_dropped_lanes` of 65536 values are dropped.
    is_kept = _random_lanes(x) >= num_dropped_lanes - _LANES // 2
    return is_kept * (_LANES / (_LANES - num_dropped_lanes))


@torch.library.custom_op("pretrainkit::random_lanes", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _random_lanes(like: Tensor) -> Tensor:
    """Return uniformly distributed int16 numbers of the shape of `like`, from the generator of its device. It is an
    operator so that the compiler does not replace the generator by its own."""
    num_elements = math.prod(like.shape)
    draws = torch.empty(-(-num_elements // 4), dtype=torch.int64, device=like.device).random_(-(2**63), None)
    return draws.view(torch.int16)[:num_elements].view(like.shape)


@_random_lanes.register_fake
def _allocate_lanes(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.int16, device=like.device)
