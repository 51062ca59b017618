"""A model of two towers, and projections of both to the same space.

Dimensions: B pairs, T tokens, D width of a tower, E width of the embeddings.
Sources: Radford et al. 2021, https://arxiv.org/abs/2103.00020; Cui et al. 2022, https://arxiv.org/abs/2112.09331.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.devices import from_host
from pretrainkit.dist.parallelize import is_dtensor
from pretrainkit.errors import ConfigError
from pretrainkit.nn.blocks import LayerNorm
from pretrainkit.nn.dropout import dropout
from pretrainkit.recipes.clip.config import (
    ClipModelConfig,
    ClipObjectiveConfig,
    ClipRun,
    HuggingFaceTextConfig,
    ProjectionConfig,
    TemperatureConfig,
    TemperatureKind,
    TextTransformerConfig,
    TimmConfig,
    TowerConfig,
    VitConfig,
)
from pretrainkit.recipes.clip.foreign_towers import HuggingFaceTower, TimmTower
from pretrainkit.recipes.clip.losses import ScoreProducts
from pretrainkit.recipes.clip.towers import Color, ImageTower, OwnImageTower, OwnTextTower, TextTower, Tower

_NORM_EPSILON = 1e-8
"""Added to the length of an embedding before the division, so that zeros stay zeros."""
_PROJECTION_EPSILON = 1e-5
_log = logging.getLogger(__name__)
_ROUNDING = 1e-3
"""Relative tolerance for a temperature outside a limit, because a learned temperature may have reached it."""


class Temperature(nn.Module):
    """A constant temperature, a learned temperature, or a learned logarithm of its inverse (CLIP's logit scale).

    Parameters have the shape (1,), because FSDP2 cannot shard scalars.
    """

    def __init__(self, config: TemperatureConfig) -> None:
        super().__init__()
        self.config = config
        if config.kind == "parameter":
            self.temperature = nn.Parameter(torch.full((1,), config.value))
        elif config.kind == "log_parameter":
            self.log_scale = nn.Parameter(torch.full((1,), -math.log(config.value)))

    def logit_scale(self, device: torch.device | None = None) -> Tensor:
        """Return 1 / temperature, a scalar within the limits. Its gradient is zero if the parameter is outside of them.
        A constant is created on `device`."""
        config = self.config
        if config.kind == "parameter":
            return 1 / self.temperature.clamp(config.smallest, config.largest)[0]
        if config.kind == "log_parameter":
            return self.log_scale.clamp(max=-math.log(config.smallest)).exp()[0]
        return torch.full((), 1 / min(max(config.value, config.smallest), config.largest), device=device)

    @torch.no_grad()
    def project(self) -> None:
        """Set a learned temperature outside its limits to the limit, if `project_back` is set."""
        config = self.config
        if not config.project_back:
            return
        if config.kind == "parameter":
            _local(self.temperature).clamp_(config.smallest, config.largest)
        elif config.kind == "log_parameter":
            _local(self.log_scale).clamp_(max=-math.log(config.smallest))


_PARAMETER, _LOG_PARAMETER = "temperature.temperature", "temperature.log_scale"
_LOGIT_BIAS = "logit_bias"
"""Names of parameters in a model's weights."""


def with_temperature(weights: Mapping[str, Tensor], kind: TemperatureKind) -> dict[str, Tensor]:
    """Return the weights with their temperature, if they have one, as the parameter of `kind`; a constant has none."""
    name, other = (_PARAMETER, _LOG_PARAMETER) if kind == "parameter" else (_LOG_PARAMETER, _PARAMETER)
    converted = {key: tensor for key, tensor in weights.items() if key not in (name, other)}
    if kind != "constant" and name in weights:
        converted[name] = weights[name]
    elif kind != "constant" and other in weights:
        converted[name] = weights[other].neg().exp() if kind == "parameter" else weights[other].log().neg()
    return converted


def with_kind_of(
    wanted: ClipModelConfig, given: ClipModelConfig, weights: Mapping[str, Tensor]
) -> tuple[ClipModelConfig, Mapping[str, Tensor]]:
    """Return `given` and its `weights`, with the temperature in the form that `wanted` learns. If the temperature of
    `wanted` is constant, both are returned unchanged. Raises ConfigError if the temperature is outside the limits of
    `wanted`, because training would then replace it by the limit."""
    here, there = wanted.temperature, given.temperature
    if here.kind == "constant":
        return given, weights
    if _PARAMETER not in weights and _LOG_PARAMETER not in weights:
        weights = {**weights, _PARAMETER: torch.full((1,), there.value)}
    value = float(with_temperature(weights, "parameter")[_PARAMETER])
    if value < here.smallest * (1 - _ROUNDING):
        raise _beyond_limit(value, "smallest", here.smallest)
    if here.kind == "parameter" and value > here.largest * (1 + _ROUNDING):
        raise _beyond_limit(value, "largest", here.largest)
    if not math.isclose(value, here.value, rel_tol=_ROUNDING):
        _log.warning(
            "the weights have the learned temperature %.6g: the run starts with it, and model.temperature.value=%g is "
            "not used",
            *(value, here.value),
        )
    return given.changed(temperature={"kind": here.kind}), with_temperature(weights, here.kind)


def with_bias_of(objective: ClipObjectiveConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with a bias of the logits if the loss has one, and without it otherwise. If they have none, it
    starts at `siglip_bias`."""
    converted = {name: tensor for name, tensor in weights.items() if name != _LOGIT_BIAS}
    if objective.loss == "siglip":
        converted[_LOGIT_BIAS] = weights.get(_LOGIT_BIAS, torch.full((1,), objective.siglip_bias))
    return converted


def _beyond_limit(value: float, limit: str, here: float) -> ConfigError:
    return ConfigError(
        f"the weights have the learned temperature {value:.6g}, but model.temperature.{limit} is {here:g}, which would "
        f"be used instead\n  set model.temperature.{limit}={value:.4g}, or another limit that allows it"
    )


def _local(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a parameter (maybe empty), which shares its memory."""
    return parameter.to_local() if is_dtensor(parameter) else parameter  # type: ignore[attr-defined]


def build_image_tower(config: VitConfig | TimmConfig) -> ImageTower:
    """Build the image tower on torch's default device, with its weights (none on "meta") and frozen parameters."""
    tower: ImageTower = OwnImageTower(config) if isinstance(config, VitConfig) else TimmTower(config)
    _freeze(tower, config, "model.image")
    return tower


def build_text_tower(config: TextTransformerConfig | HuggingFaceTextConfig) -> TextTower:
    """Build the text tower, like `build_image_tower`."""
    tower: TextTower = OwnTextTower(config) if isinstance(config, TextTransformerConfig) else HuggingFaceTower(config)
    _freeze(tower, config, "model.text")
    return tower


def _freeze(tower: Tower, config: TowerConfig, name: str) -> None:
    if not config.trainable:
        tower.requires_grad_(False)
    elif config.num_trainable_layers == 0:
        raise ConfigError(f"{name}.num_trainable_layers=0 trains nothing\n  set {name}.trainable=false instead")
    elif (num_layers := config.num_trainable_layers) is not None:
        blocks = tower.blocks()
        if num_layers > len(blocks):
            raise ConfigError(
                f"{name}.num_trainable_layers={num_layers}, but the tower has {len(blocks)} blocks\n"
                "  give a smaller number, or null for the whole tower"
            )
        # Parameters are in the order of the layers: those from the first trainable block on are trained.
        first, learns = next(blocks[-num_layers].parameters()), False
        for parameter in tower.parameters():
            learns = learns or parameter is first
            parameter.requires_grad_(learns)


class ResidualProjection(nn.Module):
    """Linear, GELU, linear, dropout, sum with the first linear, layer norm: the `complex` projection of ZeroVL."""

    def __init__(self, width: int, dim: int, dropout_rate: float) -> None:
        super().__init__()
        self.dropout_rate = dropout_rate
        self.linear = nn.Linear(width, dim)
        self.inner = nn.Linear(dim, dim)
        self.norm = LayerNorm(dim, _PROJECTION_EPSILON)

    def forward(self, x_BD: Tensor) -> Tensor:
        x_BE = self.linear(x_BD)
        inner_BE = dropout(self.inner(F.gelu(x_BE)), self.dropout_rate, is_training=self.training)
        return self.norm(x_BE + inner_BE)


def build_projection(
    config: ProjectionConfig, width: int, *, learns: bool, is_text: bool = False, has_bias: bool = False
) -> nn.Module:
    """Return the projection from (B, D) to (B, E) for a tower of this width."""
    if config.kind == "text_mlp" and is_text:
        inner_width = config.mlp_width(width)
        layers: OrderedDict[str, nn.Module] = OrderedDict(hidden=nn.Linear(width, inner_width, bias=False))
        layers["activation"], layers["linear"] = nn.GELU(), nn.Linear(inner_width, config.dim, bias=False)
        return nn.Sequential(layers).requires_grad_(learns)
    if config.kind == "residual":
        return ResidualProjection(width, config.dim, config.dropout).requires_grad_(learns)
    linear = nn.Linear(width, config.dim, bias=has_bias)
    return nn.Sequential(OrderedDict(linear=linear)).requires_grad_(learns)  # named as in checkpoints


class DualEncoder(nn.Module):
    """Computes embeddings of images and captions, separately or in one call. It is created on torch's default device
    and initialized from its global generator; on "meta" without values."""

    def __init__(self, config: ClipRun) -> None:
        """Raise ConfigError if a tower cannot be built, MissingPackageError if it needs a package that is not
        installed."""
        super().__init__()
        projection = config.model.projection
        self.image, self.text = build_image_tower(config.model.image), build_text_tower(config.model.text)
        if is_text_only := projection.kind == "text_only":
            if self.image.width != projection.dim:
                raise ConfigError(
                    f"model.projection.kind=text_only leaves images their width of {self.image.width}, but "
                    f"model.projection.dim is {projection.dim}\n  set model.projection.dim={self.image.width}"
                )
            self.image_projection: nn.Module = nn.Identity()
        else:
            self.image_projection = build_projection(
                *(projection, self.image.width),
                learns=projection.image_trainable,
                has_bias=projection.kind == "image_bias",
            )
        self.text_projection = build_projection(
            projection, self.text.width, learns=projection.text_trainable, is_text=True, has_bias=is_text_only
        )
        self.temperature = Temperature(config.model.temperature)
        is_siglip = config.objective.loss == "siglip"
        self.logit_bias = nn.Parameter(torch.full((1,), config.objective.siglip_bias)) if is_siglip else None
        self.score_products = ScoreProducts()
        self.mean_and_deviation: tuple[Color, Color] = config.data.normalize or self.image.mean_and_deviation
        self.is_normalized = projection.normalize

    def blocks(self) -> list[nn.Module]:
        """Return the submodules to compile, shard and recompute one by one."""
        return [*self.image.blocks(), *self.text.blocks()]

    def logit_scale(self) -> Tensor:
        """Return 1 / temperature, a scalar within its limits, without gradient outside of them."""
        return self.temperature.logit_scale(next(self.text_projection.parameters()).device)

    def project_temperature(self) -> None:
        """Set a learned temperature outside its limits to the limit."""
        self.temperature.project()

    def train(self, mode: bool = True) -> "DualEncoder":
        """Set the mode. Frozen towers stay in evaluation mode: no dropout, and batch norm keeps its statistics."""
        super().train(mode)
        for tower in (self.image, self.text):
            if not _learns(tower):
                tower.eval()
        return self

    def forward(
        self,
        image: Tensor | None = None,
        input_ids: Tensor | None = None,
        num_tokens: Tensor | None = None,
        *,
        image_features: Tensor | None = None,
        text_features: Tensor | None = None,
        image_share: Tensor | None = None,
        text_share: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return embeddings (B, E) of the given inputs by name: "image", "text".

        Args:
            image: uint8 (B, 3, H, W), or normalized floats.
            input_ids: Integer (B, T).
            num_tokens: Integer (B,), the number of real tokens of each caption, at least 1; None: all are real.
            image_features: (B, D) cached outputs of the image tower, instead of `image`.
            text_features: (B, D) cached outputs of the text tower, instead of `input_ids`.
            image_share: Scalar s for mixup: pixels become s x (image) + (1 - s) x (image of the mirrored row).
                None: no mixup.
            text_share: The same for projected captions, before they are scaled to length 1.
        """
        embeddings = {}
        if image is not None:
            pixels_BCHW = _mirrored(self.normalized(image), image_share)
            with _graph_if(_learns(self.image)):
                image_features = self.image(pixels_BCHW)
        if image_features is not None:
            embeddings["image"] = self._unit(self.image_projection(image_features))
        if input_ids is not None:
            with _graph_if(_learns(self.text)):
                text_features = self.text(input_ids, num_tokens)
        if text_features is not None:
            embeddings["text"] = self._unit(_mirrored(self.text_projection(text_features), text_share))
        return embeddings

    def normalized(self, image: Tensor) -> Tensor:
        """Normalize uint8 (B, 3, H, W) to floats with about mean 0 and deviation 1. Floats are returned unchanged."""
        if image.is_floating_point():
            return image
        mean_311, deviation_311 = (from_host(values, image.device).view(3, 1, 1) for values in self.mean_and_deviation)
        dtype = next(self.text_projection.parameters()).dtype
        if not self.training:  # the order of operations of torchvision, so that evaluation is equal to the last bit
            return image.float().div_(255).sub_(mean_311).div_(deviation_311).to(dtype)
        # (x / 255 - mean) / deviation as one product and one sum.
        scale_311, shift_311 = (1 / (255 * deviation_311)).to(dtype), (-mean_311 / deviation_311).to(dtype)
        return image.to(dtype).mul_(scale_311).add_(shift_311)

    def _unit(self, x_BE: Tensor) -> Tensor:
        if not self.is_normalized:
            return x_BE
        x_BE = x_BE.to(torch.promote_types(x_BE.dtype, torch.float32))
        length_B1 = x_BE.norm(dim=-1, keepdim=True)
        return x_BE / (length_B1 + _NORM_EPSILON)


def _learns(tower: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in tower.parameters())


def _graph_if(is_learning: bool) -> AbstractContextManager[object]:
    """Record the graph only if a tower is trained."""
    return torch.set_grad_enabled(is_learning and torch.is_grad_enabled())


def _mirrored(x: Tensor, share: Tensor | None) -> Tensor:
    """Return share x (each row) + (1 - share) x (the mirrored row: row i is mixed with row B - 1 - i)."""
    return x if share is None else share * x + (1 - share) * x.flip(0)
