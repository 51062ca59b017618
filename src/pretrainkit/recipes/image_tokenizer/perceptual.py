"""Images are compared by what another network sees in them.

Any transformer of timm, by distances of the outputs of its blocks; or LPIPS (Zhang et al. 2018,
https://arxiv.org/abs/1801.03924), whose layers are weighed as people see. Weights are the published ones, a file's, or
drawn (features of random networks tell textures apart, too). They stay as they are, and are no part of the model.

Dimensions: B images, C channels, H x W pixels, T places, D width.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError, ConfigError, MissingPackageError
from pretrainkit.exporting.torchvision_shim import import_timm, import_torchvision
from pretrainkit.nn.initialise import SkipInitialisation
from pretrainkit.recipes.image_tokenizer.config import RANDOM_WEIGHTS, PerceptualConfig
from pretrainkit.training.fake_tensor import FakeTensor


class Perceptual:
    """The distance of pictures with values from -1 to 1."""

    def __init__(self, config: PerceptualConfig) -> None:
        self._config = config
        self._network: Any = None

    def __call__(self, prediction_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
        """float32 (B,): the mean over blocks and places; of LPIPS its own."""
        network = (
            _without_numbers(self._config)
            if isinstance(prediction_BCHW, FakeTensor)
            else self._on(prediction_BCHW.device)
        )
        if self._config.is_lpips:
            found: Tensor = network(_three_channels(prediction_BCHW), _three_channels(target_BCHW))
            return found.float().flatten()
        seen = self._features(network, prediction_BCHW)
        with torch.no_grad():
            wanted = self._features(network, target_BCHW)
        return torch.stack([self._distance(x, y) for x, y in zip(seen, wanted, strict=True)]).mean(0)

    def require(self) -> None:
        """Open the network, so that a run without it ends before it begins.

        Raises:
            ConfigError, CheckpointError, MissingPackageError: It cannot be.
        """
        self._on(torch.device("cpu"))

    def _on(self, device: torch.device) -> Any:
        if self._network is None:
            self._network = _open(self._config)
        return self._network.to(device)

    def _features(self, network: Any, images_BCHW: Tensor) -> list[Tensor]:
        """Of each block, float32 (B, T, D)."""
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
        difference_BTD = x_BTD - y_BTD
        return (difference_BTD.abs() if kind == "l1" else difference_BTD.square()).flatten(1).mean(1)


def _three_channels(images_BCHW: Tensor) -> Tensor:
    """float32 (B, 3, H, W); grey is the same in all."""
    images_BCHW = images_BCHW.float()
    return images_BCHW.expand(-1, 3, -1, -1) if images_BCHW.shape[1] == 1 else images_BCHW


def _without_numbers(config: PerceptualConfig) -> nn.Module:
    """For `pretrainkit plan`."""
    from pretrainkit.training.fake_step import faked

    with torch.device("meta"), SkipInitialisation():
        return faked(_open(config.model_copy(update={"weights": RANDOM_WEIGHTS})))


def _open(config: PerceptualConfig) -> nn.Module:
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = _lpips(config) if config.is_lpips else _transformer(config)
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(
            f"objective.perceptual.network={config.network} cannot be opened: {error}\n"
            "  name a vision transformer of timm, or lpips_alex; without a connection give its file as "
            "objective.perceptual.weights"
        ) from error
    if config.weights not in (None, RANDOM_WEIGHTS):
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        try:
            load_model(network, str(config.weights))
        except (SafetensorError, RuntimeError, OSError) as error:
            names = "lpips's" if config.is_lpips else "timm's"
            raise CheckpointError(
                f"{config.weights} cannot be read as weights of {config.network}: {error}\n"
                f"  give a .safetensors file of that model by {names} names"
            ) from error
    return network.eval().requires_grad_(False)


def _transformer(config: PerceptualConfig) -> nn.Module:
    timm = import_timm("objective.perceptual")
    network: nn.Module = timm.create_model(
        config.network, pretrained=config.weights is None, img_size=config.image_size
    )
    return network


def _lpips(config: PerceptualConfig) -> nn.Module:
    """Of the published ones, the package holds how layers are weighed, and torchvision fetches the layers."""
    try:
        import_torchvision()
        import lpips
    except ImportError as error:
        raise MissingPackageError(error.name or "lpips", "lpips", "objective.perceptual") from None
    is_random = config.weights == RANDOM_WEIGHTS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it calls torchvision by names of before
        network: nn.Module = lpips.LPIPS(
            net=config.network.removeprefix("lpips_"),
            pretrained=not is_random,
            pnet_rand=config.weights is not None,
            verbose=False,
        )
    if is_random:
        for name, weight in network.named_parameters():
            if name.startswith("lin"):
                weight.data.abs_()  # else it would be no distance
    return network
