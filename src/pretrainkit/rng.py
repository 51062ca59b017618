"""Random numbers that depend only on (seed, stream, index), not on earlier draws.

A *key* is a uint64. `stream_key` makes one from a seed and names; `example_keys` derives one per example; `uniform`
and `bits` draw from it. All functions are pure and vectorized: the draw for an example does not depend on which batch,
worker or rank computes it, nor on how many draws were made before.

The mixer is SplitMix64's finalizer (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"),
used as a counter-based generator: draw j of key k is mix(k + (j + 1) * golden).
"""

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

_WORD = (1 << 64) - 1
_BLOCK_DRAWS = 16384
"""Draws per pass, so that the intermediate arrays stay in the second-level cache."""

Keys = NDArray[np.uint64]


def stream_key(seed: int, *names: str | int) -> int:
    """Return a 64-bit key for the stream `names` under `seed`. Different names yield independent streams."""
    text = "\x1f".join([str(int(seed)), *(f"{type(n).__name__}:{n}" for n in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(values: Keys) -> Keys:
    """Apply SplitMix64's finalizer, a bijection of uint64 in which each input bit flips about half of the output."""
    z = np.array(values, np.uint64, copy=True)
    _mix_into(z, np.empty_like(z))
    return z


def fold(keys: Keys | int, values: NDArray[np.integer] | int) -> Keys:
    """Derive new keys from `keys` and integer `values` (broadcast), such as one per (stream, epoch, index)."""
    # ufuncs rather than operators: ufuncs wrap around without a warning for zero-dimensional arrays, too
    counters = np.multiply(np.add(np.asarray(values).astype(np.uint64), np.uint64(1)), _GOLDEN)
    return mix(np.add(np.asarray(keys, np.uint64), counters))


def fold_one(key: int, value: int) -> int:
    """Apply `fold` to one key and one integer, without the overhead of an array."""
    return _mix_one(key + (value + 1) * int(_GOLDEN))


def generator(key: int) -> np.random.Generator:
    """Return NumPy's PCG64 generator, seeded by `key` alone. It takes a tenth of the time of
    `numpy.random.default_rng`, because the key is already mixed."""
    return np.random.Generator(np.random.PCG64(_State(key)))  # type: ignore[arg-type]


class _State(np.random.bit_generator.ISeedSequence):
    """Seed sequence that uses the first draws of a key as the state of a bit generator."""

    def __init__(self, key: int) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint64) -> NDArray:
        words = [_mix_one(self._key + (draw + 1) * int(_GOLDEN)) for draw in range(n_words)]
        return np.array(words, np.uint64).astype(dtype, copy=False)


def _mix_one(value: int) -> int:
    z = value & _WORD
    z = (z ^ (z >> 30)) * int(_MIX_1) & _WORD
    z = (z ^ (z >> 27)) * int(_MIX_2) & _WORD
    return z ^ (z >> 31)


def bits(keys: Keys, num: int) -> NDArray[np.uint64]:
    """Draw `num` independent 64-bit integers per key: uint64 (...) to uint64 (..., num)."""
    keys = np.asarray(keys, np.uint64)
    out = np.empty((keys.size, num), np.uint64)
    for rows, drawn in _blocks(keys.reshape(-1), num):
        out[rows] = drawn
    return out.reshape(*keys.shape, num)


def uniform(keys: Keys, num: int) -> NDArray[np.float64]:
    """Draw `num` floats in [0, 1) with 53 bits per key: uint64 (...) to float64 (..., num)."""
    keys = np.asarray(keys, np.uint64)
    out = np.empty((keys.size, num), np.float64)
    for rows, drawn in _blocks(keys.reshape(-1), num):
        drawn >>= np.uint64(11)
        np.multiply(drawn.view(np.int64), 2.0**-53, out=out[rows])  # signed integers are converted faster
    return out.reshape(*keys.shape, num)


def _blocks(keys: Keys, num: int) -> Iterator[tuple[slice, Keys]]:
    """Yield the first `num` draws of (B,) keys in blocks of rows, always in the same buffer (R, num)."""
    num_rows = max(1, _BLOCK_DRAWS // max(1, num))
    buffer, scratch = np.empty((2, min(num_rows, len(keys)), num), np.uint64)
    counters = np.arange(1, num + 1, dtype=np.uint64) * _GOLDEN
    for start in range(0, len(keys), num_rows):
        rows = slice(start, min(start + num_rows, len(keys)))
        drawn = buffer[: rows.stop - start]
        np.add(keys[rows, None], counters, out=drawn)
        _mix_into(drawn, scratch[: len(drawn)])
        yield rows, drawn


def _mix_into(z: Keys, scratch: Keys) -> None:
    np.right_shift(z, np.uint64(30), out=scratch)
    z ^= scratch
    z *= _MIX_1
    np.right_shift(z, np.uint64(27), out=scratch)
    z ^= scratch
    z *= _MIX_2
    np.right_shift(z, np.uint64(31), out=scratch)
    z ^= scratch
