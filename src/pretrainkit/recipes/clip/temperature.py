"""The factor of the logits: 1 / temperature, constant or learned."""

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pretrainkit.dist.parallelize import is_dtensor
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip.config import ClipModelConfig, TemperatureConfig

_log = logging.getLogger(__name__)
_ROUNDING = 1e-3
"""Share by which a temperature may be beyond a limit, as one that was learned up to it is."""


class Temperature(nn.Module):
    """A constant, the temperature itself, or the logarithm of its inverse (CLIP's logit scale).

    Learned ones are parameters of shape (1,), because FSDP2 cannot shard scalars.
    """

    def __init__(self, config: TemperatureConfig) -> None:
        super().__init__()
        self.config = config
        if config.kind == "parameter":
            self.temperature = nn.Parameter(torch.full((1,), config.value))
        elif config.kind == "log_parameter":
            self.log_scale = nn.Parameter(torch.full((1,), -math.log(config.value)))

    def logit_scale(self, device: torch.device | None = None) -> Tensor:
        """1 / temperature, a scalar within the limits; its gradient is zero where the parameter is outside of them. A
        constant is made on `device`."""
        config = self.config
        if config.kind == "parameter":
            return 1 / self.temperature.clamp(config.smallest, config.largest)[0]
        if config.kind == "log_parameter":
            return self.log_scale.clamp(max=-math.log(config.smallest)).exp()[0]
        return torch.full((), 1 / min(max(config.value, config.smallest), config.largest), device=device)

    @torch.no_grad()
    def project(self) -> None:
        """Set a learned temperature that is outside of its limits to the limit, unless the config says not to."""
        config = self.config
        if not config.project_back:
            return
        if config.kind == "parameter":
            _local(self.temperature).clamp_(config.smallest, config.largest)
        elif config.kind == "log_parameter":
            _local(self.log_scale).clamp_(max=-math.log(config.smallest))


_PARAMETER, _LOG_PARAMETER = "temperature.temperature", "temperature.log_scale"
"""Names in a model's weights."""


def with_kind_of(
    wanted: ClipModelConfig, given: ClipModelConfig, weights: Mapping[str, Tensor]
) -> tuple[ClipModelConfig, Mapping[str, Tensor]]:
    """`given` and its `weights` with their temperature as the parameter that `wanted` learns; as they are where it
    learns none.

    Raises:
        ConfigError: The temperature is beyond the limits of `wanted`, which would use the limit instead.
    """
    here, there = wanted.temperature, given.temperature
    if here.kind == "constant":
        return given, weights
    rest = {name: tensor for name, tensor in weights.items() if name not in (_PARAMETER, _LOG_PARAMETER)}
    if _PARAMETER in weights:
        temperature_1 = weights[_PARAMETER]
    elif _LOG_PARAMETER in weights:
        temperature_1 = weights[_LOG_PARAMETER].neg().exp()
    else:
        temperature_1 = torch.full((1,), there.value)
    value = float(temperature_1)
    if value < here.smallest * (1 - _ROUNDING):
        raise _beyond_limit(value, "smallest", here.smallest)
    if here.kind == "parameter" and value > here.largest * (1 + _ROUNDING):
        raise _beyond_limit(value, "largest", here.largest)
    if not math.isclose(value, here.value, rel_tol=_ROUNDING):
        _log.warning(
            "the weights have learned the temperature %.6g: the run starts with it, and model.temperature.value=%g is "
            "not used",
            *(value, here.value),
        )
    name = _PARAMETER if here.kind == "parameter" else _LOG_PARAMETER
    own = weights.get(name)
    rest[name] = own if own is not None else temperature_1 if name == _PARAMETER else temperature_1.log().neg()
    same = there.model_copy(update={"kind": here.kind})
    return given.model_copy(update={"temperature": same}), rest


def _beyond_limit(value: float, limit: str, here: float) -> ConfigError:
    return ConfigError(
        f"the weights have learned the temperature {value:.6g}, but model.temperature.{limit} is {here:g}, which would "
        f"be used instead\n  set model.temperature.{limit}={value:.4g}, or another limit beyond it"
    )


def _local(parameter: nn.Parameter) -> Tensor:
    """What of it lies on this rank (maybe nothing); shares its memory."""
    return parameter.to_local() if is_dtensor(parameter) else parameter  # type: ignore[attr-defined]
