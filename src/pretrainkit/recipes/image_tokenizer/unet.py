"""A diffusion decoder of convolutions, over patches of pixels, which sees the codes as further channels.

Dimensions: B images, C channels, H x W pixels, p pixels of a patch's side, D width of codes, U channels of a stage,
E width of the time's embedding.
Source: section 10.4 of the specification (a); the network is that of Dhariwal & Nichol 2021,
https://arxiv.org/abs/2105.05233, without its later changes; patches: Luhman & Luhman 2022,
https://arxiv.org/abs/2207.04316.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.recipes.image_tokenizer.conv_coder import Double, Halve
from pretrainkit.recipes.image_tokenizer.convolutions import PlaceAttention, TimedBlock, group_norm
from pretrainkit.recipes.image_tokenizer.diffusion import DiffusionDecoder, time_features
from pretrainkit.recipes.image_tokenizer.model_config import UNetConfig


class Stage(nn.ModuleList):
    """Layers one after another, of which some are told the time."""

    def forward(self, x_BUHW: Tensor, time_BE: Tensor) -> Tensor:
        for layer in self:
            x_BUHW = layer(x_BUHW, time_BE) if isinstance(layer, TimedBlock) else layer(x_BUHW)
        return x_BUHW


class UNet(DiffusionDecoder):
    """Down to a lower resolution and up again, with connections between equal ones."""

    def __init__(self, config: UNetConfig, num_channels: int, codes_width: int, *, is_flat: bool) -> None:
        super().__init__(config.noise, num_channels, is_flat=is_flat)
        self.patch_size, self.first_width = config.patch_size, config.width
        pixels = num_channels * config.patch_size**2
        time_width = 4 * config.width
        self.time_1, self.time_2 = nn.Linear(config.width, time_width), nn.Linear(time_width, time_width)
        width = config.width * config.multipliers[0]
        self.down = nn.ModuleList([Stage([nn.Conv2d(pixels + codes_width, width, 3, padding=1)])])
        kept, scale = [width], 1
        for level, multiplier in enumerate(config.multipliers):
            if level:
                self.down.append(Stage([Halve(width)]))
                kept.append(width)
                scale *= 2
            for _ in range(config.num_blocks):
                layers: list[nn.Module] = [TimedBlock(width, config.width * multiplier, time_width)]
                width = config.width * multiplier
                if scale in config.attention_at:
                    layers.append(PlaceAttention(width))
                self.down.append(Stage(layers))
                kept.append(width)
        self.middle = Stage(
            [TimedBlock(width, width, time_width), PlaceAttention(width), TimedBlock(width, width, time_width)]
        )
        self.up = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(config.multipliers))):
            for number in range(config.num_blocks + 1):
                layers = [TimedBlock(width + kept.pop(), config.width * multiplier, time_width)]
                width = config.width * multiplier
                if scale in config.attention_at:
                    layers.append(PlaceAttention(width))
                if level and number == config.num_blocks:
                    layers.append(Double(width))
                    scale //= 2
                self.up.append(Stage(layers))
        self.norm = group_norm(width)
        self.out = nn.Conv2d(width, pixels, 3, padding=1)

    def blocks(self) -> list[nn.Module]:
        return [*self.down, self.middle, *self.up]

    def initialise_zeros(self) -> None:
        for module in self.modules():
            if isinstance(module, TimedBlock):
                nn.init.zeros_(module.convolution_2.weight)
            elif isinstance(module, PlaceAttention):
                nn.init.zeros_(module.out.weight)
        nn.init.zeros_(self.out.weight)

    def forward(
        self, noisy_BCHW: Tensor, time_B: Tensor, codes_BDhw: Tensor, is_hidden_Bhw: Tensor | None = None
    ) -> Tensor:
        if is_hidden_Bhw is not None:
            codes_BDhw = codes_BDhw.masked_fill(is_hidden_Bhw[:, None], 0.0)
        x_BUHW = F.pixel_unshuffle(noisy_BCHW, self.patch_size)
        spread_BDHW = F.interpolate(codes_BDhw, x_BUHW.shape[2:], mode="nearest")
        x_BUHW = torch.cat((x_BUHW, spread_BDHW.to(x_BUHW.dtype)), dim=1)
        time_BE = self.time_2(F.silu(self.time_1(time_features(time_B, self.first_width))))
        kept = []
        for stage in self.down:
            x_BUHW = stage(x_BUHW, time_BE)
            kept.append(x_BUHW)
        x_BUHW = self.middle(x_BUHW, time_BE)
        for stage in self.up:
            x_BUHW = stage(torch.cat((x_BUHW, kept.pop()), dim=1), time_BE)
        return F.pixel_shuffle(self.out(F.silu(self.norm(x_BUHW))), self.patch_size)
