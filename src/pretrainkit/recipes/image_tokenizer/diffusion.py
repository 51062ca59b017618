"""Diffusion decoders conditioned on codes: training targets, sampling and two networks. All random numbers of an image
are functions of its key.

Dimensions: B images, C channels, H x W pixels, D width of codes, h x w grid positions, T times, U channels of a stage
or level, E width of the time embedding; P positions and M width of UViT's transformer.
Sources: Shi et al. 2022, https://arxiv.org/abs/2206.00386; sampling: Song et al. 2020,
https://arxiv.org/abs/2010.02502; velocities: Salimans & Ho 2022, https://arxiv.org/abs/2202.00512.
"""

from abc import ABC, abstractmethod
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.nn.blocks import LayerNorm
from pretrainkit.recipes.image_tokenizer import draws
from pretrainkit.recipes.image_tokenizer.coders import (
    Double,
    Halve,
    PlaceAttention,
    ResidualBlock,
    grid_table,
    group_norm,
    middle,
    stretched,
)
from pretrainkit.recipes.image_tokenizer.model_config import NoiseConfig, UNetConfig, UViTConfig

_FIRST_VARIANCE, _LAST_VARIANCE = 1e-4, 0.02
_OFFSET = 0.008
_MAX_VARIANCE = 0.999
_LARGEST_LOG_RATIO = 15.0
_TIME, _NOISE, _DROPPED, _NUM_HIDDEN, _HIDDEN, _FIRST = range(21, 27)
"""Names of the random streams that are derived from an image's key."""
UVIT_GRID = 32
"""Number of rows and of columns of the position table, which is interpolated to the grid of the input."""


def signal_shares(config: NoiseConfig) -> NDArray[np.float64]:
    """Return the image's share of the variance at each time, float64 (T,): alpha-bar in the papers. It falls from
    almost 1; with `ends_in_noise`, the last one is 0.

    Sources: Ho et al. 2020, https://arxiv.org/abs/2006.11239; Nichol & Dhariwal 2021, https://arxiv.org/abs/2102.09672;
    shifted_cosine: Hoogeboom et al. 2023, https://arxiv.org/abs/2301.11093; ends_in_noise: Lin et al. 2023,
    https://arxiv.org/abs/2305.08891."""
    num = config.num_times
    if config.schedule == "shifted_cosine":
        with np.errstate(divide="ignore"):
            log_ratio = -2 * (np.log(np.tan(np.pi * np.linspace(0, 1, num) / 2)) + np.log(config.shift))
        shares_T: NDArray[np.float64] = 1 / (1 + np.exp(-log_ratio.clip(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)))
        shares_T[-1] = 0.0
        return shares_T
    if config.schedule == "linear":
        variances_T = np.linspace(_FIRST_VARIANCE, _LAST_VARIANCE, num)
    else:
        ends = np.cos((np.arange(num + 1) / num + _OFFSET) / (1 + _OFFSET) * np.pi / 2) ** 2
        variances_T = np.minimum(1 - ends[1:] / ends[:-1], _MAX_VARIANCE)
    shares_T = np.cumprod(1 - variances_T, dtype=np.float64)
    if not config.ends_in_noise:
        return shares_T
    # Shift the roots so that the last is 0, and scale them so that the first is unchanged (Lin et al., algorithm 1).
    roots_T: NDArray[np.float64] = np.sqrt(shares_T)
    return ((roots_T - roots_T[-1]) * roots_T[0] / (roots_T[0] - roots_T[-1])) ** 2


def trailing_times(num_times: int, num_steps: int) -> list[int]:
    """Return `num_steps` evenly spaced times for sampling, in descending order from the last time."""
    num_steps = min(num_steps, num_times)
    return [round(num_times - step * num_times / num_steps) - 1 for step in range(num_steps)]


class DiffusionDecoder(nn.Module, ABC):
    """A network that denoises an image, given its time and the codes."""

    shares_T: Tensor

    def __init__(self, noise: NoiseConfig, num_channels: int, *, has_pixel_range: bool) -> None:
        """`has_pixel_range`: values of images are between -1 and 1, and sampling clamps to that range."""
        super().__init__()
        self.noise, self.num_channels, self.has_pixel_range = noise, num_channels, has_pixel_range
        shares_T = signal_shares(noise).astype(np.float32)
        self.register_buffer("shares_T", torch.from_numpy(shares_T), persistent=False)

    @abstractmethod
    def forward(
        self, noisy_BCHW: Tensor, time_B: Tensor, codes_BDhw: Tensor, is_hidden_Bhw: Tensor | None = None
    ) -> Tensor:
        """Return the prediction that `noise.prediction` names, (B, C, H, W). Where `is_hidden_Bhw` is True, the network
        does not see the code."""

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """List the submodules to compile and shard one by one."""

    def initialise_zeros(self) -> None:
        """Set the last layer of each residual block to zero, so that blocks start as the identity."""
        last = {ResidualBlock: "convolution_2", PlaceAttention: "out", TimedLayer: "gate", UNet: "out"}
        for module in self.modules():
            if name := last.get(type(module)):
                nn.init.zeros_(module.get_parameter(f"{name}.weight"))

    def denoise(self, values_BCHW: Tensor, codes_BDhw: Tensor, keys_B: Tensor) -> tuple[Tensor, Tensor]:
        """Run a training pass at a random time for each image. Return prediction and target, float32 (B, C, H, W)
        each."""
        time_B = (draws.uniform(keys_B, _TIME, 1)[:, 0] * self.noise.num_times).long()
        noise_BCHW = draws.normal(keys_B, _NOISE, *values_BCHW.shape[1:])
        signal_B111, noise_B111 = self._roots(time_B)
        noisy_BCHW = signal_B111 * values_BCHW + noise_B111 * noise_BCHW
        is_hidden_Bhw = self._hidden(codes_BDhw, keys_B) if self.training else None
        predicted_BCHW = self(noisy_BCHW, time_B, codes_BDhw, is_hidden_Bhw).float()
        if self.noise.loss == "noise":
            image_BCHW = self._image(predicted_BCHW, noisy_BCHW, signal_B111, noise_B111)
            return (noisy_BCHW - signal_B111 * image_BCHW) / noise_B111, noise_BCHW
        targets = {
            "image": values_BCHW,
            "noise": noise_BCHW,
            "velocity": signal_B111 * noise_BCHW - noise_B111 * values_BCHW,
        }
        return predicted_BCHW, targets[self.noise.prediction]

    @torch.no_grad()
    def sample(self, codes_BDhw: Tensor, keys_B: Tensor, size: int, num_steps: int, guidance: float = 1.0) -> Tensor:
        """Return images, float32 (B, C, H, W), sampled by DDIM without added noise.

        Args:
            keys_B: int64 keys of the initial noise.
            size: Height and width of the images in pixels.
            num_steps: Number of passes through the network.
            guidance: Scale of classifier-free guidance; 1 turns it off. It needs noise.dropout in training.
        """
        x_BCHW = draws.normal(keys_B, _FIRST, self.num_channels, size, size)
        times = trailing_times(self.noise.num_times, num_steps)
        for number, time in enumerate(times):
            time_B = torch.full((len(x_BCHW),), time, device=x_BCHW.device)
            signal_B111, noise_B111 = self._roots(time_B)
            predicted_BCHW = self(x_BCHW, time_B, codes_BDhw).float()
            if guidance != 1:
                nothing = torch.ones_like(codes_BDhw[:, 0], dtype=torch.bool)
                alone_BCHW = self(x_BCHW, time_B, codes_BDhw, nothing).float()
                predicted_BCHW = alone_BCHW + guidance * (predicted_BCHW - alone_BCHW)
            image_BCHW = self._image(predicted_BCHW, x_BCHW, signal_B111, noise_B111)
            # As in the original, the noise is that of the prediction before it is clamped.
            noise_BCHW = (x_BCHW - signal_B111 * image_BCHW) / noise_B111
            image_BCHW = image_BCHW.clamp(-1, 1) if self.has_pixel_range else image_BCHW
            if number == len(times) - 1:
                return image_BCHW
            next_signal_B111, next_noise_B111 = self._roots(torch.full_like(time_B, times[number + 1]))
            x_BCHW = next_signal_B111 * image_BCHW + next_noise_B111 * noise_BCHW
        return x_BCHW

    def _roots(self, time_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of image and noise, (B, 1, 1, 1) each."""
        share_B111 = self.shares_T[time_B][:, None, None, None]
        return share_B111.sqrt(), (1 - share_B111).sqrt()

    def _image(self, predicted: Tensor, noisy: Tensor, signal_B111: Tensor, noise_B111: Tensor) -> Tensor:
        if self.noise.prediction == "image":
            return predicted
        if self.noise.prediction == "noise":
            return (noisy - noise_B111 * predicted) / signal_B111
        return signal_B111 * noisy - noise_B111 * predicted

    def _hidden(self, codes_BDhw: Tensor, keys_B: Tensor) -> Tensor | None:
        """Draw which codes are hidden, bool (B, h, w): for a share `noise.dropout` of the images, all positions, or
        with `noise.masks_places` a random subset."""
        if not self.noise.dropout:
            return None
        B, _, h, w = codes_BDhw.shape
        is_dropped_B = draws.uniform(keys_B, _DROPPED, 1)[:, 0] < self.noise.dropout
        if not self.noise.masks_places:
            return is_dropped_B[:, None, None].expand(B, h, w)
        num_B = (draws.uniform(keys_B, _NUM_HIDDEN, 1)[:, 0] * (h * w + 1)).long()
        # argsort of argsort ranks each position among random numbers, so ranks below `num_B` are a random subset.
        rank_BP = draws.uniform(keys_B, _HIDDEN, h * w).argsort(1).argsort(1)
        return ((rank_BP < num_B[:, None]) & is_dropped_B[:, None]).view(B, h, w)


def time_features(time_B: Tensor, width: int) -> Tensor:
    """Embed times as float32 (B, width): cosines, then sines, at frequencies that fall geometrically
    from 1 to almost 1 / 10,000."""
    half = width // 2
    rates = torch.exp(-np.log(10_000) * torch.arange(half, device=time_B.device, dtype=torch.float32) / half)
    angles = time_B[:, None].float() * rates
    return torch.cat((angles.cos(), angles.sin()), dim=1)


class Stage(nn.ModuleList):
    """Layers in sequence. Residual blocks also get the time embedding."""

    def forward(self, x_BUHW: Tensor, time_BE: Tensor) -> Tensor:
        for layer in self:
            x_BUHW = layer(x_BUHW, time_BE) if isinstance(layer, ResidualBlock) else layer(x_BUHW)
        return x_BUHW


class UNet(DiffusionDecoder):
    """A convolutional UNet over patches of pixels, with the codes as additional input channels.

    Sources: the released code of `apple/ml-4m`; network: Dhariwal & Nichol 2021, https://arxiv.org/abs/2105.05233,
    without its later changes; patches: Luhman & Luhman 2022, https://arxiv.org/abs/2207.04316."""

    def __init__(self, config: UNetConfig, num_channels: int, codes_width: int, *, has_pixel_range: bool) -> None:
        super().__init__(config.noise, num_channels, has_pixel_range=has_pixel_range)
        self.patch_size, self.first_width = config.patch_size, config.width
        pixels = num_channels * config.patch_size**2
        time_width = 4 * config.width
        self.time_1, self.time_2 = nn.Linear(config.width, time_width), nn.Linear(time_width, time_width)
        width = config.width * config.multipliers[0]
        self.down = nn.ModuleList([Stage([nn.Conv2d(pixels + codes_width, width, 3, padding=1)])])
        skip_widths, scale = [width], 1
        for level, multiplier in enumerate(config.multipliers):
            if level:
                self.down.append(Stage([Halve(width)]))
                skip_widths.append(width)
                scale *= 2
            for _ in range(config.num_blocks):
                layers: list[nn.Module] = [ResidualBlock(width, config.width * multiplier, time_width)]
                width = config.width * multiplier
                if scale in config.attention_at:
                    layers.append(PlaceAttention(width))
                self.down.append(Stage(layers))
                skip_widths.append(width)
        self.middle = Stage(middle(width, time_width, has_attention=True))
        self.up = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(config.multipliers))):
            for number in range(config.num_blocks + 1):
                layers = [ResidualBlock(width + skip_widths.pop(), config.width * multiplier, time_width)]
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

    def forward(
        self, noisy_BCHW: Tensor, time_B: Tensor, codes_BDhw: Tensor, is_hidden_Bhw: Tensor | None = None
    ) -> Tensor:
        if is_hidden_Bhw is not None:
            codes_BDhw = codes_BDhw.masked_fill(is_hidden_Bhw[:, None], 0.0)
        x_BUHW = F.pixel_unshuffle(noisy_BCHW, self.patch_size)
        spread_BDHW = F.interpolate(codes_BDhw, x_BUHW.shape[2:], mode="nearest")
        x_BUHW = torch.cat((x_BUHW, spread_BDHW.to(x_BUHW.dtype)), dim=1)
        time_BE = self.time_2(F.silu(self.time_1(time_features(time_B, self.first_width))))
        skips = []
        for stage in self.down:
            x_BUHW = stage(x_BUHW, time_BE)
            skips.append(x_BUHW)
        x_BUHW = self.middle(x_BUHW, time_BE)
        for stage in self.up:
            x_BUHW = stage(torch.cat((x_BUHW, skips.pop()), dim=1), time_BE)
        return F.pixel_shuffle(self.out(F.silu(self.norm(x_BUHW))), self.patch_size)


class TimedLayer(nn.Module):
    """Transformer block whose norms and gates are modulated by the time (adaptive layer norm)."""

    def __init__(self, width: int, num_heads: int, time_width: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.attention_norm, self.feed_forward_norm = LayerNorm(width, 1e-5), LayerNorm(width, 1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation, self.gate = nn.Linear(time_width, 4 * width), nn.Linear(time_width, 2 * width)

    def stacked_layers(self) -> dict[str, int]:
        return {"qkv": 3}

    def forward(self, x_BPM: Tensor, time_BE: Tensor) -> Tensor:
        time_BE = F.silu(time_BE)
        shift_1, scale_1, shift_2, scale_2 = self.modulation(time_BE)[:, None].chunk(4, dim=-1)
        gate_1, gate_2 = self.gate(time_BE)[:, None].chunk(2, dim=-1)
        qkv_BP = self.qkv(self.attention_norm(x_BPM) * (1 + scale_1) + shift_1)
        q, k, v = qkv_BP.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed_BPM = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x_BPM = x_BPM + gate_1 * self._dropped(mixed_BPM)
        inner_BPM = self.feed_forward_norm(x_BPM) * (1 + scale_2) + shift_2
        return x_BPM + gate_2 * self._dropped(self.down(F.gelu(self.up(inner_BPM))))

    def _dropped(self, x_BPM: Tensor) -> Tensor:
        return F.dropout(x_BPM, self.dropout, self.training) if self.dropout else x_BPM


class UViT(DiffusionDecoder):
    """A convolutional UNet with a transformer at the lowest resolution. The codes are added to the transformer's input.

    Sources: the released code of `apple/ml-4m`; Hoogeboom et al. 2023, https://arxiv.org/abs/2301.11093; norms and
    gates that depend on the time: Peebles & Xie 2022, https://arxiv.org/abs/2212.09748."""

    def __init__(self, config: UViTConfig, num_channels: int, codes_width: int, *, has_pixel_range: bool) -> None:
        super().__init__(config.noise, num_channels, has_pixel_range=has_pixel_range)
        first, last, width = config.widths[0], config.widths[-1], config.hidden_size
        self.first_width, time_width = first, 4 * first
        self.patch = nn.Conv2d(num_channels, first, config.patch_size, config.patch_size)
        self.time_1, self.time_2 = nn.Linear(first, time_width), nn.Linear(time_width, time_width)
        self.down, self.halves, skip_widths, current_width = nn.ModuleList(), nn.ModuleList(), [first], first
        for level, level_width in enumerate(config.widths):
            if level:
                self.halves.append(Halve(current_width))
                skip_widths.append(current_width)
            blocks = nn.ModuleList()
            for _ in range(config.num_blocks):
                blocks.append(ResidualBlock(current_width, level_width, time_width))
                current_width = level_width
                skip_widths.append(current_width)
            self.down.append(blocks)
        self.halve_middle = Halve(last) if config.halves_before_middle else None
        self.double_middle = Double(last) if config.halves_before_middle else None
        self.register_buffer("positions_1Dhw", grid_table(UVIT_GRID, UVIT_GRID, width), persistent=False)
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
                blocks.append(ResidualBlock(current_width + skip_widths.pop(), level_width, time_width))
                current_width = level_width
            self.up.append(blocks)
            if level:
                self.doubles.append(Double(current_width))
        self.norm = group_norm(first)
        self.pixels = nn.ConvTranspose2d(first, num_channels, config.patch_size, config.patch_size)

    positions_1Dhw: Tensor

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(
        self, noisy_BCHW: Tensor, time_B: Tensor, codes_BDhw: Tensor, is_hidden_Bhw: Tensor | None = None
    ) -> Tensor:
        time_BE = self.time_2(F.silu(self.time_1(time_features(time_B, self.first_width))))
        x_BUHW = self.patch(noisy_BCHW)
        skips = [x_BUHW]
        for level, blocks in enumerate(self.down):
            if level:
                x_BUHW = self.halves[level - 1](x_BUHW)
                skips.append(x_BUHW)
            for block in cast(nn.ModuleList, blocks):
                x_BUHW = block(x_BUHW, time_BE)
                skips.append(x_BUHW)
        if self.halve_middle is not None and self.double_middle is not None:
            x_BUHW = self.double_middle(self._middle(self.halve_middle(x_BUHW), time_BE, codes_BDhw, is_hidden_Bhw))
        else:
            x_BUHW = self._middle(x_BUHW, time_BE, codes_BDhw, is_hidden_Bhw)
        for level, blocks in enumerate(self.up):
            if level:
                x_BUHW = self.doubles[level - 1](x_BUHW)
            for block in cast(nn.ModuleList, blocks):
                x_BUHW = block(torch.cat((x_BUHW, skips.pop()), dim=1), time_BE)
        return self.pixels(F.silu(self.norm(x_BUHW)))

    def _middle(self, x_BUHW: Tensor, time_BE: Tensor, codes_BDhw: Tensor, is_hidden_Bhw: Tensor | None) -> Tensor:
        B, U, h, w = x_BUHW.shape
        codes_BDhw = F.interpolate(codes_BDhw, (h, w), mode="nearest")
        condition_BPM = self.told(codes_BDhw.flatten(2).transpose(1, 2))
        if is_hidden_Bhw is not None:
            spread = F.interpolate(is_hidden_Bhw[:, None].float(), (h, w), mode="nearest").flatten(2).transpose(1, 2)
            condition_BPM = torch.where(spread > 0.5, self.mask_token.to(condition_BPM.dtype), condition_BPM)
        elif self.training:
            condition_BPM = condition_BPM + 0 * self.mask_token  # DDP requires every parameter to be used
        positions_1PM = stretched(self.positions_1Dhw, h, w).flatten(2).transpose(1, 2)
        x_BPM = self.into(x_BUHW.flatten(2).transpose(1, 2)) + condition_BPM + positions_1PM
        for layer in self.layers:
            x_BPM = layer(x_BPM, time_BE)
        return self.back(x_BPM).transpose(1, 2).reshape(B, U, h, w)
