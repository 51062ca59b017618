"""Fixed sines and cosines of the places of a grid.

Dimensions: D width, h x w places.
Source: Chen et al. 2021, https://arxiv.org/abs/2104.02057. On grids that are no squares the original's rows and columns
change places; ours do not.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_BASE = 10_000.0


def grid_table(rows: int, columns: int, width: int) -> Tensor:
    """float32 (1, D, h, w): sines and cosines of the row, then of the column. D is a multiple of 4.

    Made by NumPy, so that it has its values in a model on "meta" too.
    """
    rate_W = _BASE ** -(np.arange(width // 4) / (width // 4))
    row_Wh, column_Ww = rate_W[:, None] * np.arange(rows), rate_W[:, None] * np.arange(columns)
    down = np.concatenate((np.sin(row_Wh), np.cos(row_Wh)))[:, :, None].repeat(columns, axis=2)
    right = np.concatenate((np.sin(column_Ww), np.cos(column_Ww)))[:, None, :].repeat(rows, axis=1)
    return torch.from_numpy(np.concatenate((down, right)).astype(np.float32)[None])


def stretched(positions_1Dhw: Tensor, rows: int, columns: int) -> Tensor:
    """For another grid, by bicubic interpolation."""
    if positions_1Dhw.shape[2:] == (rows, columns):
        return positions_1Dhw
    return F.interpolate(positions_1Dhw, (rows, columns), mode="bicubic", align_corners=False)
