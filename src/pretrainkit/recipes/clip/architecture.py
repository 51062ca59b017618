"""Facts about encoders that a model's config takes from elsewhere when a run starts, so that the run no longer needs
the source. Torch-free."""

import json
import re
from pathlib import Path
from typing import Any

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip.config import ClipModelConfig, ClipRun, HuggingFaceTextConfig, TimmConfig

_BERT_BASE = {
    "model_type": "bert",
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_KNOWN = {"bert-base-uncased": _BERT_BASE, "google-bert/bert-base-uncased": _BERT_BASE}
"""Those of our presets, which so can be built and counted without network."""


_LOCAL, _HUB = "local-dir", "hf-hub"
"""Sources of encoders that timm does not know by name."""


def bind_model(config: ClipRun) -> ClipRun:
    """Fill in the architectures of foreign encoders that are stored in a folder or on a hub. Raises ConfigError where
    there is no such encoder."""
    image, text = config.model.image, config.model.text
    updates: dict[str, Any] = {}
    if isinstance(image, TimmConfig) and image.architecture is None and ":" in image.name:
        updates["image"] = bind_timm(image)
    if isinstance(text, HuggingFaceTextConfig) and text.architecture is None:
        updates["text"] = text.changed(architecture=read_architecture(text.name))
    return config.changed(model=updates) if updates else config


def bind_timm(config: TimmConfig) -> TimmConfig:
    """Fill in the contents of the config.json that `name`, of the form SOURCE:PLACE, points at; the path of a folder
    becomes absolute. Raises ConfigError where there is none, or it is not of timm."""
    source, _, place = config.name.partition(":")
    if source == _LOCAL:
        place = str(Path(place).expanduser().absolute())
        path = Path(place) / "config.json"
    elif source.replace("_", "-") == _HUB:
        path = _from_hub(place, "model.image.name")
    else:
        raise ConfigError(
            f"model.image.name={config.name} names a place that timm does not know\n"
            f"  give {_LOCAL}:FOLDER, {_HUB}:NAME, or a name of timm"
        )
    found = _content(path, f"model.image.name={config.name}", "a folder that timm wrote")
    if "architecture" not in found:
        raise ConfigError(
            f"model.image.name={config.name}: {path} names no architecture of timm\n  give a folder that timm wrote"
        )
    return config.changed(name=f"{source}:{place}", architecture=found)


def with_name_of(wanted: ClipModelConfig, given: ClipModelConfig) -> ClipModelConfig:
    """`given` with the settings of `wanted` for its encoder of timm, where both are the same one: the tag of a name
    only says which weights were published with it, and rates of dropout belong to a training."""
    image, own = wanted.image, given.image
    if not (isinstance(image, TimmConfig) and isinstance(own, TimmConfig)) or _identity(image) != _identity(own):
        return given
    same = {field: getattr(image, field) for field in ("name", "architecture", "options", "image_size")}
    return given.changed(image=own.changed(**same))


def _identity(config: TimmConfig) -> tuple[str, dict[str, Any]]:
    name = str((config.architecture or {}).get("architecture", config.name))
    if ":" not in name:
        name = re.sub("_(in21k|in22k|in22ft1k)$", "", name.partition(".")[0])  # which were tags in older versions
    return name, {option: value for option, value in config.options.items() if "drop" not in option}


def read_architecture(name: str) -> dict[str, Any]:
    """Return the contents of the `config.json` of a folder, or of a name on the hub. Raises ConfigError where it cannot
    be read."""
    if Path(name).is_dir():
        path = Path(name) / "config.json"
    elif name in _KNOWN:
        return dict(_KNOWN[name])
    else:
        path = _from_hub(name, "model.text.name")
    return _content(path, f"model.text.name={name}", "a folder that transformers wrote")


def _content(path: Path, given: str, wanted: str) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{given}: {path} cannot be read: {error}\n  give {wanted}") from None


def _from_hub(name: str, field: str) -> Path:
    """The config.json of NAME or NAME@REVISION."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = name.partition("@")
    try:
        return Path(hf_hub_download(name, "config.json", revision=revision or None))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"{field}={name} is no folder here, and the hub does not give it: {reason}\n"
            "  give the path of a folder, or a name on the hub where there is network"
        ) from None
