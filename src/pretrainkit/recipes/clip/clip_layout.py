"""Our own towers in the names and settings of transformers' CLIP, both ways, and names with prefixes. Nothing here
imports transformers.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pretrainkit.errors import InputError
from pretrainkit.exporting.transformers_folder import only, our_activation, to_ours, to_theirs
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import TextTransformerConfig, VitConfig
from pretrainkit.recipes.clip.model import DualEncoder

State = Mapping[str, Tensor]

_CHANNELS = 3
_SETTINGS = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_act": "activation",
    "layer_norm_eps": "layer_norm_epsilon",
    "attention_dropout": "attention_dropout",
}
"""Their name to ours, of settings that both towers have."""
_DEFAULTS = {"num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "attention_dropout": 0.0}
_PATCH = "embeddings.patch_embedding.weight"
_VISION = {
    "class_token": "embeddings.class_embedding",
    "patch.weight": _PATCH,
    "position_embedding": "embeddings.position_embedding.weight",
}
_TEXT = {
    "token.weight": "embeddings.token_embedding.weight",
    "position_embedding": "embeddings.position_embedding.weight",
}
_VISION_NORMS = {"norm_before": "pre_layrnorm", "norm_after": "post_layernorm"}
_TEXT_NORMS = {"norm_after": "final_layer_norm"}
_LAYER = {
    "attention_norm": "layer_norm1",
    "attention.out": "self_attn.out_proj",
    "feed_forward_norm": "layer_norm2",
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
}
"""Our names to theirs (their spelling): of tensors, of norms, and of the modules of a layer."""
_LEGACY_EOS = 2
"""With this `eos_token_id` transformers reads the token of the highest id in place of the end token."""


def vision_values(config: VitConfig) -> dict[str, Any]:
    """Settings of `CLIPVisionModel`. Raises InputError where it computes something else."""
    if config.pool != "cls":
        raise InputError(
            f"transformers' CLIP reads the class token; model.image.pool={config.pool} cannot be expressed\n"
            "  use --format safetensors"
        )
    return {
        "model_type": "clip_vision_model",
        **_shared_values(config),
        "num_channels": _CHANNELS,
        "image_size": config.image_size,
        "patch_size": config.patch_size,
    }


def text_values(config: TextTransformerConfig, tokenizer: CaptionTokenizer) -> dict[str, Any]:
    """Settings of `CLIPTextModel`. Raises InputError where it computes something else."""
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
    return {theirs: getattr(config, ours) for theirs, ours in _SETTINGS.items()}


def vision_config(values: Mapping[str, Any]) -> VitConfig:
    """Our tower for a `vision_config`. Keys that are missing have the defaults of transformers."""
    only(values, {"num_channels": _CHANNELS})
    defaults = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    return VitConfig(
        image_size=values.get("image_size", 224),
        patch_size=values.get("patch_size", 32),
        pool="cls",
        **_shared_settings({**defaults, **values}),
    )


def text_config(values: Mapping[str, Any]) -> TextTransformerConfig:
    """Our tower for a `text_config`. Keys that are missing have the defaults of transformers."""
    defaults = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
    return TextTransformerConfig(
        vocab_size=values.get("vocab_size", 49_408),
        max_positions=values.get("max_position_embeddings", 77),
        causal=True,
        pool="eos",
        **_shared_settings({**defaults, **values}),
    )


def _shared_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    values = {**_DEFAULTS, **values}
    our_activation(values["hidden_act"], {"gelu": "gelu", "quick_gelu": "quick_gelu"})  # which have one name
    return {ours: values[theirs] for theirs, ours in _SETTINGS.items()}


def to_transformers(state: State, config: VitConfig | TextTransformerConfig) -> dict[str, Tensor]:
    """The tensors of one of our encoders under the names of `CLIPVisionModel` or `CLIPTextModel`."""
    found = to_theirs(state, *_names(config))
    if isinstance(config, VitConfig):  # rows of pixels there are the kernel of a convolution
        found[_PATCH] = found[_PATCH].unflatten(1, (_CHANNELS, config.patch_size, config.patch_size))
    return found


def from_transformers(state: State, config: VitConfig | TextTransformerConfig) -> dict[str, Tensor]:
    """The other way round."""
    found = to_ours(state, *_names(config))
    if isinstance(config, VitConfig):
        found["patch.weight"] = found["patch.weight"].flatten(1)
    return found


def _names(config: VitConfig | TextTransformerConfig) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Our names of tensors to theirs, and of queries, keys and values, which are one tensor here and three there."""
    is_vision, kinds = isinstance(config, VitConfig), ("weight", "bias")
    modules, split = dict(_VISION_NORMS if is_vision else _TEXT_NORMS), {}
    for own, layer in ((f"layers.{number}", f"encoder.layers.{number}") for number in range(config.num_layers)):
        modules |= {f"{own}.{ours}": f"{layer}.{theirs}" for ours, theirs in _LAYER.items()}
        for kind in kinds:
            split[f"{own}.attention.qkv.{kind}"] = tuple(f"{layer}.self_attn.{name}_proj.{kind}" for name in "qkv")
    same = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in kinds}
    return (_VISION if is_vision else _TEXT) | same, split


def projections(model: DualEncoder) -> dict[str, Tensor]:
    """The tensors beside the towers, under their names in transformers."""
    state = model.state_dict()
    return {
        "visual_projection.weight": state["image_projection.linear.weight"],
        "text_projection.weight": state["text_projection.linear.weight"],
        "logit_scale": model.logit_scale().detach().log(),
    }


def with_prefix(prefix: str, tensors: State) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: State) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
