"""Random subsets for many examples at once, each drawn with its own key.

Source: R. Floyd in J. Bentley 1987, "A sample of brilliance".
"""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rng import Keys, bits

Ints = NDArray[np.int64]

_32 = np.uint64(32)


def subsets(keys: Keys, num: Ints, size: Ints) -> Ints:
    """Draw one random subset per key: `num[b]` distinct values of range(size[b]), all subsets equally likely.

    Floyd's algorithm in lock-step over the rows: draw number j of n is from range(size - n + j + 1); if that value is
    already chosen, use size - n + j instead. It needs n draws, not `size`, and no sort. The draws are 32 bits wide, so
    the probabilities are equal up to a relative error of size / 2^32.

    Returns:
        (sum of num,), row after row, ascending within each.
    """
    num_rows, most = len(num), int(num.max(initial=0))
    if not most:
        return np.empty(0, np.int64)
    width = int(size.max()) + 1  # the last column absorbs the writes of completed rows
    base = np.arange(num_rows, dtype=np.int64) * width
    turns = np.arange(most, dtype=np.int64)[:, None]
    last = (size - num) + turns
    draws = bits(keys, most).T.copy()
    draws >>= _32
    draws *= (last + 1).view(np.uint64)
    draws >>= _32
    drawn = draws.view(np.int64)
    drawn += base
    last += base
    if int(num.min()) < most:
        is_done = turns >= num
        drawn[is_done] = last[is_done] = np.broadcast_to(base + (width - 1), drawn.shape)[is_done]
    is_chosen = np.zeros(num_rows * width, np.bool_)
    for turn in range(most):
        picked = drawn[turn]
        np.copyto(picked, last[turn], where=is_chosen[picked])
        is_chosen[picked] = True
    is_chosen[base + (width - 1)] = False
    chosen = np.flatnonzero(is_chosen)
    chosen -= np.repeat(base, num)
    return chosen


def slots(num: Ints) -> Ints:
    """Return (sum of num,): the values 0 .. num[b] - 1 of every row b."""
    ends = np.cumsum(num)
    return np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - np.repeat(ends - num, num)
