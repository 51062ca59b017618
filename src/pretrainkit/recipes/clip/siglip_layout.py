"""Conversion of SigLIP and SigLIP 2 with fixed resolution to `SiglipModel` of transformers and back.

The image tower is a vision transformer of timm without class token. Its pooled vector is computed by attention from a
learned query. Captions are read at the last slot of a row, which is always padded. Only captions are projected.

Dimensions: D width of a tower, P patches.
Sources: Zhai et al. 2023, https://arxiv.org/abs/2303.15343; Tschannen et al. 2025, https://arxiv.org/abs/2502.14786.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.transformers_folder import only, our_activation, require_no_others, to_ours, to_theirs
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import ClipRun, TextTransformerConfig, TimmConfig
from pretrainkit.recipes.clip.dual_layout import (
    ACTIVATIONS_THERE,
    POSITION_IDS,
    TOWERS,
    from_transformers,
    our_fields,
    their_fields,
    to_transformers,
    with_prefix,
    without_prefix,
)
from pretrainkit.recipes.clip.foreign_towers import TimmTower
from pretrainkit.recipes.clip.model import DualEncoder

State = Mapping[str, Tensor]

SIGLIP, NAFLEX = "siglip", "siglip2"
_BASE = "vit_base_patch16_siglip_224"
"""timm's name of the architecture; its sizes are set by options."""
_EPSILON = 1e-6
_VISION = {
    "embed_dim": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "patch_size": ("patch_size", 16),
}
_VISION_FIELDS = {
    **_VISION,
    "intermediate_size": ("intermediate_size", 3072),
    "image_size": ("image_size", 224),
    "activation": ("hidden_act", "gelu_pytorch_tanh"),
    "attention_dropout": ("attention_dropout", 0.0),
}
_TEXT_FIELDS = {
    "vocab_size": ("vocab_size", 32_000),
    "max_positions": ("max_position_embeddings", 64),
    "hidden_size": ("hidden_size", 768),
    "intermediate_size": ("intermediate_size", 3072),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "activation": ("hidden_act", "gelu_pytorch_tanh"),
    "attention_dropout": ("attention_dropout", 0.0),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-6),
}
"""Maps our settings to their names in transformers and to the defaults there."""
_POSITIONS = "embeddings.position_embedding.weight"
_LAYER = {
    "norm1": "layer_norm1",
    "attn.proj": "self_attn.out_proj",
    "norm2": "layer_norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_MODULES = {
    "patch_embed.proj": "embeddings.patch_embedding",
    "norm": "post_layernorm",
    "attn_pool.proj": "head.attention.out_proj",
    "attn_pool.norm": "head.layernorm",
    "attn_pool.mlp.fc1": "head.mlp.fc1",
    "attn_pool.mlp.fc2": "head.mlp.fc2",
}
"""Maps timm's names of modules, in a block and outside of the blocks, to those of transformers."""
_KINDS = ("weight", "bias")


def read_siglip(
    values: Mapping[str, Any], tensors: State
) -> tuple[TimmConfig, TextTransformerConfig, int, dict[str, Tensor]]:
    """Return our towers, the width of the embeddings, and the state dict of a model with them. Raises CheckpointError
    if a setting is not supported, KeyError if a tensor is missing."""
    if values["model_type"] == NAFLEX:
        raise CheckpointError(
            "config.json has model_type 'siglip2': NaFlex reads images of any shape, which is not supported\n"
            "  import a release of SigLIP 2 with a fixed resolution (model_type 'siglip'), such as "
            "hf-hub:google/siglip2-base-patch16-224"
        )
    vision_values, text_values = dict(values.get("vision_config") or {}), dict(values.get("text_config") or {})
    only(vision_values, {"num_channels": 3, "layer_norm_eps": _EPSILON, "vision_use_head": True})
    given = {ours: vision_values.get(theirs, usual) for ours, (theirs, usual) in _VISION_FIELDS.items()}
    image = TimmConfig(
        name=_BASE,
        pretrained=False,
        image_size=given["image_size"],
        options={
            **{name: given[name] for name in _VISION},
            "mlp_ratio": (given["intermediate_size"] + 0.5) / given["embed_dim"],  # timm rounds the product down
            "act_layer": our_activation(given["activation"], ACTIVATIONS_THERE),
            **({"attn_drop_rate": rate} if (rate := given["attention_dropout"]) else {}),
        },
    )
    text = TextTransformerConfig(causal=False, pool="last", **our_fields(text_values, _TEXT_FIELDS))
    require_no_others(tensors, ("logit_scale", "logit_bias"), TOWERS)
    words = without_prefix("text_model.", tensors)
    state = {
        **with_prefix("image.encoder.", _to_timm(without_prefix("vision_model.", tensors), given["depth"])),
        **{f"text_projection.linear.{kind}": words.pop(f"head.{kind}") for kind in _KINDS},
        **with_prefix("text.encoder.", from_transformers(words, text)),
        "temperature.log_scale": tensors["logit_scale"].reshape(1).float(),
        "logit_bias": tensors["logit_bias"].reshape(1).float(),
    }
    return image, text, given["embed_dim"], state


def siglip_folder(
    config: ClipRun, model: DualEncoder, tokenizer: CaptionTokenizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `config.json` and tensors of a `SiglipModel`. Raises InputError if it computes something else."""
    image, text = config.model.image, config.model.text
    if not isinstance(text, TextTransformerConfig) or text.pool != "last" or text.causal:
        raise InputError(
            "transformers' SigLIP needs model.text.pool=last with model.text.causal=false: it reads the last slot of "
            "captions whose tokens attend to all others\n  use --format safetensors"
        )
    state = model.state_dict()
    vision = without_prefix("image.encoder.", state)
    encoder = cast(TimmTower, model.image).encoder if isinstance(image, TimmConfig) else None
    depth = len(getattr(encoder, "blocks", ()))
    if encoder is None or vision.keys() != _timm_names(depth):
        raise InputError(
            f"transformers' SigLIP has no image tower like {type(model.image.encoder).__name__} of kind {image.kind}\n"
            "  use --format safetensors"
        )
    vision_values = {
        "hidden_size": encoder.embed_dim,
        "intermediate_size": encoder.blocks[0].mlp.fc1.out_features,
        "num_hidden_layers": depth,
        "num_attention_heads": encoder.blocks[0].attn.num_heads,
        "num_channels": 3,
        "image_size": encoder.patch_embed.img_size[0],
        "patch_size": encoder.patch_embed.patch_size[0],
        "hidden_act": _activation(encoder.blocks[0].mlp.act),
        "layer_norm_eps": _EPSILON,
        "attention_dropout": encoder.blocks[0].attn.attn_drop.p,
    }
    text_values = their_fields(text, _TEXT_FIELDS) | {
        "projection_size": config.model.projection.dim,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.prefix[0] if tokenizer.prefix else None,
        "eos_token_id": tokenizer.suffix[-1] if tokenizer.suffix else None,
    }
    values = {
        "model_type": SIGLIP,
        "architectures": ["SiglipModel"],
        "vision_config": {"model_type": "siglip_vision_model", **vision_values},
        "text_config": {"model_type": "siglip_text_model", **text_values},
    }
    words = to_transformers(without_prefix("text.encoder.", state), text)
    words |= {f"head.{kind}": state[f"text_projection.linear.{kind}"] for kind in _KINDS}
    tensors = {
        **with_prefix("vision_model.", _from_timm(vision, depth)),
        **with_prefix("text_model.", words),
        "logit_scale": model.logit_scale().detach().log().reshape(1),
        "logit_bias": state.get("logit_bias", torch.zeros(1)),  # models trained with softmax have none
    }
    return values, tensors


def _activation(module: nn.Module) -> str:
    """Return the name in transformers of an activation of timm. Raises InputError if there is none."""
    approximate = getattr(module, "approximate", None)  # attribute of nn.GELU
    if type(module).__name__ == "GELUTanh" or approximate == "tanh":
        return "gelu_pytorch_tanh"
    if approximate == "none" or type(module).__name__ == "GELU":
        return "gelu"
    raise InputError(f"{type(module).__name__} is not exported as a SigLIP of transformers\n  use --format safetensors")


def _same_and_split(depth: int) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return maps from timm's names of tensors to those of transformers, and from timm's joint tensors of queries, keys
    and values to the three tensors of transformers."""
    modules, split = dict(_MODULES), {}
    for number in range(depth):
        own, layer = f"blocks.{number}", f"encoder.layers.{number}"
        modules |= {f"{own}.{ours}": f"{layer}.{theirs}" for ours, theirs in _LAYER.items()}
        for kind in _KINDS:
            split[f"{own}.attn.qkv.{kind}"] = tuple(f"{layer}.self_attn.{name}_proj.{kind}" for name in "qkv")
    same = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in _KINDS}
    return {"attn_pool.latent": "head.probe", **same}, split


def _timm_names(depth: int) -> set[str]:
    same, split = _same_and_split(depth)
    pooling = {f"attn_pool.{name}.{kind}" for name in ("q", "kv") for kind in _KINDS}
    return {"pos_embed", *same, *split, *pooling}


def _to_timm(state: State, depth: int) -> dict[str, Tensor]:
    tensors = to_ours(state, *_same_and_split(depth))
    tensors["pos_embed"] = state[_POSITIONS][None]
    for kind in _KINDS:
        joined = state[f"head.attention.in_proj_{kind}"]
        width = len(joined) // 3
        tensors[f"attn_pool.q.{kind}"], tensors[f"attn_pool.kv.{kind}"] = joined[:width], joined[width:]
    require_no_others(state, (*_from_timm(tensors, depth), POSITION_IDS))
    return tensors


def _from_timm(state: State, depth: int) -> dict[str, Tensor]:
    tensors = to_theirs(state, *_same_and_split(depth))
    tensors[_POSITIONS] = state["pos_embed"][0]
    for kind in _KINDS:
        parts = state[f"attn_pool.q.{kind}"], state[f"attn_pool.kv.{kind}"]
        tensors[f"head.attention.in_proj_{kind}"] = torch.cat(parts)
    return tensors
