"""Our own towers in the names and settings of transformers' CLIP, both ways. Nothing here imports transformers.

Dimensions: D width, P patch size.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import TextTransformerConfig, VitConfig

State = Mapping[str, Tensor]

_CHANNELS = 3
_VISION_NORMS = {"norm_before": "pre_layrnorm", "norm_after": "post_layernorm"}
_TEXT_NORMS = {"norm_after": "final_layer_norm"}
"""Our name to theirs (their spelling)."""
_LEGACY_EOS = 2
"""With this `eos_token_id` transformers reads the token of the highest id in place of the end token."""


def refuse_vision(config: VitConfig) -> None:
    """InputError where `CLIPVisionModel` computes something else."""
    if config.pool != "cls":
        raise InputError(
            f"transformers' CLIP reads the class token; model.image.pool={config.pool} cannot be expressed\n"
            "  use --format safetensors"
        )


def refuse_text(config: TextTransformerConfig, tokenizer: CaptionTokenizer) -> None:
    """InputError where `CLIPTextModel` computes something else."""
    if not config.causal or config.pool != "eos":
        raise InputError(
            "transformers' CLIP is causal and reads the end token; "
            f"model.text.causal={str(config.causal).lower()} with model.text.pool={config.pool} cannot be expressed\n"
            "  use --format safetensors"
        )
    if not tokenizer.suffix:
        raise InputError(
            f"transformers' CLIP reads the end token, which the tokenizer in {tokenizer.folder} does not put there\n"
            "  use --format safetensors"
        )
    if tokenizer.suffix[-1] == _LEGACY_EOS:
        raise InputError(
            f"the end token has the id {_LEGACY_EOS}, with which transformers' CLIP reads the token of the highest id\n"
            "  use --format safetensors, or train with a tokenizer whose end token has another id"
        )


def vision_values(config: VitConfig) -> dict[str, Any]:
    """`vision_config` of `config.json`."""
    return {
        "model_type": "clip_vision_model",
        **_shared_values(config),
        "num_channels": _CHANNELS,
        "image_size": config.image_size,
        "patch_size": config.patch_size,
    }


def text_values(config: TextTransformerConfig, tokenizer: CaptionTokenizer) -> dict[str, Any]:
    """`text_config` of `config.json`."""
    return {
        "model_type": "clip_text_model",
        **_shared_values(config),
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.prefix[0] if tokenizer.prefix else None,
        "eos_token_id": tokenizer.suffix[-1],
    }


def _shared_values(config: VitConfig | TextTransformerConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_act": config.activation,
        "layer_norm_eps": config.layer_norm_epsilon,
        "attention_dropout": config.attention_dropout,
    }


def vision_config(values: Mapping[str, Any]) -> VitConfig:
    """Our tower for a `vision_config`. Keys that are missing have the defaults of transformers."""
    if values.get("num_channels", _CHANNELS) != _CHANNELS:
        raise CheckpointError(f"config.json has num_channels {values['num_channels']}\n  this recipe only has 3")
    defaults = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    return VitConfig(
        image_size=values.get("image_size", 224),
        patch_size=values.get("patch_size", 32),
        pool="cls",
        **_shared_settings({**defaults, **values}),
    )


def text_config(values: Mapping[str, Any]) -> TextTransformerConfig:
    """Our tower for a `text_config`. Keys that are missing have the defaults of transformers."""
    defaults = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
    return TextTransformerConfig(
        vocab_size=values.get("vocab_size", 49_408),
        max_positions=values.get("max_position_embeddings", 77),
        causal=True,
        pool="eos",
        **_shared_settings({**defaults, **values}),
    )


def _shared_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    activation = values.get("hidden_act", "quick_gelu")
    if activation not in ("gelu", "quick_gelu"):
        raise CheckpointError(f"config.json has hidden_act {activation!r}\n  this recipe has gelu and quick_gelu")
    return {
        "hidden_size": values["hidden_size"],
        "intermediate_size": values["intermediate_size"],
        "num_layers": values["num_hidden_layers"],
        "num_heads": values["num_attention_heads"],
        "activation": activation,
        "layer_norm_epsilon": values.get("layer_norm_eps", 1e-5),
        "attention_dropout": values.get("attention_dropout", 0.0),
    }


def vision_to_transformers(state: State, config: VitConfig) -> dict[str, Tensor]:
    """The tensors of `VisionTransformer` under the names of `CLIPVisionModel`."""
    size = config.patch_size
    return {
        "embeddings.class_embedding": state["class_token"],
        "embeddings.patch_embedding.weight": state["patch.weight"].unflatten(1, (_CHANNELS, size, size)),
        "embeddings.position_embedding.weight": state["position_embedding"],
        **_to_transformers(state, _VISION_NORMS, config.num_layers),
    }


def vision_from_transformers(state: State, config: VitConfig) -> dict[str, Tensor]:
    """The other way round."""
    return {
        "class_token": state["embeddings.class_embedding"],
        "patch.weight": state["embeddings.patch_embedding.weight"].flatten(1),
        "position_embedding": state["embeddings.position_embedding.weight"],
        **_from_transformers(state, _VISION_NORMS, config.num_layers),
    }


def text_to_transformers(state: State, config: TextTransformerConfig) -> dict[str, Tensor]:
    """The tensors of `TextTransformer` under the names of `CLIPTextModel`."""
    return {
        "embeddings.token_embedding.weight": state["token.weight"],
        "embeddings.position_embedding.weight": state["position_embedding"],
        **_to_transformers(state, _TEXT_NORMS, config.num_layers),
    }


def text_from_transformers(state: State, config: TextTransformerConfig) -> dict[str, Tensor]:
    """The other way round."""
    return {
        "token.weight": state["embeddings.token_embedding.weight"],
        "position_embedding": state["embeddings.position_embedding.weight"],
        **_from_transformers(state, _TEXT_NORMS, config.num_layers),
    }


def _layer_modules(layer: int) -> dict[str, str]:
    ours, theirs = f"layers.{layer}", f"encoder.layers.{layer}"
    return {
        f"{ours}.attention_norm": f"{theirs}.layer_norm1",
        f"{ours}.attention.out": f"{theirs}.self_attn.out_proj",
        f"{ours}.feed_forward_norm": f"{theirs}.layer_norm2",
        f"{ours}.feed_forward.up": f"{theirs}.mlp.fc1",
        f"{ours}.feed_forward.down": f"{theirs}.mlp.fc2",
    }


def _to_transformers(state: State, modules: Mapping[str, str], num_layers: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        found |= {f"{theirs}.{kind}": state[f"{ours}.{kind}"] for ours, theirs in modules.items()}
        for layer in range(num_layers):
            found |= {f"{theirs}.{kind}": state[f"{ours}.{kind}"] for ours, theirs in _layer_modules(layer).items()}
            parts = state[f"layers.{layer}.attention.qkv.{kind}"].chunk(3)
            for name, part in zip("qkv", parts, strict=True):
                found[f"encoder.layers.{layer}.self_attn.{name}_proj.{kind}"] = part
    return found


def _from_transformers(state: State, modules: Mapping[str, str], num_layers: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        found |= {f"{ours}.{kind}": state[f"{theirs}.{kind}"] for ours, theirs in modules.items()}
        for layer in range(num_layers):
            found |= {f"{ours}.{kind}": state[f"{theirs}.{kind}"] for ours, theirs in _layer_modules(layer).items()}
            attention = f"encoder.layers.{layer}.self_attn"
            parts = [state[f"{attention}.{name}_proj.{kind}"] for name in "qkv"]
            found[f"layers.{layer}.attention.qkv.{kind}"] = torch.cat(parts)
    return found
