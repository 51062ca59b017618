"""Fixed positions: sines and cosines of wavelengths up to 10,000 (Vaswani et al. 2017,
https://arxiv.org/abs/1706.03762; in two dimensions Chen et al. 2021, https://arxiv.org/abs/2104.02057).

NumPy computes them, so that they also have values in a model on "meta".

Dimensions: P positions, D width.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def line_table(num: int, width: int) -> Tensor:
    """Return float32 (P, D) for positions 0 to num - 1: all sines, then all cosines. D is even."""
    return torch.from_numpy(_sinusoids(num, width // 2).astype(np.float32))


def grid_table(rows: int, columns: int, width: int) -> Tensor:
    """Return float32 (P, D) for the places of a grid, row by row: sines and cosines of the row, then of the column. D
    is a multiple of 4. On grids that are not square, 4M's original exchanges rows and columns; this function does
    not."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    table = np.concatenate((_sinusoids(rows, width // 4)[row], _sinusoids(columns, width // 4)[column]), axis=1)
    return torch.from_numpy(table.astype(np.float32))


@lru_cache(maxsize=4)  # a model of 4M has dozens of equal tables
def _sinusoids(num: int, num_waves: int) -> NDArray[np.float64]:
    angles = np.arange(num)[:, None] * 10_000.0 ** -(np.arange(num_waves) / num_waves)
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=1)
