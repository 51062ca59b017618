"""Pseudo-random permutations of [0, size) that are computed per index, without a table of all indices.

Above `_TABLE_SIZE`, a generalized Feistel network permutes (Black and Rogaway 2002, "Ciphers with arbitrary finite
domains", section 5): an index is written as two digits below a and b, a * b slightly above the size, and each round
adds a keyed hash of one digit to the other. Results outside of [0, size) pass through the network again ("cycle
walking"), which makes the map a bijection; this is rare because a * b < size + sqrt(size) + 1. Small domains are
permuted by sorting random numbers, because a Feistel network does not reach all of their permutations evenly.
"""

import math

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng

Ints = NDArray[np.int64]

_TABLE_SIZE = 1024
"""Up to this size, a permutation is the argsort of random numbers, hence as uniform as these numbers."""
_ROUNDS = 6
_BLOCK = 8192
"""Indices per pass, so that all intermediate arrays stay in the second-level cache."""
MAX_SIZE = 2**62
"""Digits must stay below 2^31."""


def permute(index: Ints, size: int, keys: NDArray[np.uint64]) -> Ints:
    """Return the image of each index under the permutation of [0, size) for a key.

    Args:
        index: (N,) in [0, size).
        size: Size of the domain, 1 to 2^62.
        keys: (1,) for one permutation of all indices, or (N,) for one permutation per index.

    Returns:
        (N,) in [0, size): for each key a bijection of the index.
    """
    if not 0 < size <= MAX_SIZE:
        raise ValueError(f"cannot permute a domain of {size}; its size must be from 1 to {MAX_SIZE}")
    if size <= _TABLE_SIZE:
        return _permute_by_table(index, size, keys)
    out = np.empty(len(index), np.int64)
    for start in range(0, len(index), _BLOCK):
        part = slice(start, start + _BLOCK)
        out[part] = _walk(index[part].astype(np.uint64), size, keys if len(keys) == 1 else keys[part])
    return out


def _permute_by_table(index: Ints, size: int, keys: NDArray[np.uint64]) -> Ints:
    if len(keys) == 1:
        return np.argsort(rng.bits(keys, size)[0], kind="stable")[index]
    out = np.empty(len(index), np.int64)
    distinct, group = np.unique(keys, return_inverse=True)
    tables_per_pass = max(1, _BLOCK * 8 // size)
    for start in range(0, len(distinct), tables_per_pass):
        tables = np.argsort(rng.bits(distinct[start : start + tables_per_pass], size), axis=1, kind="stable")
        rows = np.flatnonzero((group >= start) & (group < start + tables_per_pass))
        out[rows] = tables[group[rows] - start, index[rows]]
    return out


def _walk(index: NDArray[np.uint64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    num_high = math.isqrt(size - 1) + 1  # bases of the digits; num_high * num_low is slightly above size
    num_low = -(-size // num_high)
    round_keys = rng.bits(keys, _ROUNDS).T
    out = _feistel(index, num_high, num_low, round_keys)
    outside = np.flatnonzero(out >= size)  # cycle walking: at most about one in sqrt(size)
    while len(outside):
        own_keys = round_keys if len(keys) == 1 else round_keys[:, outside]
        out[outside] = _feistel(out[outside], num_high, num_low, own_keys)
        outside = outside[out[outside] >= size]
    return out


def _feistel(
    index: NDArray[np.uint64], num_high: int, num_low: int, round_keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Permute uint64 (N,) values below num_high * num_low; `round_keys` is (rounds, 1 or N)."""
    high64 = index // np.uint64(num_low)
    digits = [high64.astype(np.uint32), (index - high64 * np.uint64(num_low)).astype(np.uint32)]
    bases = (num_high, num_low)
    hashed, scratch = np.empty(len(index), np.uint32), np.empty(len(index), np.uint32)
    product = np.empty(len(index), np.uint64)
    for i, key in enumerate(round_keys):
        changed, base = digits[i % 2], bases[i % 2]
        _hash32(digits[1 - i % 2], key, hashed, scratch)
        np.copyto(product, hashed)
        product *= np.uint64(base)  # hash * base / 2^32 is in [0, base)
        product >>= np.uint64(32)
        np.copyto(scratch, product, casting="same_kind")
        changed += scratch
        np.subtract(changed, np.uint32(base), out=scratch)  # wraps round to a large number where changed < base
        np.minimum(changed, scratch, out=changed)
    product[:] = digits[0]
    product *= np.uint64(num_low)
    product += digits[1]
    return product


def _hash32(
    values: NDArray[np.uint32], key: NDArray[np.uint64], out: NDArray[np.uint32], scratch: NDArray[np.uint32]
) -> None:
    """Mix 32 bits with a key: the multiplications and shifts of Wellons' lowbias32
    (https://nullprogram.com/blog/2018/07/31/)."""
    np.add(values, key.astype(np.uint32), out=out)
    np.right_shift(out, np.uint32(16), out=scratch)
    out ^= scratch
    out *= np.uint32(0x7FEB352D)
    np.right_shift(out, np.uint32(15), out=scratch)
    out ^= scratch
    out ^= (key >> np.uint64(32)).astype(np.uint32)
    out *= np.uint32(0x846CA68B)
    np.right_shift(out, np.uint32(16), out=scratch)
    out ^= scratch
