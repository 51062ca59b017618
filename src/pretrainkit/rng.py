"""Randomness as a function of (seed, stream, index), never of history.

A *key* is a uint64. `stream_key` makes one from a seed and names; `example_keys` derives one per example; `uniform`
and `bits` draw from it. All functions are pure and vectorised: the draw for an example does not depend on which batch,
worker or rank asks for it, nor on how many draws were made before.

The mixer is SplitMix64's finaliser (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"), used as
a counter-based generator: draw j of key k is mix(k + (j + 1) * golden).
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Keys = NDArray[np.uint64]


def stream_key(seed: int, *names: str | int) -> int:
    """A 64-bit key for the stream `names` under `seed`. Different names give independent streams."""
    text = "\x1f".join([str(int(seed)), *(f"{type(n).__name__}:{n}" for n in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(values: Keys) -> Keys:
    """SplitMix64's finaliser: a bijection of uint64 in which every input bit changes about half of the output bits."""
    with np.errstate(over="ignore"):
        z = np.array(values, np.uint64, copy=True)
        z ^= z >> np.uint64(30)
        z *= _MIX_1
        z ^= z >> np.uint64(27)
        z *= _MIX_2
        z ^= z >> np.uint64(31)
    return z


def fold(keys: Keys | int, values: NDArray[np.integer] | int) -> Keys:
    """New keys from `keys` and integer `values` (broadcast), e.g. one per (stream, epoch, index)."""
    with np.errstate(over="ignore"):
        counter = (np.asarray(values).astype(np.uint64) + np.uint64(1)) * _GOLDEN
        return mix(np.asarray(keys, np.uint64) + counter)


def bits(keys: Keys, num: int) -> NDArray[np.uint64]:
    """uint64 (B,) to uint64 (B, num): `num` independent draws of 64 bits per key."""
    with np.errstate(over="ignore"):
        counters = (np.arange(1, num + 1, dtype=np.uint64)) * _GOLDEN
        return mix(np.asarray(keys, np.uint64)[..., None] + counters)


def uniform(keys: Keys, num: int) -> NDArray[np.float64]:
    """uint64 (B,) to float64 (B, num) in [0, 1), 53 bits each."""
    return (bits(keys, num) >> np.uint64(11)).astype(np.float64) * 2.0**-53
