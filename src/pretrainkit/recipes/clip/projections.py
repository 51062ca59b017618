"""From the width of a tower to that of the embeddings, initialised as torch does.

Dimensions: B examples, D width of the tower, E width of the embeddings.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.blocks import LayerNorm
from pretrainkit.nn.dropout import dropout
from pretrainkit.recipes.clip.config import ProjectionConfig

_EPSILON = 1e-5


class LinearProjection(nn.Module):
    """One matrix without bias."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, dim, bias=False)

    def forward(self, x_BD: Tensor) -> Tensor:
        """(B, D) to (B, E)."""
        return self.linear(x_BD)


class ResidualProjection(nn.Module):
    """Linear, GELU, linear, dropout, sum with the first, layer norm: the `complex` projection of ZeroVL."""

    def __init__(self, width: int, dim: int, dropout_rate: float) -> None:
        super().__init__()
        self.dropout_rate = dropout_rate
        self.linear = nn.Linear(width, dim)
        self.inner = nn.Linear(dim, dim)
        self.norm = LayerNorm(dim, _EPSILON)

    def forward(self, x_BD: Tensor) -> Tensor:
        """(B, D) to (B, E)."""
        x_BE = self.linear(x_BD)
        inner_BE = dropout(self.inner(F.gelu(x_BE)), self.dropout_rate, is_training=self.training)
        return self.norm(x_BE + inner_BE)


Projection = LinearProjection | ResidualProjection


def build_projection(config: ProjectionConfig, width: int) -> Projection:
    """The projection of a tower of this width."""
    if config.kind == "linear":
        return LinearProjection(width, config.dim)
    return ResidualProjection(width, config.dim, config.dropout)
