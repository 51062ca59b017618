"""Conversion of models to the layout of open_clip and back, and of OpenAI's files, which have the same names.

A folder has `open_clip_config.json` and weights. For a single file, the sizes follow from the shapes. Heads and
activation do not: they are known for OpenAI's files, and come from a config for others.

Dimensions: D width of a tower, E width of the embeddings, p pixels of a patch's side.
Sources: https://github.com/mlfoundations/open_clip (3.3); Radford et al. 2021, https://arxiv.org/abs/2103.00020.
"""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.foreign_tokenizer import TokenizerChanges
from pretrainkit.exporting.published_files import is_torchscript, read_pickle, read_torchscript
from pretrainkit.exporting.safetensors import read_tensors, write_tensors
from pretrainkit.exporting.torchvision_shim import import_timm
from pretrainkit.exporting.transformers_folder import require_no_others
from pretrainkit.images.ops import CenterCrop, ImageTransform, Resize, ResizeShorter
from pretrainkit.recipes.clip.architecture import read_architecture
from pretrainkit.recipes.clip.captions import CaptionTokenizer, read_settings
from pretrainkit.recipes.clip.config import (
    ClipRun,
    HuggingFaceTextConfig,
    ProjectionConfig,
    TextTransformerConfig,
    TimmConfig,
    VitConfig,
)
from pretrainkit.recipes.clip.convert import imported_run, tokenizer_of_export, write_tokenizer
from pretrainkit.recipes.clip.dual_layout import with_prefix, without_prefix
from pretrainkit.recipes.clip.foreign_towers import TimmTower
from pretrainkit.recipes.clip.model import DualEncoder
from pretrainkit.recipes.clip.openai_resnets import FIRST, read_resnet
from pretrainkit.recipes.exchange import ImportedModel

State = Mapping[str, Tensor]
_log = logging.getLogger(__name__)

CONFIG = "open_clip_config.json"
_WEIGHTS = (
    *("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin"),
    *("model.safetensors", "pytorch_model.bin"),
)
"""Names of weight files, in the order in which open_clip looks for them."""
_MEAN, _DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and deviation of OpenAI's images, the default of open_clip."""
_LEFTOVERS = ("input_resolution", "context_length", "vocab_size", "attn_mask")
"""Entries of weight files that are not weights."""
_HEAD_WIDTH, _EPSILON, _CONTEXT = 64, 1e-5, 77
_HEADS = 8
"""Heads of the text tower, whatever its width, if a config of open_clip has none."""
_LAYER = {
    "attention_norm": "ln_1",
    "attention.out": "attn.out_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
_SCALES = {".ls_1.gamma": ".attn.out_proj", ".ls_2.gamma": ".mlp.c_proj"}
_CLIPA = ("mean", True, True)
"""Pooling of CLIPA models, and their values of no_ln_pre and final_ln_after_pool."""
_PATCH, _IMAGE_PROJECTION, _TEXT_PROJECTION = "visual.conv1.weight", "visual.proj", "text_projection"
_TRUNK, _TIMM_PROJECTION = "visual.trunk.", "visual.head.proj.weight"
_SCALARS = {"temperature.log_scale": "logit_scale", "logit_bias": "logit_bias"}
_ONLY_MODEL = {"multimodal_cfg": None}
_ONLY_BLOCKS: dict[str, Any] = {
    "block_type": None,
    "output_tokens": False,
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn"), False),
    "scale_fc": False,
}
_ONLY_VISION = _ONLY_BLOCKS | {"attentional_pool": False, "pos_embed_type": "learnable"}
_ONLY_TEXT = _ONLY_BLOCKS | {"embed_cls": False, "tokenizer_mode": None, "final_ln_after_pool": False}
_CLEANINGS = {"whitespace": None, "lower": "lower", "canonicalize": "canonicalize"}
"""Maps open_clip's kinds of text cleaning to our names."""
_READ_VISION = {
    *("layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "patch_dropout", "pool_type"),
    *("act_kwargs", "norm_kwargs", "attn_pooler_queries", "attn_pooler_heads", "timm_model_name"),
    *("timm_model_pretrained", "timm_pool", "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path"),
    *("ls_init_value", "no_ln_pre", "final_ln_after_pool"),
}
_READ_TEXT = {
    *("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "pad_id", "eos_id", "no_causal_mask"),
    *("pool_type", "proj_bias", "proj_type", "act_kwargs", "norm_kwargs", "hf_tokenizer_name", "ls_init_value"),
    *("tokenizer_kwargs", "hf_model_name", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type"),
}
_READ_MODEL = {
    *("embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "custom_text", "init_logit_scale", "init_logit_bias"),
    "nonscalar_logit_scale",
}
_READ_PREPROCESSING = {"size", "mean", "std", "interpolation", "resize_mode", "fill_color"}
"""_READ_*: settings that are read, follow from the shapes, or change no embedding. _ONLY_*: settings with a single
supported value."""
_POOLS = {"argmax": "eos", "eos": "eos", "first": "cls", "last": "last"}
_HF_TEXT = "text.transformer."
_HF_POSITIONS = f"{_HF_TEXT}embeddings.position_ids"
"""A table of older versions of transformers, which is not a weight."""
_HF_PROJECTIONS = {
    "linear": {"text_projection.linear.weight": "text.proj.weight"},
    "mlp": {
        "text_projection.hidden.weight": "text.proj.0.weight",
        "text_projection.linear.weight": "text.proj.2.weight",
    },
}
_HF_POOLS: dict[str, Any] = {"mean_pooler": "mean", "cls_last_hidden_state_pooler": 0}
_HF_CONTEXT = 77
"""Maximum number of tokens in open_clip if its config has none."""
_FORMAT = "use --format safetensors"


def read_open_clip(path: Path, config: ClipRun | None, *, is_openai: bool) -> ImportedModel:
    """Read a folder, or a weight file, which may have an `open_clip_config.json` beside it.

    Args:
        config: Defines heads and activations for a file without config. Those of OpenAI's files are known.

    Raises:
        CheckpointError: The files are damaged, or the model has unsupported parts.
        InputError: The architecture is not known.
    """
    about = read_settings((path if path.is_dir() else path.parent) / CONFIG)
    tensors = _read_weights(path)
    if {"text.token_embedding.weight", "text.positional_embedding"} <= tensors.keys():  # the names with custom_text
        tensors = {name.removeprefix("text."): tensor for name, tensor in tensors.items()}
    if is_openai:
        config = None
        given: dict[str, Any] = {"quick_gelu": True, "vision_cfg": {}, "text_cfg": {}}
    else:
        given = about.get("model_cfg") or {}
    if not given and config is None:
        raise InputError(
            f"{path} does not state the heads and the activation of its model, and there is no {CONFIG} beside it\n"
            f"  copy the {CONFIG} of the model there, or give a config of the clip recipe with its model: --config FILE"
        )
    for part, known, wanted in (
        (given, _READ_MODEL, _ONLY_MODEL),
        (given.get("vision_cfg") or {}, _READ_VISION, _ONLY_VISION),
        (given.get("text_cfg") or {}, _READ_TEXT, _ONLY_TEXT),
    ):
        _require(part, known, wanted)
    options = (given.get("text_cfg") or {}).get("tokenizer_kwargs") or {}
    _require(options, {"clean", "strip_sep_token"}, {})
    try:
        image, image_state = _image(tensors, given, config)
        words = given.get("text_cfg") or {}
        text: TextTransformerConfig | HuggingFaceTextConfig
        if words.get("hf_model_name"):
            text, text_state = _hf_text(tensors, words)
            projection, projection_state = _hf_projection(tensors, words)
        else:
            text, text_state = _text(tensors, given, config)
            if words.get("proj_type") == "none" and _IMAGE_PROJECTION in tensors:
                tensors[_TEXT_PROJECTION] = torch.eye(text.hidden_size)
            projection, projection_state = _projection(tensors, given.get("vision_cfg") or {})
    except KeyError as error:
        raise CheckpointError(f"{path} has no tensor {error}\n  copy it again") from None
    state = {**image_state, **text_state, **projection_state}
    state |= {ours: tensors[theirs].reshape(1) for ours, theirs in _SCALARS.items() if theirs in tensors}
    preprocess = about.get("preprocess_cfg") or {}
    _require(preprocess, _READ_PREPROCESSING, {"mode": "RGB"})
    colors = preprocess.get("mean") or _MEAN, preprocess.get("std") or _DEVIATION
    run = imported_run(
        image,
        text,
        projection,
        state,
        transforms=_transforms(preprocess, image),
        normalize=cast(Any, tuple(map(tuple, colors))),
        longest=words.get("context_length", _HF_CONTEXT) if isinstance(text, HuggingFaceTextConfig) else None,
    )
    changes = TokenizerChanges(
        cleaning=_one_of(_CLEANINGS, options.get("clean", "whitespace"), "tokenizer_kwargs.clean"),
        # open_clip's own tokenizer fills rows with zeros, whatever the tokenizer of the same ids in transformers does.
        pad_id=0 if _attends_padding(text) and not words.get("hf_tokenizer_name") else None,
        pads_end=bool(options.get("strip_sep_token")),
    )
    shown = _HF_PROJECTIONS[words.get("hf_proj_type", "mlp")] if isinstance(text, HuggingFaceTextConfig) else {}
    names = {ours: shown.get(ours) or _their_name(ours) for ours in state}
    # The tensors of encoders of timm and transformers are compared when the model is built.
    foreign: tuple[str, ...] = ("visual.",) if isinstance(image, TimmConfig) else ()
    foreign += ("text.",) if isinstance(text, HuggingFaceTextConfig) else ()
    require_no_others(tensors, (*names.values(), f"{_TEXT_PROJECTION}.weight"), foreign)
    return ImportedModel(run, state, names, changes=None if changes == TokenizerChanges() else changes)


def _attends_padding(text: TextTransformerConfig | HuggingFaceTextConfig) -> bool:
    return isinstance(text, TextTransformerConfig) and text.attends_padding


def _read_weights(path: Path) -> dict[str, Tensor]:
    file = path
    if path.is_dir():
        file = next((path / name for name in _WEIGHTS if (path / name).is_file()), path / _WEIGHTS[0])
    if file.suffix == ".safetensors":
        weights = read_tensors(file.parent, file.stem)
    elif is_torchscript(file):
        weights = read_torchscript(file)
    else:
        weights = read_pickle(file, ("state_dict",), f"a folder with {_WEIGHTS[0]}, or a weight file")
    names = {name: name.removeprefix("module.") for name in weights}
    return _without_scales({short: weights[name].float() for name, short in names.items() if short not in _LEFTOVERS})


def _without_scales(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Multiply the scales of residual branches (`ls_init_value`) into the linear layers before them. The embeddings
    stay the same."""
    for suffix, linear in _SCALES.items():
        for name in [name for name in tensors if name.endswith(suffix)]:
            scale_D, layer = tensors.pop(name), name.removesuffix(suffix) + linear
            tensors[f"{layer}.weight"] = tensors[f"{layer}.weight"] * scale_D[:, None]
            tensors[f"{layer}.bias"] = tensors[f"{layer}.bias"] * scale_D
    return tensors


def _require(given: Mapping[str, Any], known: set[str], wanted: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a setting that is unknown or has an unsupported value."""
    for name, value in given.items():
        if name in wanted and value not in (wanted[name], None, "default"):
            raise CheckpointError(
                f"{CONFIG} has {name} {value!r}, which this recipe does not support\n  it supports {wanted[name]!r}"
            )
        if name not in known and name not in wanted:
            raise CheckpointError(f"{CONFIG} has {name} {value!r}, which is unknown\n  remove it if it has no effect")


def _image(
    tensors: State, given: Mapping[str, Any], config: ClipRun | None
) -> tuple[VitConfig | TimmConfig, dict[str, Tensor]]:
    settings = given.get("vision_cfg") or {}
    _require_square("image_size", settings.get("image_size", 224))
    if any(name.startswith(_TRUNK) for name in tensors):
        head = f"{_timm_head(settings)}." if _is_head_projection(settings) else None
        trunk = without_prefix(_TRUNK, tensors)
        state = {ours: tensor for ours, tensor in trunk.items() if head is None or not ours.startswith(head)}
        tower = config.model.image if config is not None and not given else _timm(settings)
        return tower, with_prefix("image.encoder.", state)
    if FIRST in tensors:
        tower, state, _ = read_resnet(tensors)
        return tower, state
    if _PATCH not in tensors or "visual.class_embedding" not in tensors:
        raise CheckpointError(
            "the image tower is not supported: it must be a vision transformer with a class token, a ResNet of OpenAI "
            "or a model of timm\n"
            "  import another model of the same release, such as ViT-B-32"
        )
    num_layers, names = _names("image", "visual.", tensors)
    if settings.get("no_ln_pre"):
        names = {ours: theirs for ours, theirs in names.items() if ".norm_before." not in ours}
    state = {ours: tensors[theirs] for ours, theirs in names.items()}
    state["image.encoder.patch.weight"] = tensors[_PATCH].flatten(1)
    width, patch_size = len(tensors[_PATCH]), tensors[_PATCH].shape[-1]
    side = round((len(tensors["visual.positional_embedding"]) - 1) ** 0.5)
    if config is not None and not given:
        return config.model.image, state
    pool = _one_of({"tok": "cls", "avg": "mean"}, settings.get("pool_type", "tok"), "pool_type")
    has_no_norm, is_normed_last = bool(settings.get("no_ln_pre")), bool(settings.get("final_ln_after_pool"))
    if (has_no_norm or (is_normed_last and pool == "mean")) and (pool, has_no_norm, is_normed_last) != _CLIPA:
        raise CheckpointError(
            f"{CONFIG} has no_ln_pre {has_no_norm} and final_ln_after_pool {is_normed_last} with pool_type "
            f"{settings.get('pool_type')!r}, which this recipe does not support\n"
            "  it supports both with pool_type 'avg', as in CLIPA, or none"
        )
    return VitConfig(
        image_size=side * patch_size,
        patch_size=patch_size,
        hidden_size=width,
        num_layers=num_layers,
        num_heads=width // settings.get("head_width", _HEAD_WIDTH),
        intermediate_size=len(state["image.encoder.layers.0.feed_forward.up.bias"]),
        activation=_activation(given, settings),
        pool="mean_then_norm" if has_no_norm else pool,
        patch_dropout=settings.get("patch_dropout") or 0.0,
        layer_norm_epsilon=(settings.get("norm_kwargs") or {}).get("eps", _EPSILON),
    ), state


def _require_square(name: str, size: Any) -> None:
    if isinstance(size, list) and len(set(size)) > 1:
        raise CheckpointError(
            f"{CONFIG} has {name} {list(size)}, which this recipe does not support\n"
            "  import a model that reads square images"
        )


def _is_head_projection(settings: Mapping[str, Any]) -> bool:
    """Return True if the classifier of an encoder of timm is the projection."""
    return bool(settings.get("timm_model_name")) and not settings.get("timm_proj", "linear")


def _timm_head(settings: Mapping[str, Any]) -> str:
    """Return timm's name of the encoder's classifier."""
    timm = import_timm("model.image.kind=timm")
    return timm.get_pretrained_cfg_value(settings["timm_model_name"], "classifier")


def _timm(settings: Mapping[str, Any]) -> TimmConfig:
    pool = settings.get("timm_pool", "avg")
    if pool in ("abs_attn", "rot_attn") or settings.get("timm_proj") == "mlp" or settings.get("timm_proj_bias"):
        raise CheckpointError(
            f"{CONFIG} has timm_pool {pool!r} with timm_proj {settings.get('timm_proj')!r} and timm_proj_bias "
            f"{bool(settings.get('timm_proj_bias'))}, which is not supported\n"
            "  this recipe supports a pooling of timm with timm_proj null, 'none', or 'linear' without a bias"
        )
    options: dict[str, Any] = {"global_pool": pool} if pool else {}
    if settings.get("timm_drop_path"):
        options["drop_path_rate"] = settings["timm_drop_path"]
    return TimmConfig(
        name=settings["timm_model_name"],
        pretrained=False,
        options=options,
        patch_dropout=settings.get("patch_dropout") or 0.0,
    )


def _text(
    tensors: State, given: Mapping[str, Any], config: ClipRun | None
) -> tuple[TextTransformerConfig, dict[str, Tensor]]:
    settings = given.get("text_cfg") or {}
    num_layers, names = _names("text", "", tensors)
    state = {ours: tensors[theirs] for ours, theirs in names.items()}
    vocab_size, width = tensors["token_embedding.weight"].shape
    if config is not None and not given and isinstance(text := config.model.text, TextTransformerConfig):
        return text.changed(vocab_size=vocab_size), state
    pool = _one_of(_POOLS, settings.get("pool_type", "argmax"), "pool_type")
    is_causal = not settings.get("no_causal_mask", False)
    if pool == "cls" and not is_causal:
        raise CheckpointError(
            f"{CONFIG} has no_causal_mask with pool_type 'first': the first token attends to padding, which this "
            "recipe does not support\n  import a causal model, or one with another pool_type"
        )
    return TextTransformerConfig(
        vocab_size=vocab_size,
        max_positions=len(tensors["positional_embedding"]),
        hidden_size=width,
        num_layers=num_layers,
        num_heads=settings.get("heads", _HEADS if settings else width // _HEAD_WIDTH),  # OpenAI's have no settings
        intermediate_size=len(state["text.encoder.layers.0.feed_forward.up.bias"]),
        activation=_activation(given, settings),
        causal=is_causal,
        pool="eos_padded" if pool == "eos" and not is_causal else pool,
        layer_norm_epsilon=(settings.get("norm_kwargs") or {}).get("eps", _EPSILON),
    ), state


def _hf_text(tensors: State, settings: Mapping[str, Any]) -> tuple[HuggingFaceTextConfig, dict[str, Tensor]]:
    """Return a text encoder of transformers. open_clip reads its architecture by name, and so do we."""
    name, pooler = settings["hf_model_name"], settings.get("hf_pooler_type", "mean_pooler")
    if pooler not in _HF_POOLS:
        raise CheckpointError(
            f"{CONFIG} has hf_pooler_type {pooler!r}: the model reads captions with a pooler that this recipe does not "
            f"support\n  import a model with one of: {', '.join(_HF_POOLS)}"
        )
    architecture = read_architecture(name)
    if architecture.get("is_encoder_decoder"):
        raise CheckpointError(
            f"{CONFIG} has hf_model_name {name!r} of the type {architecture.get('model_type')!r}: the encoder of an "
            "encoder-decoder, whose tensors have other names, is not supported\n"
            "  import a model with a text encoder such as roberta-base or xlm-roberta-base"
        )
    text = HuggingFaceTextConfig(name=name, pretrained=False, architecture=architecture, pool_token=_HF_POOLS[pooler])
    state = without_prefix(_HF_TEXT, {key: tensor for key, tensor in tensors.items() if key != _HF_POSITIONS})
    return text, with_prefix("text.encoder.", state)


def _hf_projection(tensors: State, settings: Mapping[str, Any]) -> tuple[ProjectionConfig, dict[str, Tensor]]:
    kind = settings.get("hf_proj_type", "mlp")
    projected = _image_projection(tensors)
    if kind not in _HF_PROJECTIONS or projected is None:
        raise CheckpointError(
            f"{CONFIG} has hf_proj_type {kind!r} {'with' if projected is not None else 'without'} a projection of "
            "images, which this recipe does not support\n"
            f"  it supports models that project images, and texts with one of: {', '.join(_HF_PROJECTIONS)}"
        )
    state = {ours: tensors[theirs] for ours, theirs in _HF_PROJECTIONS[kind].items()}
    state["image_projection.linear.weight"] = projected
    return ProjectionConfig(kind="linear" if kind == "linear" else "text_mlp", dim=len(projected)), state


def _image_projection(tensors: State) -> Tensor | None:
    """Return the projection of images if it has no bias, else None."""
    if FIRST in tensors:
        return read_resnet(tensors)[2].contiguous()
    if _TIMM_PROJECTION in tensors:
        return tensors[_TIMM_PROJECTION]
    return tensors[_IMAGE_PROJECTION].T.contiguous() if _IMAGE_PROJECTION in tensors else None


def _projection(tensors: State, vision: Mapping[str, Any]) -> tuple[ProjectionConfig, dict[str, Tensor]]:
    image, text = "image_projection.linear", "text_projection.linear"
    projected, has_head = _image_projection(tensors), _is_head_projection(vision)
    if f"{_TEXT_PROJECTION}.weight" in tensors or (projected is None and not has_head):
        if projected is not None or has_head:
            raise CheckpointError(
                "the model projects images, and its projection of texts has a bias; this recipe does not support both\n"
                "  it supports models that project both, without a bias for texts, or only texts, with a bias"
            )
        # With proj_type none, there is no matrix.
        weight = tensors.get(f"{_TEXT_PROJECTION}.weight", torch.eye(len(tensors["ln_final.bias"])))
        bias = tensors.get(f"{_TEXT_PROJECTION}.bias", torch.zeros(len(weight)))
        return ProjectionConfig(kind="text_only", dim=len(weight)), {f"{text}.weight": weight, f"{text}.bias": bias}
    state = {f"{text}.weight": tensors[_TEXT_PROJECTION].T.contiguous()}
    if projected is None:
        head = f"{_TRUNK}{_timm_head(vision)}"
        state |= {f"{image}.{kind}": tensors[f"{head}.{kind}"] for kind in ("weight", "bias")}
        return ProjectionConfig(kind="image_bias", dim=len(state[f"{image}.weight"])), state
    return ProjectionConfig(dim=len(projected)), {**state, f"{image}.weight": projected}


def _one_of(ours: Mapping[str, Any], theirs: str, name: str) -> Any:
    if theirs not in ours:
        raise CheckpointError(f"{CONFIG} has {name} {theirs!r}, which is not supported\n  supported: {', '.join(ours)}")
    return ours[theirs]


def _activation(given: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    if given.get("quick_gelu"):
        return "quick_gelu"
    return "gelu_tanh" if (settings.get("act_kwargs") or {}).get("approximate") == "tanh" else "gelu"


def _names(tower: str, prefix: str, tensors: State | None = None, num_layers: int = 0) -> tuple[int, dict[str, str]]:
    """Return the number of blocks (counted in `tensors`, if given), and a map from our names of a tower's tensors to
    theirs, for tensors of the same shape."""
    blocks = f"{prefix}transformer.resblocks."
    if tensors is not None:
        numbers = [int(name.removeprefix(blocks).split(".")[0]) for name in tensors if name.startswith(blocks)]
        num_layers = 1 + max(numbers, default=-1)
    vision = {"class_token": "class_embedding", "position_embedding": "positional_embedding"}
    words = {"token.weight": "token_embedding.weight", "position_embedding": "positional_embedding"}
    norms = {"norm_before": "ln_pre", "norm_after": "ln_post"} if tower == "image" else {"norm_after": "ln_final"}
    names = {ours: f"{prefix}{theirs}" for ours, theirs in (vision if tower == "image" else words).items()}
    for kind in ("weight", "bias"):
        names |= {f"{ours}.{kind}": f"{prefix}{theirs}.{kind}" for ours, theirs in norms.items()}
        for number in range(num_layers):
            own, layer = f"layers.{number}", f"{blocks}{number}"
            names |= {f"{own}.{ours}.{kind}": f"{layer}.{theirs}.{kind}" for ours, theirs in _LAYER.items()}
            names[f"{own}.attention.qkv.{kind}"] = f"{layer}.attn.in_proj_{kind}"
    return num_layers, {f"{tower}.encoder.{ours}": theirs for ours, theirs in names.items()}


def _their_name(ours: str) -> str:
    """Return open_clip's name of one of our tensors, to show it to users."""
    tower, _, rest = ours.partition(".encoder.")
    if tower in ("image", "text") and rest:
        prefix, other = ("visual.", _TRUNK) if tower == "image" else ("", _HF_TEXT)
        number = re.match(r"layers\.(\d+)", rest)
        _, names = _names(tower, prefix, num_layers=1 + int(number[1]) if number else 0)
        return names.get(ours, _PATCH if rest == "patch.weight" else f"{other}{rest}")
    named = {"image_projection.linear.weight": _IMAGE_PROJECTION, "text_projection.linear.weight": _TEXT_PROJECTION}
    return (named | _SCALARS).get(ours, ours.replace(".linear", ""))


def _transforms(preprocess: Mapping[str, Any], image: VitConfig | TimmConfig) -> tuple[ImageTransform, ...]:
    kernel: Any = preprocess.get("interpolation") or "bicubic"
    mode = preprocess.get("resize_mode") or "shortest"
    size = preprocess.get("size") or image.image_size or 224
    _require_square("size", size)
    side = size if isinstance(size, int) else size[0]
    if image.image_size is None and "size" not in preprocess and isinstance(image, TimmConfig):
        side = int(TimmTower(image).encoder.pretrained_cfg["input_size"][-1])
    if kernel not in ("bilinear", "bicubic") or mode not in ("shortest", "squash"):
        raise CheckpointError(
            f"{CONFIG} has interpolation {kernel!r} and resize_mode {mode!r}, which is not supported\n"
            "  supported: bilinear or bicubic, and shortest or squash"
        )
    if mode == "squash":
        return (Resize(size=side, interpolation=kernel),)
    return (ResizeShorter(size=side, interpolation=kernel), CenterCrop(size=side))


def write_open_clip(config: ClipRun, model: DualEncoder, tokenizer: Path | None, out: Path, name: str) -> None:
    """Fill the empty folder `out` with files for `open_clip.create_model_and_transforms("local-dir:OUT")`, or
    "hf-hub:NAME" for a model that is uploaded as `name`. Raises InputError if open_clip cannot compute the same
    embeddings, or there is no tokenizer."""
    words = tokenizer_of_export(tokenizer)
    state = model.state_dict()
    is_text_only = config.model.projection.kind == "text_only"
    vision, vision_tensors = _their_image(config, model, state)
    text, text_tensors = _their_text(config, words, state)
    activations = {
        tower.activation for tower in (config.model.image, config.model.text) if hasattr(tower, "activation")
    }
    if not config.model.projection.normalize or config.model.projection.kind == "residual":
        raise _cannot(f"model.projection={config.model.projection.kind}, normalize={config.model.projection.normalize}")
    if "quick_gelu" in activations and len(activations) > 1:
        raise _cannot("quick_gelu in only one tower")
    if isinstance(config.model.image, TimmConfig) != is_text_only and is_text_only:
        raise _cannot("model.projection.kind=text_only with model.image.kind=vit")
    values: dict[str, Any] = {"embed_dim": config.model.projection.dim}
    values |= {"quick_gelu": True} if "quick_gelu" in activations else {}
    values |= {"custom_text": True} if is_text_only or config.model.projection.kind == "image_bias" else {}
    values |= {"vision_cfg": vision, "text_cfg": text | {"hf_tokenizer_name": name}}
    tensors = {**vision_tensors, **text_tensors, "logit_scale": model.logit_scale().detach().log()}
    if model.logit_bias is not None:
        values["init_logit_bias"] = config.objective.siglip_bias
        tensors["logit_bias"] = model.logit_bias.detach()[0]
    (out / CONFIG).write_text(
        json.dumps({"model_cfg": values, "preprocess_cfg": _preprocess(config, model)}, indent=2) + "\n", "utf-8"
    )
    write_tensors(out / _WEIGHTS[0], tensors)
    write_tokenizer(words, config.data.max_length, out)


def _cannot(part: str) -> InputError:
    return InputError(f"open_clip does not support {part}\n  {_FORMAT}")


def _their_image(config: ClipRun, model: DualEncoder, state: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    image = config.model.image
    projected = state.get("image_projection.linear.weight")
    if isinstance(image, TimmConfig):
        encoder = cast(TimmTower, model.image).encoder
        options = {key: value for key, value in image.options.items() if "drop" not in key and key != "global_pool"}
        published = encoder.pretrained_cfg["input_size"][-1]
        if options or image.architecture is not None or image.image_size not in (None, published):
            raise _cannot(f"model.image.name={image.name} with other options, or another image_size, than timm's own")
        values: dict[str, Any] = {"timm_model_name": image.name.partition(".")[0], "timm_model_pretrained": False}
        values |= {
            "timm_pool": image.options.get("global_pool") or getattr(encoder, "global_pool", ""),
            "timm_proj": "none",
        }
        values["image_size"] = published
        tensors = with_prefix(_TRUNK, without_prefix("image.encoder.", state))
        bias = state.get("image_projection.linear.bias")
        if projected is not None and bias is not None:
            head = f"{_TRUNK}{encoder.pretrained_cfg['classifier']}"
            values["timm_proj"] = None
            tensors |= {f"{head}.weight": projected, f"{head}.bias": bias}
        elif projected is not None:
            values |= {"timm_proj": "linear", "timm_pool": image.options.get("global_pool", "")}
            tensors[_TIMM_PROJECTION] = projected
        return values, tensors
    _, names = _names("image", "visual.", num_layers=image.num_layers)
    tensors = {theirs: state[ours] for ours, theirs in names.items() if ours in state}
    kernel = (3, image.patch_size, image.patch_size)
    tensors[_PATCH] = state["image.encoder.patch.weight"].unflatten(1, kernel)
    if projected is None or config.model.projection.kind == "image_bias":
        raise _cannot(f"model.projection.kind={config.model.projection.kind} with model.image.kind=vit")
    tensors[_IMAGE_PROJECTION] = projected.T
    values = {"image_size": image.image_size, "patch_size": image.patch_size} | _their_blocks(image)
    values["head_width"] = image.hidden_size // image.num_heads
    values |= {"no_ln_pre": True, "final_ln_after_pool": True} if image.pool == "mean_then_norm" else {}
    return values | ({} if image.pool == "cls" else {"pool_type": "avg"}), tensors


def _their_text(config: ClipRun, words: CaptionTokenizer, state: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    text = config.model.text
    if config.model.projection.kind == "text_mlp" and isinstance(text, TextTransformerConfig):
        raise _cannot("model.projection.kind=text_mlp with model.text.kind=transformer")
    if isinstance(text, HuggingFaceTextConfig):
        return _their_hf_text(config, text, words, state)
    if text.pool == "mean" or not (text.attends_padding or text.causal):
        raise _cannot(f"model.text.pool={text.pool} with model.text.causal={str(text.causal).lower()}")
    is_read_at_end = text.pool in ("eos", "eos_padded")
    if is_read_at_end and not words.suffix:
        raise _cannot(f"captions that are read at the end token with the tokenizer in {words.folder}, which adds none")
    values: dict[str, Any] = {
        "context_length": text.max_positions,
        "vocab_size": text.vocab_size,
        "heads": text.num_heads,
    }
    values |= _their_blocks(text) | ({} if text.causal else {"no_causal_mask": True})
    values |= {"pad_id": words.pad_id}
    values |= {"pool_type": "eos" if is_read_at_end else {"cls": "first", "last": "last"}[text.pool]}
    values |= {"eos_id": words.suffix[-1]} if is_read_at_end else {}
    _, names = _names("text", "", num_layers=text.num_layers)
    tensors = {theirs: state[ours] for ours, theirs in names.items()}
    projected = state["text_projection.linear.weight"]
    if "text_projection.linear.bias" not in state:
        tensors[_TEXT_PROJECTION] = projected.T
        return values, with_prefix("text.", tensors) if config.model.projection.kind == "image_bias" else tensors
    tensors |= {
        f"{_TEXT_PROJECTION}.weight": projected,
        f"{_TEXT_PROJECTION}.bias": state["text_projection.linear.bias"],
    }
    return values | {"proj_bias": True}, with_prefix("text.", tensors)


def _their_hf_text(
    config: ClipRun, text: HuggingFaceTextConfig, words: CaptionTokenizer, state: State
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return settings and tensors of a text encoder of transformers."""
    architecture = text.architecture or read_architecture(text.name)
    pooler = {ours: theirs for theirs, ours in _HF_POOLS.items()}.get(text.pool_token)
    kind = {"linear": "linear", "text_mlp": "mlp"}.get(config.model.projection.kind)
    if pooler is None or kind is None or architecture.get("is_encoder_decoder"):
        raise _cannot(
            f"model.text.name={text.name} with model.text.pool_token={text.pool_token} and "
            f"model.projection.kind={config.model.projection.kind}"
        )
    if architecture.get("pad_token_id") != words.pad_id:  # it finds padding by this id
        raise _cannot(
            f"a tokenizer that pads with id {words.pad_id} with model.text.name={text.name}, which has pad_token_id "
            f"{architecture.get('pad_token_id')}"
        )
    name = text.name
    if Path(name).is_dir():
        name = str(Path(name).absolute())
        _log.warning(
            "open_clip reads the architecture of the text encoder from the folder %s, which must exist where the "
            "export is used\n  for other machines, give a name on the hub before exporting: hf_model_name in %s",
            *(name, CONFIG),
        )
    values = {"context_length": config.data.max_length, "hf_model_name": name, "hf_proj_type": kind}
    tensors = with_prefix(_HF_TEXT, without_prefix("text.encoder.", state))
    tensors |= {theirs: state[ours] for ours, theirs in _HF_PROJECTIONS[kind].items()}
    return values | {"hf_pooler_type": pooler}, tensors


def _their_blocks(tower: VitConfig | TextTransformerConfig) -> dict[str, Any]:
    """Return the settings of both kinds of towers."""
    width, inner = tower.hidden_size, tower.intermediate_size
    values: dict[str, Any] = {"layers": tower.num_layers, "width": width}
    values["mlp_ratio"] = (
        inner / width if inner % width == 0 else (inner + 0.5) / width
    )  # open_clip rounds the product down
    values |= {"act_kwargs": {"approximate": "tanh"}} if tower.activation == "gelu_tanh" else {}
    has_other_epsilon = tower.layer_norm_epsilon != _EPSILON
    return values | ({"norm_kwargs": {"eps": tower.layer_norm_epsilon}} if has_other_epsilon else {})


def _preprocess(config: ClipRun, model: DualEncoder) -> dict[str, Any]:
    """Return the settings of image transforms. Raises InputError if open_clip does not support them."""
    mean, deviation = model.mean_and_deviation
    match config.data.valid_transforms:
        case [Resize() as resize]:
            mode = "squash"
        case [ResizeShorter() as resize, CenterCrop() as crop] if crop.size == resize.size:
            mode = "shortest"
        case ops:
            raise _cannot(f"data.valid_transforms ({', '.join(op.op for op in ops) or 'none'}) of these sizes")
    values: dict[str, Any] = {"size": resize.size, "mean": list(mean), "std": list(deviation)}
    return values | {"interpolation": resize.interpolation, "resize_mode": mode}
