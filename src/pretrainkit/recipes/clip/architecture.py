"""What a model's config takes from elsewhere when a run starts, so that the run needs it no more. Torch-free."""

import json
from pathlib import Path
from typing import Any

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip.config import ClipRun, HuggingFaceTextConfig

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


def bind_model(config: ClipRun) -> ClipRun:
    """The config with the architecture of its transformers encoder filled in.

    Raises:
        ConfigError: There is no such encoder.
    """
    text = config.model.text
    if not isinstance(text, HuggingFaceTextConfig) or text.architecture is not None:
        return config
    text = text.model_copy(update={"architecture": read_architecture(text.name)})
    return config.model_copy(update={"model": config.model.model_copy(update={"text": text})})


def read_architecture(name: str) -> dict[str, Any]:
    """The contents of the `config.json` of a folder, or of a name on the hub.

    Raises:
        ConfigError: It cannot be read.
    """
    if Path(name).is_dir():
        path = Path(name) / "config.json"
    elif name in _KNOWN:
        return dict(_KNOWN[name])
    else:
        path = _from_hub(name)
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(
            f"model.text.name={name}: {path} cannot be read: {error}\n  give a folder that transformers wrote"
        ) from None


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, "config.json"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"model.text.name={name} is no folder here, and the hub does not give it: {reason}\n"
            "  give the path of a folder that transformers wrote, or a name on the hub where there is network"
        ) from None
