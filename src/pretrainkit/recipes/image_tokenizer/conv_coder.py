"""Residual convolutions, to latents and back (Esser et al. 2020, https://arxiv.org/abs/2012.09841).

Dimensions: B images, C channels, H x W pixels, h x w places, D width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.recipes.image_tokenizer.convolutions import PlaceAttention, group_norm
from pretrainkit.recipes.image_tokenizer.model_config import ConvCoderConfig


class ResidualBlock(nn.Module):
    """x + two convolutions of norm and swish."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.norm_1 = group_norm(width_in)
        self.convolution_1 = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.norm_2 = group_norm(width_out)
        self.convolution_2 = nn.Conv2d(width_out, width_out, 3, padding=1)
        self.skip = nn.Identity() if width_in == width_out else nn.Conv2d(width_in, width_out, 1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        h_BCHW = self.convolution_1(F.silu(self.norm_1(x_BCHW)))
        h_BCHW = self.convolution_2(F.silu(self.norm_2(h_BCHW)))
        return self.skip(x_BCHW) + h_BCHW


class Halve(nn.Conv2d):
    """To half the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, stride=2, padding=1)


class Double(nn.Module):
    """To twice the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.convolution(F.interpolate(x_BCHW, scale_factor=2.0, mode="nearest"))


def _middle(width: int, *, has_attention: bool) -> list[nn.Module]:
    attention = [PlaceAttention(width)] if has_attention else []
    return [ResidualBlock(width, width), *attention, ResidualBlock(width, width)]


class ConvEncoder(nn.Module):
    """Images to (B, D, h, w)."""

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
        self.layers = nn.ModuleList([*layers, *_middle(width, has_attention=config.has_attention)])
        self.norm = group_norm(width)
        self.width = width

    def forward(self, values_BCHW: Tensor) -> Tensor:
        x_BDhw = self.stem(values_BCHW)
        for layer in self.layers:
            x_BDhw = layer(x_BDhw)
        return F.silu(self.norm(x_BDhw))

    def blocks(self) -> list[nn.Module]:
        """To compile and shard one by one."""
        return list(self.layers)


class ConvDecoder(nn.Module):
    """Latents (B, D, h, w) to images."""

    def __init__(self, config: ConvCoderConfig, num_channels: int) -> None:
        super().__init__()
        width = self.width = config.width * config.multipliers[-1]
        layers = _middle(width, has_attention=config.has_attention)
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

    def blocks(self) -> list[nn.Module]:
        """To compile and shard one by one."""
        return list(self.layers)
