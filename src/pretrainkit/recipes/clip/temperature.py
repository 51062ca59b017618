"""The factor of the logits: 1 / temperature, constant or learned."""

import math

import torch
from torch import Tensor, nn

from pretrainkit.dist.parallelize import is_dtensor
from pretrainkit.recipes.clip.config import TemperatureConfig


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

    def logit_scale(self) -> Tensor:
        """1 / temperature, a scalar within the limits; its gradient is zero where the parameter is outside of them."""
        config = self.config
        if config.kind == "parameter":
            return 1 / self.temperature.clamp(config.smallest, config.largest)[0]
        if config.kind == "log_parameter":
            return self.log_scale.clamp(max=-math.log(config.smallest)).exp()[0]
        return torch.tensor(1 / min(max(config.value, config.smallest), config.largest))

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


def _local(parameter: nn.Parameter) -> Tensor:
    """What of it lies on this rank (maybe nothing); shares its memory."""
    return parameter.to_local() if is_dtensor(parameter) else parameter  # type: ignore[attr-defined]
