"""Towers with image encoders of timm and text encoders of transformers.

Dimensions: B images or captions, T tokens, D width of the encoder's features.
"""

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.dist.devices import reads_at_once
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.eval.probe import ImageEncoder
from pretrainkit.exporting.torchvision_shim import import_timm, import_transformers
from pretrainkit.nn.foreign import (
    mask_of_pairs,
    precision_of,
    repeated_modules,
    round_residuals,
    stacked_layers,
    takes_mask_of_pairs,
    without_weights,
)
from pretrainkit.nn.initialise import SkipInitialisation, builds_on_meta
from pretrainkit.recipes.clip.architecture import bind_timm, read_architecture
from pretrainkit.recipes.clip.config import HuggingFaceTextConfig, TimmConfig
from pretrainkit.recipes.clip.towers import ImageTower, TextTower, Tower

PUBLISHED = ("input_size", "mean", "std", "interpolation", "crop_pct")
"""Fields of timm's `pretrained_cfg` that describe the inputs of an encoder."""
_IMAGE_SIZE, _PATCH_DROPOUT = "img_size", "patch_drop_rate"


class ForeignTower(Tower):
    """A tower around a module of another library."""

    def blocks(self) -> list[nn.Module]:
        return repeated_modules(self.encoder)

    def stacked_layers(self) -> dict[str, int]:
        return stacked_layers(self)


class TimmTower(ForeignTower, ImageTower):
    """Any encoder of timm without its classifier. Its pooled features represent the image.

    For a vision transformer with `global_pool: token`, they are the class token after the final norm. If an encoder
    returns all tokens, the first token is used.
    """

    def __init__(self, config: TimmConfig) -> None:
        super().__init__()
        timm = import_timm("model.image.kind=timm")
        if config.architecture is None and ":" in config.name:
            config = bind_timm(config)
        self.config = config
        self.arguments = arguments = constructor_arguments(timm, config)
        self.freezes_batch_norm = config.freeze_batch_norm
        if builds_on_meta():
            self.encoder = without_weights(lambda: _create(timm, config, pretrained=False, **arguments))
        else:
            self.encoder = _create(timm, config, pretrained=config.pretrained, **arguments)
        if config.sync_batch_norm:
            self.encoder = timm.layers.convert_sync_batchnorm(self.encoder)
        round_residuals(self.encoder)
        self.width = self.encoder.head_hidden_size
        published = self.encoder.pretrained_cfg
        self.mean_and_deviation = (tuple(published["mean"]), tuple(published["std"]))

    def train(self, mode: bool = True) -> "TimmTower":
        super().train(mode)
        if self.freezes_batch_norm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        try:
            features = self.encoder(pixels_BCHW)
        except AssertionError as error:
            size = pixels_BCHW.shape[-1]
            if "size" not in str(error) and "Input" not in str(error):  # words of timm's message about a wrong size
                raise
            raise ConfigError(
                f"images are {size} x {size} pixels, which model.image.name={self.config.name} does not accept: "
                f"{error}\n  set model.image.image_size={size}, or the sizes of data.train_transforms and "
                "data.valid_transforms"
            ) from error
        return features[:, 0] if features.ndim == 3 else features  # features of all tokens begin with the class token


def constructor_arguments(timm: ModuleType, config: TimmConfig) -> dict[str, Any]:
    """Return further arguments for `timm.create_model`, as far as the encoder's constructor takes them. Raises
    ConfigError if patch dropout is wanted and the encoder has none."""
    with torch.device("meta"), SkipInitialisation():
        encoder = _create(timm, config, pretrained=False)
    accepted = inspect.signature(type(encoder).__init__).parameters
    arguments: dict[str, Any] = {}
    if config.image_size is not None and _IMAGE_SIZE in accepted:
        arguments[_IMAGE_SIZE] = config.image_size
    if config.patch_dropout:
        if _PATCH_DROPOUT not in accepted:
            raise ConfigError(
                f"model.image.patch_dropout={config.patch_dropout}, but {config.name} ({type(encoder).__name__}) "
                "cannot drop patches\n  set it to 0, or use a vision transformer"
            )
        arguments[_PATCH_DROPOUT] = config.patch_dropout
    return arguments


def registered(config: TimmConfig) -> tuple[str, dict[str, Any]]:
    """Return timm's own name of the encoder, and the arguments of its config.json that `options` do not set."""
    if config.architecture is None:
        return config.name, {}
    stored = config.architecture.get("model_args") or {}
    given = {"num_classes", *config.options}
    return config.architecture["architecture"], {key: value for key, value in stored.items() if key not in given}


def _create(timm: ModuleType, config: TimmConfig, *, pretrained: bool, **arguments: Any) -> Any:
    name = config.name
    if config.architecture is not None and not pretrained:  # do not read the folder, which may no longer exist
        name, stored = registered(config)
        published = config.architecture.get("pretrained_cfg", config.architecture)
        overlay = {key: published[key] for key in PUBLISHED if key in published}
        arguments = {**stored, **arguments, "pretrained_cfg_overlay": overlay}
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments, **config.options)
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"timm cannot build model.image.name={config.name} with {config.options or 'no options'}: {error}\n"
            "  names: python -c 'import timm; print(timm.list_models())'; if its weights cannot be downloaded: "
            "model.image.pretrained=false"
        ) from error


def timm_encoder(name: str) -> ImageEncoder:
    """Return an encoder of timm with its published weights, for images of the size that it was trained with. Raises
    InputError if timm does not know the name or its weights cannot be downloaded, MissingPackageError if timm is not
    installed."""
    try:
        tower = TimmTower(TimmConfig(name=name))
    except ConfigError as error:
        raise InputError(
            f"timm cannot load the encoder timm:{name}: {error.__cause__}\n"
            "  names: python -c 'import timm; print(timm.list_pretrained())'; without network, its weights must "
            "already be in the hub's cache"
        ) from error
    mean_311, deviation_311 = (torch.tensor(color).view(3, 1, 1) for color in tower.mean_and_deviation)

    def encode(image_B3HW: Tensor) -> Tensor:
        pixels = (image_B3HW.float() / 255 - mean_311.to(image_B3HW.device)) / deviation_311.to(image_B3HW.device)
        features_BF: Tensor = tower(pixels)
        return features_BF

    return ImageEncoder(tower, encode, int(tower.encoder.pretrained_cfg["input_size"][-1]))


_POOLER = "add_pooling_layer"


class HuggingFaceTower(ForeignTower, TextTower):
    """Any encoder of transformers. The last hidden state of one token represents the caption, or the mean over those of
    real tokens. Its pooler is left out, because parameters without a gradient would stop distributed training."""

    def __init__(self, config: HuggingFaceTextConfig) -> None:
        super().__init__()
        self.pool_token = config.pool_token
        architecture = config.architecture or read_architecture(config.name)
        if builds_on_meta():
            self.encoder = without_weights(lambda: encoder_from(architecture))
        else:
            self.encoder = encoder_from(architecture, config.name if config.pretrained else None)
        round_residuals(self.encoder)
        self.width = self.encoder.config.hidden_size
        self._takes_pairs = takes_mask_of_pairs(self.encoder)

    def forward(self, ids_BT: Tensor, num_tokens_B: Tensor | None = None) -> Tensor:
        ids_BT, num = ids_BT.long(), ids_BT.shape[1]
        mask = is_real_BT = None
        if num_tokens_B is not None:
            is_real_BT = torch.arange(num, device=ids_BT.device) < num_tokens_B[:, None]
            needs_pairs = self._takes_pairs and not reads_at_once(ids_BT.device)
            mask = mask_of_pairs(is_real_BT) if needs_pairs else is_real_BT.long()
        with precision_of(self.encoder, ids_BT):
            hidden_BTD: Tensor = self.encoder(input_ids=ids_BT, attention_mask=mask).last_hidden_state
        if self.pool_token != "mean":
            return hidden_BTD[:, self.pool_token]
        if is_real_BT is None:
            return hidden_BTD.mean(dim=1)
        return (hidden_BTD * is_real_BT[..., None]).sum(dim=1) / is_real_BT.sum(dim=1, keepdim=True)


def encoder_from(architecture: Mapping[str, Any], name: str | None = None) -> Any:
    """Return a float32 encoder of the architecture in a `config.json`, without pooler; for encoder-decoders only the
    encoder. It has the weights of `name` (a folder or a name on the hub), or new weights if `name` is None. Raises
    ConfigError if transformers does not know the architecture, or cannot load the weights."""
    auto, values = import_transformers().models.auto, dict(architecture)
    kind = values.pop("model_type", None)
    try:
        config = auto.AutoConfig.for_model(kind, **values)
    except Exception as error:  # each of the classes checks its values with errors of its own
        raise ConfigError(
            f"transformers cannot read the architecture of model.text, model_type {kind!r}: {error}\n"
            "  give the folder of a text encoder"
        ) from error
    is_text_encoder = type(config) in auto.modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING
    maker = auto.AutoModelForTextEncoding if is_text_encoder else auto.AutoModel
    settings: dict[str, Any] = {"dtype": torch.float32}
    with torch.device("meta"), SkipInitialisation():
        constructor = type(maker.from_config(config)).__init__
    if _POOLER in inspect.signature(constructor).parameters:
        settings[_POOLER] = False
    if name is None:
        return maker.from_config(config, **settings)
    try:
        return maker.from_pretrained(name, **settings, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"transformers cannot load the weights of model.text.name={name}: {error}\n"
            "  give a folder that it wrote, or start without its weights: model.text.pretrained=false"
        ) from error
