"""Losses and metrics of reconstructions: distances of pixel values, and distances of features of another network.

Dimensions: B images, C channels, K classes, H x W pixels, T grid positions, D width of a network.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import in_float32
from pretrainkit.errors import CheckpointError, ConfigError, MissingPackageError
from pretrainkit.exporting.torchvision_shim import import_timm, import_torchvision
from pretrainkit.nn.initialise import SkipInitialisation
from pretrainkit.recipes.image_tokenizer.config import RANDOM_WEIGHTS, PerceptualConfig, Reconstruction
from pretrainkit.training.fake_tensor import FakeTensor

_STABLE_1, _STABLE_2 = 0.01**2, 0.03**2
"""Constants of SSIM's denominators, as multiples of the squared value range."""
_WINDOW, _DEVIATION = 11, 1.5
_EXPONENTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Exponents of the scales of MS-SSIM, finest scale first."""
_LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "cross_entropy": F.cross_entropy,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
}


def reconstruction_loss(prediction: Tensor, target: Tensor, kind: Reconstruction) -> Tensor:
    """Return the mean loss of each image, float32 (B,).

    Args:
        prediction: Values (B, C, H, W), logits of classes (B, K, H, W), or logits of masks (B, C, H, W).
        target: Values (B, C, H, W), classes int64 (B, H, W), or masks of 0 and 1 (B, C, H, W).
        kind: See `ImageTokenizerObjectiveConfig.reconstruction`.
    """
    prediction = prediction.float()
    if kind == "cosine":
        return 1 - F.cosine_similarity(prediction.flatten(1), target.flatten(1), dim=1)
    if kind == "cosine_channels":
        return 1 - F.cosine_similarity(prediction, target, dim=1).flatten(1).mean(1)
    return _LOSSES[kind](prediction, target, reduction="none").flatten(1).mean(1)


def psnr(prediction_BCHW: Tensor, target_BCHW: Tensor, value_range: float) -> Tensor:
    """Return the peak signal-to-noise ratio in decibels, at most 100, float32 (B,)."""
    error_B = (prediction_BCHW.float() - target_BCHW).square().flatten(1).mean(1)
    return 10 * (value_range**2 / error_B.clamp(min=value_range**2 * 1e-10)).log10()


def ssim(prediction_BCHW: Tensor, target_BCHW: Tensor, value_range: float) -> Tensor:
    """Return the structural similarity, float32 (B,): the mean over all positions of an 11 x 11 Gaussian window (Wang
    et al. 2004, https://doi.org/10.1109/TIP.2003.819861). For smaller images the window is as large as the image."""
    with in_float32(prediction_BCHW):
        similarity_B, _ = _ssim(prediction_BCHW.float(), target_BCHW.float(), value_range)
    return similarity_B.mean(1)


def ms_ssim(prediction_BCHW: Tensor, target_BCHW: Tensor, value_range: float) -> Tensor:
    """Return the structural similarity at five scales, the mean over channels, float32 (B,) (Wang et al. 2003,
    https://doi.org/10.1109/ACSSC.2003.1292216). Images below 176 pixels use only the scales at which the window fits;
    their exponents are scaled to a sum of 1."""
    x, y = prediction_BCHW.float(), target_BCHW.float()
    side = min(x.shape[2:])
    num_scales = max(1, sum(side // 2**scale >= _WINDOW for scale in range(len(_EXPONENTS))))
    total = sum(_EXPONENTS[:num_scales])
    product_BC = torch.ones(x.shape[:2], device=x.device)
    with in_float32(x):
        for scale, exponent in enumerate(_EXPONENTS[:num_scales]):
            whole_BC, structure_BC = _ssim(x, y, value_range)
            is_last = scale == num_scales - 1
            product_BC = product_BC * (whole_BC if is_last else structure_BC).clamp(min=0) ** (exponent / total)
            x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
    return product_BC.mean(1)


def _ssim(x: Tensor, y: Tensor, value_range: float) -> tuple[Tensor, Tensor]:
    """Return the similarity, and its contrast-structure term alone, float32 (B, C) each."""
    size = min(_WINDOW, *x.shape[2:])
    offsets = torch.arange(size, device=x.device, dtype=torch.float32) - (size - 1) / 2
    line = (-offsets.square() / (2 * _DEVIATION**2)).exp()
    line = line / line.sum()

    def local(values: Tensor) -> Tensor:
        B, C, H, W = values.shape
        flat = F.conv2d(values.reshape(B * C, 1, H, W), line.view(1, 1, 1, -1))
        return F.conv2d(flat, line.view(1, 1, -1, 1)).unflatten(0, (B, C))

    mean_x, mean_y = local(x), local(y)
    variance_x, variance_y = local(x * x) - mean_x**2, local(y * y) - mean_y**2
    covariance = local(x * y) - mean_x * mean_y
    c1, c2 = _STABLE_1 * value_range**2, _STABLE_2 * value_range**2
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    whole = structure * (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return whole.flatten(2).mean(2), structure.flatten(2).mean(2)


class Perceptual:
    """Perceptual distance of pictures with values from -1 to 1.

    The network is a transformer of timm, and the distance is that between outputs of its blocks; or it is LPIPS (Zhang
    et al. 2018, https://arxiv.org/abs/1801.03924), whose layer weights are fitted to human judgements. Weights are the
    published ones, those of a file, or random (random features distinguish textures, too). They are frozen and not part
    of the model."""

    def __init__(self, config: PerceptualConfig) -> None:
        self._config = config
        self._network: Any = None

    def __call__(self, prediction_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
        """Return float32 (B,): the mean distance over blocks and positions, or LPIPS."""
        is_fake = isinstance(prediction_BCHW, FakeTensor)
        network = _without_numbers(self._config) if is_fake else self._on(prediction_BCHW.device)
        if self._config.is_lpips:
            distance: Tensor = network(_three_channels(prediction_BCHW), _three_channels(target_BCHW))
            return distance.float().flatten()
        features = self._features(network, prediction_BCHW)
        with torch.no_grad():
            target_features = self._features(network, target_BCHW)
        return torch.stack([self._distance(x, y) for x, y in zip(features, target_features, strict=True)]).mean(0)

    def require(self) -> None:
        """Load the network now, so that a run fails early if it is missing. Raises ConfigError, CheckpointError or
        MissingPackageError if it cannot be loaded."""
        self._on(torch.device("cpu"))

    def _on(self, device: torch.device) -> Any:
        if self._network is None:
            self._network = _open(self._config)
        return self._network.to(device)

    def _features(self, network: Any, images_BCHW: Tensor) -> list[Tensor]:
        """Return the output of each block, float32 (B, T, D)."""
        size = self._config.image_size
        images_BCHW = _three_channels(images_BCHW)
        if images_BCHW.shape[-1] != size:
            images_BCHW = F.interpolate(images_BCHW, (size, size), mode="bilinear", antialias=True, align_corners=False)
        mean, deviation = (torch.tensor(network.pretrained_cfg[name]) for name in ("mean", "std"))
        mean, deviation = mean.to(images_BCHW.device)[:, None, None], deviation.to(images_BCHW.device)[:, None, None]
        images_BCHW = ((images_BCHW + 1) / 2 - mean) / deviation
        outputs = network.forward_intermediates(
            images_BCHW, indices=list(self._config.blocks), output_fmt="NLC", intermediates_only=True
        )
        return [output.float() for output in outputs]

    def _distance(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        kind = self._config.distance
        if kind == "cosine":
            return (1 - F.cosine_similarity(x_BTD, y_BTD, dim=-1)).mean(1)
        return _LOSSES[kind](x_BTD, y_BTD, reduction="none").flatten(1).mean(1)


def _three_channels(images_BCHW: Tensor) -> Tensor:
    """Return float32 (B, 3, H, W). Grey images are repeated in all channels."""
    images_BCHW = images_BCHW.float()
    return images_BCHW.expand(-1, 3, -1, -1) if images_BCHW.shape[1] == 1 else images_BCHW


def _without_numbers(config: PerceptualConfig) -> nn.Module:
    """Build the network on the meta device, for `pretrainkit plan`."""
    from pretrainkit.training.fake_step import faked

    with torch.device("meta"), SkipInitialisation():
        return faked(_open(config.model_copy(update={"weights": RANDOM_WEIGHTS})))


def _open(config: PerceptualConfig) -> nn.Module:
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if config.is_lpips:
                network = _lpips(config)
            else:
                timm, has_weights = import_timm("objective.perceptual"), config.weights is None
                network = timm.create_model(config.network, pretrained=has_weights, img_size=config.image_size)
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(
            f"objective.perceptual.network={config.network} cannot be loaded: {error}\n"
            "  name a vision transformer of timm, or lpips_alex; without a network connection, give its weights file "
            "as objective.perceptual.weights"
        ) from error
    if config.weights not in (None, RANDOM_WEIGHTS):
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        try:
            load_model(network, str(config.weights))
        except (SafetensorError, RuntimeError, OSError) as error:
            names = "lpips" if config.is_lpips else "timm"
            raise CheckpointError(
                f"{config.weights} cannot be read as weights of {config.network}: {error}\n"
                f"  give a .safetensors file of that model with the tensor names of {names}"
            ) from error
    return network.eval().requires_grad_(False)


def _lpips(config: PerceptualConfig) -> nn.Module:
    """Build LPIPS. For the published weights, the package `lpips` contains the layer weights, and torchvision downloads
    the backbone."""
    try:
        import_torchvision()
        import lpips
    except ImportError as error:
        raise MissingPackageError(error.name or "lpips", "lpips", "objective.perceptual") from None
    is_random = config.weights == RANDOM_WEIGHTS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # lpips uses deprecated names of torchvision
        network: nn.Module = lpips.LPIPS(
            net=config.network.removeprefix("lpips_"),
            pretrained=not is_random,
            pnet_rand=config.weights is not None,
            verbose=False,
        )
    if is_random:
        for name, weight in network.named_parameters():
            if name.startswith("lin"):
                weight.data.abs_()  # with negative weights it would not be a distance
    return network
