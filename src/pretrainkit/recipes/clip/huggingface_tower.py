"""Text encoders of transformers.

Dimensions: B captions, T tokens, D width of the encoder.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.errors import ConfigError
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.nn.foreign import repeated_modules, stacked_layers, without_weights
from pretrainkit.nn.initialise import SkipInitialisation, builds_on_meta
from pretrainkit.recipes.clip.architecture import read_architecture
from pretrainkit.recipes.clip.config import HuggingFaceTextConfig
from pretrainkit.recipes.clip.towers import TextTower

_POOLER = "add_pooling_layer"


class HuggingFaceTower(TextTower):
    """Any encoder of transformers; one token's last hidden state stands for the caption. Its own pooler is left out:
    parameters without a gradient would stop distributed training."""

    def __init__(self, config: HuggingFaceTextConfig) -> None:
        super().__init__()
        self.pool_token = config.pool_token
        architecture = config.architecture or read_architecture(config.name)
        if builds_on_meta():
            self.encoder = without_weights(lambda: encoder_from(architecture))
        elif config.pretrained:
            self.encoder = _pretrained(config.name, architecture)
        else:
            self.encoder = encoder_from(architecture)
        self.width = self.encoder.config.hidden_size

    def blocks(self) -> list[nn.Module]:
        return repeated_modules(self.encoder)

    def stacked_layers(self) -> dict[str, int]:
        return stacked_layers(self)

    def forward(self, ids_BT: Tensor, num_tokens_B: Tensor | None = None) -> Tensor:
        ids_BT = ids_BT.long()
        is_real_BT = None
        if num_tokens_B is not None:
            is_real_BT = (torch.arange(ids_BT.shape[1], device=ids_BT.device) < num_tokens_B[:, None]).long()
        return self.encoder(input_ids=ids_BT, attention_mask=is_real_BT).last_hidden_state[:, self.pool_token]


def encoder_from(architecture: Mapping[str, Any]) -> Any:
    """A fresh encoder of the architecture in a `config.json`, without pooler; float32.

    Raises:
        ConfigError: transformers does not know it.
    """
    found = _transformers_config(architecture)
    return _auto_class(found).from_config(found, dtype=torch.float32, **_without_pooler(found))


def _pretrained(name: str, architecture: Mapping[str, Any]) -> Any:
    found = _transformers_config(architecture)
    try:
        return _auto_class(found).from_pretrained(name, dtype=torch.float32, **_without_pooler(found))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"transformers cannot load the weights of model.text.name={name}: {error}\n"
            "  give a folder that it wrote, or start from its config alone: model.text.pretrained=false"
        ) from error


def _transformers_config(architecture: Mapping[str, Any]) -> Any:
    values = dict(architecture)
    kind = values.pop("model_type", None)
    try:
        return import_transformers().AutoConfig.for_model(kind, **values)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"transformers cannot read the architecture of model.text, model_type {kind!r}: {error}\n"
            "  give the folder of a text encoder"
        ) from error


def _auto_class(config: Any) -> Any:
    """Of encoder-decoders the encoder alone."""
    auto = import_transformers().models.auto.modeling_auto
    return auto.AutoModelForTextEncoding if type(config) in auto.MODEL_FOR_TEXT_ENCODING_MAPPING else auto.AutoModel


def _without_pooler(config: Any) -> dict[str, bool]:
    """The argument that leaves the pooler out, where the constructor takes it."""
    with torch.device("meta"), SkipInitialisation():
        kind = type(_auto_class(config).from_config(config))
    return {_POOLER: False} if _POOLER in inspect.signature(kind.__init__).parameters else {}
