"""Decoders that make images from noise, told the codes: training targets and sampling. What is drawn for an image is a
function of its key.

Dimensions: B images, C channels, H x W pixels, D width of codes, h x w places, T times.
Sources: Shi et al. 2022, https://arxiv.org/abs/2206.00386; sampling: Song et al. 2020,
https://arxiv.org/abs/2010.02502; velocities: Salimans & Ho 2022, https://arxiv.org/abs/2202.00512; thresholds: Saharia
et al. 2022, https://arxiv.org/abs/2205.11487, section 2.3.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.recipes.image_tokenizer import draws
from pretrainkit.recipes.image_tokenizer.model_config import NoiseConfig
from pretrainkit.recipes.image_tokenizer.noise_schedule import signal_shares, trailing_times

_TIME, _NOISE, _DROPPED, _NUM_HIDDEN, _HIDDEN, _FIRST = range(21, 27)
"""Streams of an image's key."""
_QUANTILE = 0.995


class DiffusionDecoder(nn.Module, ABC):
    """A network that sees a noisy image, its time and the codes."""

    shares_T: Tensor

    def __init__(self, noise: NoiseConfig, num_channels: int, *, is_flat: bool) -> None:
        """`is_flat`: images have values from -1 to 1, to which sampling keeps."""
        super().__init__()
        self.noise, self.num_channels, self.is_flat = noise, num_channels, is_flat
        shares_T = signal_shares(noise).astype(np.float32)
        self.register_buffer("shares_T", torch.from_numpy(shares_T), persistent=False)

    @abstractmethod
    def forward(
        self, noisy_BCHW: Tensor, time_B: Tensor, codes_BDhw: Tensor, is_hidden_Bhw: Tensor | None = None
    ) -> Tensor:
        """What the config says is predicted, (B, C, H, W). Hidden codes are not seen."""

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """To compile and shard one by one."""

    @abstractmethod
    def initialise_zeros(self) -> None:
        """Layers that begin as zeros, so that blocks begin as what they are added to."""

    def denoise(self, values_BCHW: Tensor, codes_BDhw: Tensor, keys_B: Tensor) -> tuple[Tensor, Tensor]:
        """A training pass at a random time of each image.

        Returns:
            What was predicted, and what should have been; float32 (B, C, H, W) each.
        """
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
        """float32 (B, C, H, W), without further noise on the way (DDIM).

        Args:
            codes_BDhw: What the images shall be.
            keys_B: int64, of the noise that they begin with.
            size: Pixels of a side.
            num_steps: Passes of the network.
            guidance: Above 1: away from what it would make without codes; needs noise.dropout in training.
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
            if self.is_flat:
                image_BCHW = _thresholded(image_BCHW)
            if number == len(times) - 1:
                return image_BCHW
            noise_BCHW = (x_BCHW - signal_B111 * image_BCHW) / noise_B111
            next_signal_B111, next_noise_B111 = self._roots(torch.full_like(time_B, times[number + 1]))
            x_BCHW = next_signal_B111 * image_BCHW + next_noise_B111 * noise_BCHW
        return x_BCHW

    def _roots(self, time_B: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of image and noise, (B, 1, 1, 1) each."""
        share_B111 = self.shares_T[time_B][:, None, None, None]
        return share_B111.sqrt(), (1 - share_B111).sqrt()

    def _image(self, predicted: Tensor, noisy: Tensor, signal_B111: Tensor, noise_B111: Tensor) -> Tensor:
        if self.noise.prediction == "image":
            return predicted
        if self.noise.prediction == "noise":
            return (noisy - noise_B111 * predicted) / signal_B111
        return signal_B111 * noisy - noise_B111 * predicted

    def _hidden(self, codes_BDhw: Tensor, keys_B: Tensor) -> Tensor | None:
        """bool (B, h, w): all places, or a random part, of a share of the images."""
        if not self.noise.dropout:
            return None
        B, _, h, w = codes_BDhw.shape
        is_dropped_B = draws.uniform(keys_B, _DROPPED, 1)[:, 0] < self.noise.dropout
        if not self.noise.masks_places:
            return is_dropped_B[:, None, None].expand(B, h, w)
        num_B = (draws.uniform(keys_B, _NUM_HIDDEN, 1)[:, 0] * (h * w + 1)).long()
        rank_BP = draws.uniform(keys_B, _HIDDEN, h * w).argsort(1).argsort(1)
        return ((rank_BP < num_B[:, None]) & is_dropped_B[:, None]).view(B, h, w)


def time_features(time_B: Tensor, width: int) -> Tensor:
    """float32 (B, width): cosines, then sines, of wavelengths up to 10 000."""
    half = width // 2
    rates = torch.exp(-np.log(10_000) * torch.arange(half, device=time_B.device, dtype=torch.float32) / half)
    angles = time_B[:, None].float() * rates
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def _thresholded(image_BCHW: Tensor) -> Tensor:
    """Scaled so that nearly all values lie between -1 and 1, and cut off there."""
    limit_B = image_BCHW.abs().flatten(1).quantile(_QUANTILE, dim=1).clamp(min=1)
    limit_B111 = limit_B[:, None, None, None]
    return image_BCHW.clamp(-limit_B111, limit_B111) / limit_B111
