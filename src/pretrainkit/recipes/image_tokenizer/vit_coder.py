"""Transformers over patches, to latents and back.

Positions are fixed sines and cosines of a grid, stretched to whatever grid comes.

Dimensions: B images, C channels, H x W pixels, h x w places, T = B h w tokens, D width.
Source: section 10.1 of the specification (4M-21, https://arxiv.org/abs/2406.09406); the last feed-forward layer with
tanh: Yu et al. 2021, https://arxiv.org/abs/2110.04627.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.autocast import in_float32
from pretrainkit.nn.blocks import LayerNorm, PlainPreNormBlock
from pretrainkit.nn.row_layout import RowLayout
from pretrainkit.recipes.image_tokenizer.grid_positions import grid_table, stretched
from pretrainkit.recipes.image_tokenizer.model_config import ViTCoderConfig

_EPSILON = 1e-6


class LastMLP(nn.Module):
    """x + W tanh(U norm(x)), in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(width, _EPSILON)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_TD: Tensor) -> Tensor:
        """(T, D) to float32 (T, D)."""
        with in_float32(x_TD):
            x_TD = x_TD.float()
            return x_TD + self.down(torch.tanh(self.up(self.norm(x_TD))))


class _Transformer(nn.Module):
    """Blocks over the places of a grid."""

    positions_1Dhw: Tensor

    def __init__(self, config: ViTCoderConfig, grid: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.register_buffer("positions_1Dhw", grid_table(grid, grid, width), persistent=False)
        self.layers = nn.ModuleList(
            PlainPreNormBlock(
                width,
                config.num_heads,
                4 * width,
                activation="gelu",
                attention_dropout_rate=0.0,
                epsilon=_EPSILON,
            )
            for _ in range(config.num_layers)
        )
        self.last_mlp = LastMLP(width) if config.has_last_mlp else None

    def forward(self, x_BDhw: Tensor) -> Tensor:
        """(B, D, h, w) to tokens (T, D)."""
        B, _, h, w = x_BDhw.shape
        x_BDhw = x_BDhw + stretched(self.positions_1Dhw, h, w).to(x_BDhw.dtype)
        x_TD = x_BDhw.flatten(2).transpose(1, 2).flatten(0, 1)
        layout = RowLayout(B, h * w)
        for layer in self.layers:
            x_TD = layer(x_TD, layout)
        return x_TD if self.last_mlp is None else self.last_mlp(x_TD)

    def blocks(self) -> list[nn.Module]:
        """To compile and shard one by one."""
        return list(self.layers)


class ViTEncoder(_Transformer):
    """Images, or maps of features, to (B, D, h, w)."""

    def __init__(self, config: ViTCoderConfig, num_channels: int, patch_size: int, grid: int) -> None:
        """`patch_size` is 1 for maps of features."""
        super().__init__(config, grid)
        self.width = config.hidden_size
        self.patch = nn.Conv2d(num_channels, config.hidden_size, patch_size, patch_size)

    def forward(self, values_BCHW: Tensor) -> Tensor:
        x_BDhw = self.patch(values_BCHW)
        B, _, h, w = x_BDhw.shape
        return super().forward(x_BDhw).view(B, h, w, -1).permute(0, 3, 1, 2)


class ViTDecoder(_Transformer):
    """Latents (B, D, h, w) to images, or to maps of features."""

    def __init__(self, config: ViTCoderConfig, num_channels: int, patch_size: int, grid: int) -> None:
        super().__init__(config, grid)
        self.width, self.patch_size, self.num_channels = config.hidden_size, patch_size, num_channels
        self.out = nn.Linear(config.hidden_size, num_channels * patch_size**2)
        self.convolutions = nn.ModuleList(ConvNeXtBlock(num_channels) for _ in range(config.num_output_convolutions))

    def forward(self, x_BDhw: Tensor) -> Tensor:
        B, _, h, w = x_BDhw.shape
        patches_TF = self.out(super().forward(x_BDhw))
        p, C = self.patch_size, self.num_channels
        found_BCHW = patches_TF.view(B, h, w, C, p, p).permute(0, 3, 1, 4, 2, 5).reshape(B, C, h * p, w * p)
        for convolution in self.convolutions:
            found_BCHW = convolution(found_BCHW)
        return found_BCHW


class ConvNeXtBlock(nn.Module):
    """A wide convolution of each channel, then a feed-forward layer at each place (https://arxiv.org/abs/2201.03545)."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(num_channels, num_channels, 7, padding=3, groups=num_channels)
        self.norm = LayerNorm(num_channels, _EPSILON)
        self.up = nn.Linear(num_channels, 4 * num_channels)
        self.down = nn.Linear(4 * num_channels, num_channels)
        self.scale = nn.Parameter(torch.full((num_channels,), 1e-6))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        x_BHWC = self.convolution(x_BCHW).permute(0, 2, 3, 1)
        x_BHWC = self.scale * self.down(F.gelu(self.up(self.norm(x_BHWC))))
        return x_BCHW + x_BHWC.permute(0, 3, 1, 2)
