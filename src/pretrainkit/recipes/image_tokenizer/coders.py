"""Encoders from images to latents, and decoders from latents to images: transformers, convolutions, MLPs.

Dimensions: B images, C channels, H x W pixels, h x w grid positions, T = B h w tokens, D width.
Sources: 4M-21 (https://arxiv.org/abs/2406.09406), appendix on tokenizers; the released code of `apple/ml-4m`.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import Float32Module, in_float32, residual
from pretrainkit.nn import positions
from pretrainkit.nn.blocks import LayerNorm, PlainPreNormBlock
from pretrainkit.nn.row_layout import RowLayout
from pretrainkit.recipes.image_tokenizer.model_config import ConvCoderConfig, MLPCoderConfig, ViTCoderConfig

_MOST_GROUPS = 32
_EPSILON = 1e-6


def grid_table(rows: int, columns: int, width: int) -> Tensor:
    """Return the position table of `nn/positions.py` as a map, float32 (1, D, h, w)."""
    return positions.grid_table(rows, columns, width).T.reshape(1, width, rows, columns).contiguous()


def stretched(positions_1Dhw: Tensor, rows: int, columns: int) -> Tensor:
    """Resize a position table to another grid by bicubic interpolation."""
    if positions_1Dhw.shape[2:] == (rows, columns):
        return positions_1Dhw
    return F.interpolate(positions_1Dhw, (rows, columns), mode="bicubic", align_corners=False)


class ResidualMLP(nn.Module):
    """x + W activation(U norm(x))."""

    def __init__(
        self, width: int, inner_width: int, activation: Callable[[Tensor], Tensor] = F.gelu, epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.activation = activation
        self.norm = LayerNorm(width, epsilon)
        self.up = nn.Linear(width, inner_width)
        self.down = nn.Linear(inner_width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


class _Float32MLP(ResidualMLP, Float32Module):
    def forward(self, x: Tensor) -> Tensor:
        with in_float32(x):
            return super().forward(x.float())


class _Layers(nn.Module):
    """An encoder or decoder whose blocks are in `layers`."""

    layers: nn.ModuleList

    def blocks(self) -> list[nn.Module]:
        """List the submodules to compile and shard one by one."""
        return list(self.layers)


class _Transformer(_Layers):
    """Transformer blocks over the positions of a grid."""

    positions_1Dhw: Tensor

    def __init__(self, config: ViTCoderConfig, grid: int) -> None:
        super().__init__()
        width, grid = config.hidden_size, config.position_grid or grid
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
        # Source: Yu et al. 2021, https://arxiv.org/abs/2110.04627.
        self.last_mlp = _Float32MLP(width, 4 * width, torch.tanh, _EPSILON) if config.has_last_mlp else None

    def forward(self, x_BDhw: Tensor) -> Tensor:
        """Map (B, D, h, w) to tokens (T, D)."""
        B, _, h, w = x_BDhw.shape
        x_BDhw = x_BDhw + stretched(self.positions_1Dhw, h, w).to(x_BDhw.dtype)
        x_TD = residual(x_BDhw.flatten(2).transpose(1, 2).flatten(0, 1))
        layout = RowLayout(B, h * w)
        for layer in self.layers:
            x_TD = layer(x_TD, layout)
        return x_TD if self.last_mlp is None else self.last_mlp(x_TD)


class ViTEncoder(_Transformer):
    """Encode images, or maps of features, to latents (B, D, h, w)."""

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
    """Decode latents (B, D, h, w) to images, or to maps of features."""

    def __init__(self, config: ViTCoderConfig, num_channels: int, patch_size: int, grid: int) -> None:
        super().__init__(config, grid)
        self.width, self.patch_size, self.num_channels = config.hidden_size, patch_size, num_channels
        self.out = nn.Linear(config.hidden_size, num_channels * patch_size**2)
        self.convolutions = nn.ModuleList(ConvNeXtBlock(num_channels) for _ in range(config.num_output_convolutions))

    def forward(self, x_BDhw: Tensor) -> Tensor:
        B, _, h, w = x_BDhw.shape
        patches_TF = self.out(super().forward(x_BDhw))
        p, C = self.patch_size, self.num_channels
        # A token's values are a p x p square per channel; the permutation puts pixels of one image row side by side.
        image_BCHW = patches_TF.view(B, h, w, C, p, p).permute(0, 3, 1, 4, 2, 5).reshape(B, C, h * p, w * p)
        for convolution in self.convolutions:
            image_BCHW = convolution(image_BCHW)
        return image_BCHW


class ConvNeXtBlock(nn.Module):
    """Apply a 7 x 7 depthwise convolution, then an MLP at each position (https://arxiv.org/abs/2201.03545)."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(num_channels, num_channels, 7, padding=3, groups=num_channels)
        self.norm = LayerNorm(num_channels, _EPSILON)
        self.up = nn.Linear(num_channels, 4 * num_channels)
        self.down = nn.Linear(4 * num_channels, num_channels)
        self.scale = nn.Parameter(torch.full((num_channels,), 1e-6))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        x_BHWC = self.convolution(x_BCHW).permute(0, 2, 3, 1)
        x_BHWC = self.scale * self.down(F.gelu(self.up(self.norm(x_BHWC))))
        return x_BCHW + x_BHWC.permute(0, 3, 1, 2)


def group_norm(width: int, epsilon: float = 1e-5) -> nn.GroupNorm:
    """Return group normalization with gcd(32, width) groups."""
    return nn.GroupNorm(math.gcd(_MOST_GROUPS, width), width, epsilon)


class PlaceAttention(nn.Module):
    """x + self-attention over all positions, with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = group_norm(width)
        self.qkv = nn.Conv1d(width, 3 * width, 1)
        self.out = nn.Conv1d(width, width, 1)

    def stacked_layers(self) -> dict[str, int]:
        return {"qkv": 3}

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCP = x_BCHW.flatten(2)
        q_BPC, k_BPC, v_BPC = self.qkv(self.norm(x_BCP)).transpose(1, 2).chunk(3, dim=-1)
        mixed_BPC = F.scaled_dot_product_attention(q_BPC[:, None], k_BPC[:, None], v_BPC[:, None])[:, 0]
        return (x_BCP + self.out(mixed_BPC.transpose(1, 2))).view(x_BCHW.shape)


class ResidualBlock(nn.Module):
    """x + two convolutions, each after group norm and swish (Esser et al. 2020, https://arxiv.org/abs/2012.09841). With
    `time_width`, an embedding of the time is added after the first convolution."""

    def __init__(self, width_in: int, width_out: int, time_width: int | None = None) -> None:
        super().__init__()
        self.norm_1 = group_norm(width_in)
        self.convolution_1 = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.time = None if time_width is None else nn.Linear(time_width, width_out)
        self.norm_2 = group_norm(width_out)
        self.convolution_2 = nn.Conv2d(width_out, width_out, 3, padding=1)
        self.skip = nn.Identity() if width_in == width_out else nn.Conv2d(width_in, width_out, 1)

    def forward(self, x_BCHW: Tensor, time_BE: Tensor | None = None) -> Tensor:
        h_BCHW = self.convolution_1(F.silu(self.norm_1(x_BCHW)))
        if self.time is not None and time_BE is not None:
            h_BCHW = h_BCHW + self.time(F.silu(time_BE))[:, :, None, None]
        h_BCHW = self.convolution_2(F.silu(self.norm_2(h_BCHW)))
        return self.skip(x_BCHW) + h_BCHW


class Halve(nn.Conv2d):
    """Halve the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, stride=2, padding=1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        # Defined here because torch.compile does not compile the `forward` of torch's own layers.
        return super().forward(x_BCHW)


class Double(nn.Module):
    """Double the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.convolution(F.interpolate(x_BCHW, scale_factor=2.0, mode="nearest"))


def middle(width: int, time_width: int | None = None, *, has_attention: bool) -> list[nn.Module]:
    """Return the layers at the lowest resolution."""
    attention = [PlaceAttention(width)] if has_attention else []
    return [ResidualBlock(width, width, time_width), *attention, ResidualBlock(width, width, time_width)]


class ConvEncoder(_Layers):
    """Encode images to latents (B, D, h, w)."""

    def __init__(self, config: ConvCoderConfig, num_channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(num_channels, config.width, 3, padding=1)
        layers: list[nn.Module] = []
        width = config.width
        for level, multiplier in enumerate(config.multipliers):
            if level:
                layers.append(Halve(width))
            for _ in range(config.num_blocks):
                layers.append(ResidualBlock(width, config.width * multiplier))
                width = config.width * multiplier
        self.layers = nn.ModuleList([*layers, *middle(width, has_attention=config.has_attention)])
        self.norm = group_norm(width)
        self.width = width

    def forward(self, values_BCHW: Tensor) -> Tensor:
        x_BDhw = self.stem(values_BCHW)
        for layer in self.layers:
            x_BDhw = layer(x_BDhw)
        return F.silu(self.norm(x_BDhw))


class ConvDecoder(_Layers):
    """Decode latents (B, D, h, w) to images."""

    def __init__(self, config: ConvCoderConfig, num_channels: int) -> None:
        super().__init__()
        width = self.width = config.width * config.multipliers[-1]
        layers = middle(width, has_attention=config.has_attention)
        for level, multiplier in reversed(list(enumerate(config.multipliers))):
            for _ in range(config.num_blocks + 1):
                layers.append(ResidualBlock(width, config.width * multiplier))
                width = config.width * multiplier
            if level:
                layers.append(Double(width))
        self.layers = nn.ModuleList(layers)
        self.norm = group_norm(width)
        self.out = nn.Conv2d(width, num_channels, 3, padding=1)

    def forward(self, x_BDhw: Tensor) -> Tensor:
        for layer in self.layers:
            x_BDhw = layer(x_BDhw)
        return self.out(F.silu(self.norm(x_BDhw)))


class MLPCoder(_Layers):
    """Residual MLP at each position, (B, C, h, w) to (B, E, h, w): encoder or decoder of features (Bachmann et al.
    2023, https://arxiv.org/abs/2306.13575, "BottleneckMLP")."""

    def __init__(self, config: MLPCoderConfig, num_in: int | None = None, num_out: int | None = None) -> None:
        """`num_in`, `num_out`: numbers of channels of input and output; None: config.width."""
        super().__init__()
        self.width = config.width
        self.first = nn.Linear(num_in or config.width, config.width)
        self.layers = nn.ModuleList(
            ResidualMLP(config.width, config.expansion * config.width) for _ in range(config.num_blocks)
        )
        self.last = nn.Linear(config.width, num_out or config.width)

    def forward(self, x_BChw: Tensor) -> Tensor:
        x_BhwD = self.first(x_BChw.permute(0, 2, 3, 1))
        for layer in self.layers:
            x_BhwD = layer(x_BhwD)
        return self.last(x_BhwD).permute(0, 3, 1, 2)
