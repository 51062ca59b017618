"""From the tokens of one modality to vectors, and back to its vocabulary.

Dimensions: n tokens, D width, V vocabulary, B rows, C channels, F values of a patch, E width of a given vector, P
positions, W wavelengths.
Sources of positions: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; in two dimensions Chen et al. 2021,
https://arxiv.org/abs/2104.02057. On grids that are no squares the original's rows and columns change places; ours do
not.
"""

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.recipes.fourm.config import FourMModelConfig
from pretrainkit.recipes.fourm.inputs import InputTokens
from pretrainkit.recipes.fourm.modality import MAX_POSITIONS, Modality

PIXEL_MEAN: tuple[float, ...] = (0.485, 0.456, 0.406)
PIXEL_DEVIATION: tuple[float, ...] = (0.229, 0.224, 0.225)
"""Of ImageNet's colours, in [0, 1]: images of three channels are standardized by them, others to [-1, 1]."""


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
    angle_PW = position_P[:, None] * 10_000.0 ** -(np.arange(num) / num)
    return np.concatenate((np.sin(angle_PW), np.cos(angle_PW)), axis=1)


class Places(nn.Module):
    """Positions of one modality."""

    def __init__(self, modality: Modality, width: int) -> None:
        super().__init__()
        self.positions: nn.Parameter | None = None
        table = None
        if modality.has_learned_positions:
            self.positions = nn.Parameter(torch.zeros(modality.max_tokens, width))
        elif modality.kind in ("pixels", "image"):
            table = grid_table(*modality.grid, width)
        else:
            table = line_table(MAX_POSITIONS, width)
        self.register_buffer("fixed_positions", table, persistent=False)
        self.fixed_positions: Tensor | None

    def places(self, positions_n: Tensor) -> Tensor:
        """(n, D)."""
        table = self.fixed_positions if self.positions is None else self.positions
        assert table is not None
        return F.embedding(positions_n, table)

    def initialise(self, deviation: float) -> None:
        """Learned positions are normal."""
        if self.positions is not None:
            self.positions.normal_(std=deviation)


class InputEmbedding(Places):
    """Of the encoder."""

    def __init__(self, modality: Modality, config: FourMModelConfig) -> None:
        super().__init__(modality, config.hidden_size)
        width = config.hidden_size
        self.kind, self.patch_size = modality.kind, modality.patch_size
        self.table = self.patch = self.vector = self.bottleneck = None
        if modality.kind == "pixels":
            assert modality.patch_size is not None
            assert modality.num_channels is not None
            self.patch = nn.Linear(modality.num_channels * modality.patch_size**2, width, bias=False)
            is_rgb = modality.num_channels == len(PIXEL_MEAN)
            mean_C = np.array(PIXEL_MEAN if is_rgb else (0.5,) * modality.num_channels)
            deviation_C = np.array(PIXEL_DEVIATION if is_rgb else (0.5,) * modality.num_channels)
            # A factor and a summand turn bytes into numbers around 0; made by NumPy to have values on "meta" too.
            for name, values_C in (("scale", (deviation_C * 255) ** -1), ("shift", -mean_C / deviation_C)):
                self.register_buffer(f"pixel_{name}", torch.from_numpy(values_C.astype(np.float32)), persistent=False)
            self.pixel_scale: Tensor
            self.pixel_shift: Tensor
        elif modality.kind == "vectors":
            assert modality.vector_width is not None
            inner = config.vector_bottleneck
            self.bottleneck = None if inner is None else nn.Linear(modality.vector_width, inner)
            self.vector = nn.Linear(inner or modality.vector_width, width)
        else:
            assert modality.vocab_size is not None
            self.table = nn.Parameter(torch.zeros(modality.vocab_size, width))

    def forward(self, tokens: InputTokens) -> Tensor:
        """(n, D), without positions."""
        if self.patch is not None:
            return F.linear(self._patches(tokens), self.patch.weight)
        if self.vector is not None:
            vectors_nE = self._vectors(tokens)
            return self.vector(vectors_nE if self.bottleneck is None else self.bottleneck(vectors_nE))
        assert self.table is not None
        return F.embedding(tokens.ids_n, self.table)

    def _patches(self, tokens: InputTokens) -> Tensor:
        """float32 (n, F): standardized pixels of the patches, row by row, column by column, channel fastest."""
        assert tokens.values is not None
        assert self.patch_size is not None
        patches = cut_patches(tokens.values, self.patch_size)
        row_n, column_n = tokens.ids_n // patches.shape[2], tokens.ids_n % patches.shape[2]
        return (patches[tokens.rows_n, row_n, column_n].float() * self.pixel_scale + self.pixel_shift).flatten(1)

    def _vectors(self, tokens: InputTokens) -> Tensor:
        """(n, E); zeros in the place of what is hidden."""
        assert tokens.values is not None
        found_nE = tokens.values[tokens.rows_n, tokens.ids_n.clamp(min=0)]
        return found_nE * (tokens.ids_n >= 0)[:, None]

    def initialise(self, deviation: float) -> None:
        """Tables are normal; linear layers are the model's business."""
        super().initialise(deviation)
        if self.table is not None:
            self.table.normal_(std=deviation)


class TargetEmbedding(Places):
    """Of the decoder. Sequences read the token before; images read that something is missing."""

    def __init__(self, modality: Modality, config: FourMModelConfig) -> None:
        super().__init__(modality, config.hidden_size)
        assert modality.vocab_size is not None
        shape = (modality.vocab_size, config.hidden_size)
        is_read = modality.kind == "sequence"
        self.table = nn.Parameter(torch.zeros(shape)) if is_read else None
        self.head = None if is_read and config.tied_logits else nn.Parameter(torch.zeros(shape))

    def look_up(self, ids_n: Tensor) -> Tensor:
        """(n, D)."""
        assert self.table is not None
        return F.embedding(ids_n, self.table)

    def output_table(self) -> nn.Parameter:
        """(V, D): what predicts ids."""
        found = self.table if self.head is None else self.head
        assert found is not None
        return found

    def initialise(self, deviation: float) -> None:
        """Tables that are only read are normal, those that predict uniform."""
        super().initialise(deviation)
        limit = math.sqrt(6 / sum(self.output_table().shape))
        self.output_table().uniform_(-limit, limit)
        if self.head is not None and self.table is not None:
            self.table.normal_(std=deviation)


def cut_patches(pixels_BCHW: Tensor, patch_size: int) -> Tensor:
    """A view: (B, rows, columns, p, p, C) of patches of p pixels a side."""
    B, C, height, width = pixels_BCHW.shape
    rows, columns = height // patch_size, width // patch_size
    return pixels_BCHW.view(B, C, rows, patch_size, columns, patch_size).permute(0, 2, 4, 3, 5, 1)
