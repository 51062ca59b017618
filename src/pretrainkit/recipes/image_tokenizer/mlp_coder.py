"""Residual feed-forward layers at each place: encoder and decoder of features.

Dimensions: B images, C channels in, E out, h x w places, D width.
Source: Bachmann et al. 2023, https://arxiv.org/abs/2306.13575 ("BottleneckMLP").
"""

import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.blocks import LayerNorm
from pretrainkit.recipes.image_tokenizer.model_config import MLPCoderConfig

_EPSILON = 1e-5


class _Block(nn.Module):
    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(width, _EPSILON)
        self.up = nn.Linear(width, inner_width)
        self.down = nn.Linear(inner_width, width)

    def forward(self, x_BhwD: Tensor) -> Tensor:
        return x_BhwD + self.down(F.gelu(self.up(self.norm(x_BhwD))))


class MLPCoder(nn.Module):
    """(B, C, h, w) to (B, E, h, w)."""

    def __init__(self, config: MLPCoderConfig, num_in: int | None = None, num_out: int | None = None) -> None:
        """None: the width of the stream."""
        super().__init__()
        self.width = config.width
        self.first = nn.Linear(num_in or config.width, config.width)
        self.layers = nn.ModuleList(
            _Block(config.width, config.expansion * config.width) for _ in range(config.num_blocks)
        )
        self.last = nn.Linear(config.width, num_out or config.width)

    def forward(self, x_BChw: Tensor) -> Tensor:
        x_BhwD = self.first(x_BChw.permute(0, 2, 3, 1))
        for layer in self.layers:
            x_BhwD = layer(x_BhwD)
        return self.last(x_BhwD).permute(0, 3, 1, 2)

    def blocks(self) -> list[nn.Module]:
        """To compile and shard one by one."""
        return list(self.layers)
