"""Fixed sine-cosine positions of patches, as a grid of the square images that the masked autoencoder was made for.

Dimensions: L patches, D width.
Source: https://github.com/facebookresearch/mae (util/pos_embed.py), whose columns come first.
"""

import numpy as np
import torch
from torch import Tensor


def position_table(num_patches: int, width: int, grid_width: int) -> Tensor:
    """float32 (1 + L, D): row 0, of the class token, is 0. Computed in float64.

    A longer table begins with the rows of a shorter one of the same `grid_width`, so lengths change without training.

    Args:
        num_patches: L.
        width: D, a multiple of 4.
        grid_width: Patches of a row of the grid.
    """
    omega = 10_000.0 ** -(np.arange(width // 4) / (width / 4))
    row_L, column_L = np.divmod(np.arange(num_patches), grid_width)
    angles = [column_L[:, None] * omega, row_L[:, None] * omega]
    table = np.zeros((1 + num_patches, width))
    table[1:] = np.concatenate([wave(angle) for angle in angles for wave in (np.sin, np.cos)], axis=1)
    return torch.from_numpy(table.astype(np.float32))


def fitted_table(table: Tensor, num_patches: int, grid_width: int) -> Tensor:
    """A copy of a table for another number of patches: cut, or going on by the formula, whatever its rows are by now.

    Args:
        table: (1 + patches, D).
        num_patches: Of the copy.
        grid_width: Patches of a row of the grid.
    """
    longer = position_table(num_patches, table.shape[1], grid_width).to(table)
    kept = min(len(table), len(longer))
    return torch.cat((table[:kept], longer[kept:]))
