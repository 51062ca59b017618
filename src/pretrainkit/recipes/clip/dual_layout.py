"""Conversion of our models to `CLIPModel` or, with towers of timm or transformers, `VisionTextDualEncoderModel`, and
back.

`VisionTextDualEncoderModel` reads the *pooled* caption, which BERT computes from the hidden state with a dense layer
and a tanh. Ours reads the hidden state. If the dense layer is s times the identity, tanh(s x) equals s x with a
relative error of at most (s x)^2 / 3, and the projection is divided by s. Both scalings are exact, because s is a power
of two.

Dimensions: B examples, T tokens, D width of a tower, E width of the embeddings.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.exporting.transformers_folder import (
    only,
    our_activation,
    require_no_others,
    their_names,
    to_ours,
    to_theirs,
)
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import (
    ClipRun,
    HuggingFaceTextConfig,
    TextTransformerConfig,
    TimmConfig,
    TowerConfig,
    VitConfig,
)
from pretrainkit.recipes.clip.foreign_towers import PUBLISHED, HuggingFaceTower, TimmTower, registered
from pretrainkit.recipes.clip.model import DualEncoder

State = Mapping[str, Tensor]

CLIP, DUAL = "clip", "vision-text-dual-encoder"
_CLIP_VISION, _CLIP_TEXT = "clip_vision_model", "clip_text_model"
POOLER_SCALE = 2.0**-16
TOWERS = ("vision_model.", "text_model.")
_POOLER = "pooler.dense"
_ALLOWED = 1e-4
"""Largest difference of an entry of an embedding of length 1 that the check of an export allows."""

ACTIVATIONS_THERE = {"gelu": "gelu", "quick_gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu_tanh"}
"""Maps names in transformers to our names."""
_CHANNELS = 3
_SHARED = {
    "num_layers": ("num_hidden_layers", 12),
    "activation": ("hidden_act", "quick_gelu"),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-5),
    "attention_dropout": ("attention_dropout", 0.0),
}
_VISION_FIELDS = {
    "hidden_size": ("hidden_size", 768),
    "intermediate_size": ("intermediate_size", 3072),
    "num_heads": ("num_attention_heads", 12),
    **_SHARED,
    "image_size": ("image_size", 224),
    "patch_size": ("patch_size", 32),
}
_TEXT_FIELDS = {
    "hidden_size": ("hidden_size", 512),
    "intermediate_size": ("intermediate_size", 2048),
    "num_heads": ("num_attention_heads", 8),
    **_SHARED,
    "vocab_size": ("vocab_size", 49_408),
    "max_positions": ("max_position_embeddings", 77),
}
"""Maps our settings to their names in transformers and to the defaults there."""
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
"""Maps our names of tensors, norms and modules of a layer to theirs, with their spelling."""
POSITION_IDS = "embeddings.position_ids"
"""A table of older versions of transformers, which is not a weight."""
LEGACY_EOS = 2
"""With this `eos_token_id`, transformers reads the token with the highest id instead of the end token."""


def dual_folder(
    config: ClipRun, model: DualEncoder, tokenizer: CaptionTokenizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `config.json` and tensors; those of a `CLIPModel` if both towers are our own. Raises InputError if
    transformers has no equivalent of a tower."""
    image, text = config.model.image, config.model.text
    state = model.state_dict()
    projections = {
        "visual_projection.weight": state["image_projection.linear.weight"],
        "text_projection.weight": state["text_projection.linear.weight"],
        "logit_scale": model.logit_scale().detach().log(),
    }
    vision, words = (without_prefix(f"{name}.encoder.", state) for name in ("image", "text"))
    if isinstance(image, VitConfig):
        vision_values = _vision_values(image)
        vision = to_transformers(vision, image)
    else:
        vision_values = _timm_values(image, cast(TimmTower, model.image))
        vision = with_prefix("timm_model.", vision)
    if isinstance(text, TextTransformerConfig):
        text_values = _text_values(text, tokenizer)
        words = to_transformers(words, text)
    else:
        text_values, words = _with_pooler(text, cast(HuggingFaceTower, model.text), words)
        projections["text_projection.weight"] = projections["text_projection.weight"] / POOLER_SCALE
    width = {"projection_dim": config.model.projection.dim}
    if is_clip := isinstance(image, VitConfig) and isinstance(text, TextTransformerConfig):
        vision_values, text_values = vision_values | width, text_values | width
    values = {
        "model_type": CLIP if is_clip else DUAL,
        "architectures": ["CLIPModel" if is_clip else "VisionTextDualEncoderModel"],
        **width,
        "logit_scale_init_value": math.log(1 / config.model.temperature.value),
        "vision_config": vision_values,
        "text_config": text_values,
    }
    return values, {**with_prefix("vision_model.", vision), **with_prefix("text_model.", words), **projections}


def _timm_values(config: TimmConfig, tower: TimmTower) -> dict[str, Any]:
    published = tower.encoder.pretrained_cfg
    name, stored = registered(tower.config)
    arguments = {key: value for key, value in tower.arguments.items() if key != "patch_drop_rate"}
    return {
        "model_type": "timm_wrapper",
        "architecture": name,
        "model_args": {**stored, **config.options, **arguments},
        "do_pooling": True,
        "hidden_size": tower.width,
        "num_classes": 0,
        "label_names": [],
        "pretrained_cfg": {name: published[name] for name in PUBLISHED},
    }


def _with_pooler(
    config: HuggingFaceTextConfig, tower: HuggingFaceTower, state: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return settings and tensors of the encoder with a pooler that returns `POOLER_SCALE` times the first token."""
    transformers = import_transformers()
    with torch.device("meta"):
        names = transformers.AutoModel.from_config(tower.encoder.config).state_dict().keys() - state.keys()
    if names != {f"{_POOLER}.weight", f"{_POOLER}.bias"} or config.pool_token != 0:
        raise InputError(
            f"VisionTextDualEncoderModel reads the pooled caption, which {type(tower.encoder).__name__} does not "
            f"compute with model.text.pool_token={config.pool_token}\n  use --format safetensors"
        )
    state[f"{_POOLER}.weight"] = torch.eye(tower.width) * POOLER_SCALE
    state[f"{_POOLER}.bias"] = torch.zeros(tower.width)
    return tower.encoder.config.to_dict(), state


@torch.no_grad()
def check_equal(config: ClipRun, model: DualEncoder, folder: Path) -> None:
    """Load the folder with transformers, and compare embeddings of random inputs. Raises InputError if they differ,
    which means that a tower computes something else there."""
    theirs = import_transformers().VisionTextDualEncoderModel.from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(0)
    image, text = config.model.image, config.model.text
    side = image.image_size or cast(TimmTower, model.image).encoder.pretrained_cfg["input_size"][-1]
    pixels = torch.randn(2, 3, side, side, generator=generator)
    rows = text.vocab_size if isinstance(text, TextTransformerConfig) else theirs.config.text_config.vocab_size
    ids = torch.randint(0, rows or 1, (2, 5), generator=generator)
    if isinstance(text, TextTransformerConfig):
        # Put the end token only at the end, because transformers reads the first one.
        ids[:, -1] = theirs.config.text_config.eos_token_id
        ids[:, :-1] = torch.where(ids[:, :-1] == ids[:, -1:], 0, ids[:, :-1])
    was_training = model.training
    ours = model.eval()(pixels, ids)
    model.train(was_training)
    pooled = {
        "image": theirs.visual_projection(theirs.vision_model(pixel_values=pixels)[1]),
        "text": theirs.text_projection(theirs.text_model(input_ids=ids, attention_mask=torch.ones_like(ids))[1]),
    }
    for name, features in pooled.items():
        embeddings = features / features.norm(dim=-1, keepdim=True)
        is_alike = embeddings.shape == ours[name].shape
        difference = (ours[name] - embeddings).abs().max().item() if is_alike else math.inf
        if not difference < _ALLOWED:
            tower = type(getattr(model, name).encoder).__name__
            raise InputError(
                f"transformers computes other {name} embeddings with {tower}, with differences of up to "
                f"{difference:.2g}: its pooling cannot be expressed\n  use --format safetensors"
            )


def read_dual(
    values: Mapping[str, Any], tensors: State
) -> tuple[VitConfig | TimmConfig, TextTransformerConfig | HuggingFaceTextConfig, dict[str, Tensor]]:
    """Return our towers, and the state dict of a model with them that has learned the logarithm of its logit scale.
    Raises CheckpointError if a tower is of another kind, or has a pooler that ours do not have; KeyError if a
    tensor or setting is missing."""
    vision, words = (without_prefix(prefix, tensors) for prefix in TOWERS)
    if values["model_type"] == CLIP:  # its parts may lack a model_type
        vision_values = {"model_type": _CLIP_VISION, **_part(values, "vision_config")}
        text_values = {"model_type": _CLIP_TEXT, **_part(values, "text_config")}
    else:
        vision_values, text_values = dict(values["vision_config"]), dict(values["text_config"])
    known = ("visual_projection.weight", "text_projection.weight", "logit_scale")
    require_no_others(tensors, known, TOWERS)
    state = {
        "image_projection.linear.weight": tensors["visual_projection.weight"],
        "text_projection.linear.weight": tensors["text_projection.weight"],
        "temperature.log_scale": tensors["logit_scale"].reshape(1).float(),
    }
    image: VitConfig | TimmConfig
    text: TextTransformerConfig | HuggingFaceTextConfig
    if vision_values["model_type"] == _CLIP_VISION:
        only(vision_values, {"num_channels": _CHANNELS})
        image = VitConfig(**our_fields(vision_values, _VISION_FIELDS))
        state |= with_prefix("image.encoder.", from_transformers(vision, image))
    elif vision_values["model_type"] == "timm_wrapper":
        options = dict(vision_values.get("model_args") or {})
        size = options.pop("img_size", None)
        image = TimmConfig(name=vision_values["architecture"], pretrained=False, image_size=size, options=options)
        state |= with_prefix("image.encoder.", without_prefix("timm_model.", vision))
    else:
        raise CheckpointError(
            f"config.json has a vision tower of model_type {vision_values['model_type']!r}\n"
            "  this recipe reads 'clip_vision_model' and 'timm_wrapper'"
        )
    if text_values["model_type"] == _CLIP_TEXT:
        text = TextTransformerConfig(**our_fields(text_values, _TEXT_FIELDS))
        state |= with_prefix("text.encoder.", from_transformers(words, text))
    else:
        state["text_projection.linear.weight"] = state["text_projection.linear.weight"] * _pooler_scale(words)
        text = HuggingFaceTextConfig(name=text_values["model_type"], pretrained=False, architecture=text_values)
        state |= with_prefix("text.encoder.", words)
    return image, text, state


def _part(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of a tower of CLIP. transformers prefers the form of its first versions, if there is one."""
    return values.get(f"{name}_dict") or values.get(name) or {}


def end_token(values: Mapping[str, Any]) -> int | None:
    """Return the id at whose first place CLIP of transformers reads a caption; None: the highest id of the caption."""
    index = _part(values, "text_config").get("eos_token_id", 49_407)
    return None if index == LEGACY_EOS else index


def _pooler_scale(words: dict[str, Tensor]) -> float:
    """Remove the pooler and return its scale. Raises CheckpointError if it is not a small multiple of the identity."""
    weight, bias = words.pop(f"{_POOLER}.weight"), words.pop(f"{_POOLER}.bias")
    scale = weight[0, 0].item()
    is_identity = torch.equal(weight, torch.eye(len(weight)) * scale) and not bias.any()
    if not is_identity or not 0 < scale <= POOLER_SCALE:
        raise CheckpointError(
            "the text tower has a pooler with a tanh, which this recipe does not support\n"
            "  train with the tower alone: model.text_model.save_pretrained('WORDS') in transformers, and then "
            "'model.text={kind: huggingface, name: WORDS}'"
        )
    return scale


def _vision_values(config: VitConfig) -> dict[str, Any]:
    """Return the settings of `CLIPVisionModel`. Raises InputError if our tower does not compute the same."""
    if config.pool != "cls":
        raise InputError(
            f"transformers' CLIP reads the class token; model.image.pool={config.pool} cannot be expressed\n"
            "  use --format safetensors"
        )
    return {
        "model_type": _CLIP_VISION,
        "num_channels": _CHANNELS,
        **their_fields(config, _VISION_FIELDS),
    }


def _text_values(config: TextTransformerConfig, tokenizer: CaptionTokenizer) -> dict[str, Any]:
    """Return the settings of `CLIPTextModel`. Raises InputError if our tower does not compute the same."""
    if not config.causal or config.pool != "eos":
        raise InputError(
            "transformers' CLIP is causal and reads the end token; "
            f"model.text.causal={str(config.causal).lower()} with model.text.pool={config.pool} cannot be expressed\n"
            "  use --format safetensors"
        )
    if not tokenizer.suffix:
        raise InputError(
            f"transformers' CLIP reads the end token, which the tokenizer in {tokenizer.folder} does not add\n"
            "  use --format safetensors"
        )
    if tokenizer.suffix[-1] == LEGACY_EOS:
        raise InputError(
            f"the end token has the id {LEGACY_EOS}, with which transformers' CLIP reads the token with the highest "
            "id\n  use --format safetensors, or train with a tokenizer whose end token has another id"
        )
    return {
        "model_type": _CLIP_TEXT,
        **their_fields(config, _TEXT_FIELDS),
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.prefix[0] if tokenizer.prefix else None,
        "eos_token_id": tokenizer.suffix[-1],
    }


def their_fields(config: TowerConfig, fields: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Return the settings of a tower by their names in transformers."""
    names = {ours: theirs for theirs, ours in ACTIVATIONS_THERE.items()}
    values = {theirs: getattr(config, ours) for ours, (theirs, _) in fields.items()}
    return values | {"hidden_act": names[values["hidden_act"]]}


def our_fields(values: Mapping[str, Any], fields: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Return the settings of a tower of transformers by our names."""
    settings = {ours: values.get(theirs, usual) for ours, (theirs, usual) in fields.items()}
    settings["activation"] = our_activation(settings["activation"], ACTIVATIONS_THERE)
    return settings


def to_transformers(state: State, config: VitConfig | TextTransformerConfig) -> dict[str, Tensor]:
    """Return the tensors of one of our encoders by the names of `CLIPVisionModel` or `CLIPTextModel`."""
    tensors = to_theirs(state, *_names(config))
    if isinstance(config, VitConfig):  # there, the patch embedding is the kernel of a convolution
        tensors[_PATCH] = tensors[_PATCH].unflatten(1, (_CHANNELS, config.patch_size, config.patch_size))
    return tensors


def from_transformers(state: State, config: VitConfig | TextTransformerConfig) -> dict[str, Tensor]:
    """Reverse `to_transformers`. Raises CheckpointError if there are other tensors."""
    same, split = _names(config)
    tensors = to_ours(state, same, split)
    require_no_others(state, (*their_names(same, split), POSITION_IDS))
    if isinstance(config, VitConfig):
        tensors["patch.weight"] = tensors["patch.weight"].flatten(1)
    return tensors


def _names(config: VitConfig | TextTransformerConfig) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return maps from our names of tensors to theirs, and from our joint tensors of queries, keys and values to their
    three tensors."""
    is_vision, kinds = isinstance(config, VitConfig), ("weight", "bias")
    modules, split = dict(_VISION_NORMS if is_vision else _TEXT_NORMS), {}
    for own, layer in ((f"layers.{number}", f"encoder.layers.{number}") for number in range(config.num_layers)):
        modules |= {f"{own}.{ours}": f"{layer}.{theirs}" for ours, theirs in _LAYER.items()}
        for kind in kinds:
            split[f"{own}.attention.qkv.{kind}"] = tuple(f"{layer}.self_attn.{name}_proj.{kind}" for name in "qkv")
    same = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in kinds}
    return (_VISION if is_vision else _TEXT) | same, split


def with_prefix(prefix: str, tensors: State) -> dict[str, Tensor]:
    """Return all tensors with `prefix` added to their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: State) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, with the prefix removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
