"""Random numbers as functions of the examples' keys, on any device. They do not depend on the batch, microbatch or rank
of an example.

Dimensions: B examples.
"""

import math

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131
"""0x9E3779B97F4A7C15 as int64."""
_MIX_1 = -4658895280553007687
_MIX_2 = -7723592293110705685
"""SplitMix64's multipliers 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB as int64."""


def fold(keys: Tensor, values: Tensor | int) -> Tensor:
    """Combine int64 keys with integers (broadcast) to new keys; equals `pretrainkit.rng.fold`."""
    if isinstance(values, int):
        values = torch.full((), values, dtype=torch.int64, device=keys.device)
    z = keys + (values + 1) * _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def uniform(keys_B: Tensor, stream: int, *shape: int) -> Tensor:
    """Return uniform numbers in [0, 1) with 24 random bits each, float32 (B, *shape)."""
    indices = torch.arange(math.prod(shape), device=keys_B.device)
    bits = fold(fold(keys_B, stream)[:, None], indices)
    return (_shift(bits, 40).float() * 2.0**-24).view(len(keys_B), *shape)


def normal(keys_B: Tensor, stream: int, *shape: int) -> Tensor:
    """Return standard normal numbers, float32 (B, *shape): Box-Muller, two numbers from two uniform ones."""
    num = math.prod(shape)
    half = -(-num // 2)
    first_BN, second_BN = uniform(keys_B, stream, 2 * half).chunk(2, dim=1)
    radius_BN = (-2 * (1 - first_BN).log()).sqrt()
    angle_BN = 2 * math.pi * second_BN
    numbers_BN = torch.cat((radius_BN * angle_BN.cos(), radius_BN * angle_BN.sin()), dim=1)
    return numbers_BN[:, :num].reshape(len(keys_B), *shape)


def _shift(z: Tensor, num: int) -> Tensor:
    """Shift to the right by `num` bits, as for unsigned integers."""
    return (z >> num) & ((1 << (64 - num)) - 1)
