"""A diffusion decoder of convolutions around a transformer, which is told the codes place by place.

Dimensions: B images, C channels, H x W pixels, D width of codes, h x w places, P places of the transformer, U channels
of a level, M width of the transformer, E width of the time's embedding.
Source: section 10.4 of the specification (b); Hoogeboom et al. 2023, https://arxiv.org/abs/2301.11093; norms and gates
that depend on the time: Peebles & Xie 2022, https://arxiv.org/abs/2212.09748.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.blocks import LayerNorm
from pretrainkit.recipes.image_tokenizer.conv_coder import Double, Halve
from pretrainkit.recipes.image_tokenizer.convolutions import TimedBlock, group_norm
from pretrainkit.recipes.image_tokenizer.diffusion import DiffusionDecoder, time_features
from pretrainkit.recipes.image_tokenizer.grid_positions import grid_table, stretched
from pretrainkit.recipes.image_tokenizer.model_config import UViTConfig

_GRID = 32
"""Of the table of positions, which is stretched to whatever grid comes."""
_EPSILON = 1e-5


class TimedLayer(nn.Module):
    """Attention and feed-forward layer, whose inputs are scaled and shifted, and outputs gated, by the time."""

    def __init__(self, width: int, num_heads: int, time_width: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.attention_norm, self.feed_forward_norm = LayerNorm(width, _EPSILON), LayerNorm(width, _EPSILON)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation, self.gate = nn.Linear(time_width, 4 * width), nn.Linear(time_width, 2 * width)

    def stacked_layers(self) -> dict[str, int]:
        return {"qkv": 3}

    def forward(self, x_BPM: Tensor, time_BE: Tensor) -> Tensor:
        time_BE = F.silu(time_BE)
        shift_1, scale_1, shift_2, scale_2 = self.modulation(time_BE)[:, None].chunk(4, dim=-1)
        gate_1, gate_2 = self.gate(time_BE)[:, None].chunk(2, dim=-1)
        mixed_BPM = self._attend(self.attention_norm(x_BPM) * (1 + scale_1) + shift_1)
        x_BPM = x_BPM + gate_1 * self._dropped(mixed_BPM)
        inner_BPM = self.feed_forward_norm(x_BPM) * (1 + scale_2) + shift_2
        return x_BPM + gate_2 * self._dropped(self.down(F.gelu(self.up(inner_BPM))))

    def _attend(self, x_BPM: Tensor) -> Tensor:
        B, P, M = x_BPM.shape
        q, k, v = self.qkv(x_BPM).view(B, P, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, P, M))

    def _dropped(self, x_BPM: Tensor) -> Tensor:
        return F.dropout(x_BPM, self.dropout, self.training) if self.dropout else x_BPM


class UViT(DiffusionDecoder):
    """Convolutions down, a transformer, convolutions up, with connections between equal resolutions."""

    def __init__(self, config: UViTConfig, num_channels: int, codes_width: int, *, is_flat: bool) -> None:
        super().__init__(config.noise, num_channels, is_flat=is_flat)
        first, last, width = config.widths[0], config.widths[-1], config.hidden_size
        self.first_width, time_width = first, 4 * first
        self.patch = nn.Conv2d(num_channels, first, config.patch_size, config.patch_size)
        self.time_1, self.time_2 = nn.Linear(first, time_width), nn.Linear(time_width, time_width)
        self.down, self.halves, kept, own = nn.ModuleList(), nn.ModuleList(), [first], first
        for level, level_width in enumerate(config.widths):
            if level:
                self.halves.append(Halve(own))
                kept.append(own)
            blocks = nn.ModuleList()
            for _ in range(config.num_blocks):
                blocks.append(TimedBlock(own, level_width, time_width))
                own = level_width
                kept.append(own)
            self.down.append(blocks)
        self.halve_middle = Halve(last) if config.halves_before_middle else None
        self.double_middle = Double(last) if config.halves_before_middle else None
        self.register_buffer("positions_1Dhw", grid_table(_GRID, _GRID, width), persistent=False)
        self.told = nn.Linear(codes_width, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.into, self.back = nn.Linear(last, width), nn.Linear(width, last)
        self.layers = nn.ModuleList(
            TimedLayer(width, config.num_heads, time_width, config.dropout) for _ in range(config.num_layers)
        )
        self.up, self.doubles = nn.ModuleList(), nn.ModuleList()
        for level, level_width in reversed(list(enumerate(config.widths))):
            blocks = nn.ModuleList()
            for _ in range(config.num_blocks + 1):
                blocks.append(TimedBlock(own + kept.pop(), level_width, time_width))
                own = level_width
            self.up.append(blocks)
            if level:
                self.doubles.append(Double(own))
        self.norm = group_norm(first)
        self.pixels = nn.ConvTranspose2d(first, num_channels, config.patch_size, config.patch_size)

    positions_1Dhw: Tensor

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def initialise_zeros(self) -> None:
        for module in self.modules():
            if isinstance(module, TimedBlock):
                nn.init.zeros_(module.convolution_2.weight)
            elif isinstance(module, TimedLayer):
                nn.init.zeros_(module.gate.weight)

    def forward(
        self, noisy_BCHW: Tensor, time_B: Tensor, codes_BDhw: Tensor, is_hidden_Bhw: Tensor | None = None
    ) -> Tensor:
        time_BE = self.time_2(F.silu(self.time_1(time_features(time_B, self.first_width))))
        x_BUHW = self.patch(noisy_BCHW)
        kept = [x_BUHW]
        for level, blocks in enumerate(self.down):
            if level:
                x_BUHW = self.halves[level - 1](x_BUHW)
                kept.append(x_BUHW)
            for block in cast(nn.ModuleList, blocks):
                x_BUHW = block(x_BUHW, time_BE)
                kept.append(x_BUHW)
        if self.halve_middle is not None and self.double_middle is not None:
            x_BUHW = self.double_middle(self._middle(self.halve_middle(x_BUHW), time_BE, codes_BDhw, is_hidden_Bhw))
        else:
            x_BUHW = self._middle(x_BUHW, time_BE, codes_BDhw, is_hidden_Bhw)
        for level, blocks in enumerate(self.up):
            if level:
                x_BUHW = self.doubles[level - 1](x_BUHW)
            for block in cast(nn.ModuleList, blocks):
                x_BUHW = block(torch.cat((x_BUHW, kept.pop()), dim=1), time_BE)
        return self.pixels(F.silu(self.norm(x_BUHW)))

    def _middle(self, x_BUHW: Tensor, time_BE: Tensor, codes_BDhw: Tensor, is_hidden_Bhw: Tensor | None) -> Tensor:
        B, U, h, w = x_BUHW.shape
        codes_BDhw = F.interpolate(codes_BDhw, (h, w), mode="nearest")
        told_BPM = self.told(codes_BDhw.flatten(2).transpose(1, 2))
        if is_hidden_Bhw is not None:
            spread = F.interpolate(is_hidden_Bhw[:, None].float(), (h, w), mode="nearest").flatten(2).transpose(1, 2)
            told_BPM = torch.where(spread > 0.5, self.mask_token.to(told_BPM.dtype), told_BPM)
        elif self.training:
            told_BPM = told_BPM + 0 * self.mask_token  # DDP wants every parameter used
        positions_1PM = stretched(self.positions_1Dhw, h, w).flatten(2).transpose(1, 2)
        x_BPM = self.into(x_BUHW.flatten(2).transpose(1, 2)) + told_BPM + positions_1PM
        for layer in self.layers:
            x_BPM = layer(x_BPM, time_BE)
        return self.back(x_BPM).transpose(1, 2).reshape(B, U, h, w)
