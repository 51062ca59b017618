"""Fixed tables of positions: sines and cosines.

Dimensions: P positions, D width, W wavelengths.
Sources: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; in two dimensions Chen et al. 2021,
https://arxiv.org/abs/2104.02057. On grids that are no squares the original's rows and columns change places; ours do
not.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BASE = 10_000.0


def line_table(num: int, width: int) -> Tensor:
    """float32 (P, D) of positions 0 to num - 1: all sines, then all cosines. D is even."""
    return torch.from_numpy(_line(num, width).copy())


@lru_cache(maxsize=4)
def _line(num: int, width: int) -> NDArray[np.float32]:
    """As `line_table`. Modalities have equal tables, in a model of 21 of them dozens."""
    return _waves(np.arange(num), width // 2).astype(np.float32)


def grid_table(rows: int, columns: int, width: int) -> Tensor:
    """float32 (P, D) of the places of a grid, row by row: sines and cosines of the row, then of the column. D is a
    multiple of 4."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    by_row, by_column = _waves(np.arange(rows), width // 4), _waves(np.arange(columns), width // 4)
    table = np.concatenate((by_row[row], by_column[column]), axis=1)
    return torch.from_numpy(table.astype(np.float32))


def _waves(position_P: NDArray[np.int64], num: int) -> NDArray[np.float64]:
    """(P, 2 W)."""
    angle_PW = position_P[:, None] * _BASE ** -(np.arange(num) / num)
    return np.concatenate((np.sin(angle_PW), np.cos(angle_PW)), axis=1)
