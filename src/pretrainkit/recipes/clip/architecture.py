"""Architectures of encoders of other libraries. They are copied to the config when a run starts, so that the run no
longer needs their source. Imports no torch."""

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
"""Architectures of our presets, so that these can be built and planned without network."""


_LOCAL, _HUB = "local-dir", "hf-hub"
"""Sources of encoders that are not in timm's list of names."""


def bind_model(config: ClipRun) -> ClipRun:
    """Fill in the architectures of encoders that are stored in a folder or on the hub. Raises ConfigError if there is
    no such encoder."""
    image, text = config.model.image, config.model.text
    updates: dict[str, Any] = {}
    if isinstance(image, TimmConfig) and image.architecture is None and ":" in image.name:
        updates["image"] = bind_timm(image)
    if isinstance(text, HuggingFaceTextConfig) and text.architecture is None:
        updates["text"] = text.changed(architecture=read_architecture(text.name))
    return config.changed(model=updates) if updates else config


def bind_timm(config: TimmConfig) -> TimmConfig:
    """Fill in the content of the config.json of an encoder whose `name` has the form SOURCE:PLACE. The path of a folder
    becomes absolute. Raises ConfigError if the file does not exist or timm did not write it."""
    source, _, place = config.name.partition(":")
    if source == _LOCAL:
        place = str(Path(place).expanduser().absolute())
        path = Path(place) / "config.json"
    elif source.replace("_", "-") == _HUB:
        path = _from_hub(place, "model.image.name")
    else:
        raise ConfigError(
            f"model.image.name={config.name} has a source that timm does not know\n"
            f"  give {_LOCAL}:FOLDER, {_HUB}:NAME, or a name of timm"
        )
    content = _content(path, f"model.image.name={config.name}", "a folder that timm wrote")
    if "architecture" not in content:
        raise ConfigError(
            f"model.image.name={config.name}: {path} names no architecture of timm\n  give a folder that timm wrote"
        )
    return config.changed(name=f"{source}:{place}", architecture=content)


def with_name_of(wanted: ClipModelConfig, given: ClipModelConfig) -> ClipModelConfig:
    """Return `given` with the settings of `wanted` for its timm encoder if both are the same encoder. The tag of a name
    only identifies published weights, and dropout rates belong to the training."""
    image, own = wanted.image, given.image
    if not (isinstance(image, TimmConfig) and isinstance(own, TimmConfig)) or _identity(image) != _identity(own):
        return given
    same = {field: getattr(image, field) for field in ("name", "architecture", "options", "image_size")}
    return given.changed(image=own.changed(**same))


def _identity(config: TimmConfig) -> tuple[str, dict[str, Any]]:
    name = str((config.architecture or {}).get("architecture", config.name))
    if ":" not in name:
        name = re.sub(
            "_(in21k|in22k|in22ft1k)$", "", name.partition(".")[0]
        )  # suffixes that older versions of timm used as tags
    return name, {option: value for option, value in config.options.items() if "drop" not in option}


def read_architecture(name: str) -> dict[str, Any]:
    """Return the content of `config.json` in a folder or in a model on the hub. Raises ConfigError if it cannot be
    read."""
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
    """Return the path of the config.json of NAME or NAME@REVISION, downloaded from the hub."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = name.partition("@")
    try:
        return Path(hf_hub_download(name, "config.json", revision=revision or None))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"{field}={name} is not a folder, and cannot be read from the hub: {reason}\n"
            "  give the path of a folder, or a name on the hub with a network connection"
        ) from None
