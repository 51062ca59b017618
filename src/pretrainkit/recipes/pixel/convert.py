"""Convert weights from and to published PIXEL checkpoints and transformers' `ViTMAEForPreTraining`.

Both have the same tensors with the same names and differ only in config.json. Only `difference_from_huggingface`
imports transformers.

Dimensions: L patches, D width.
"""

import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting import transformers_folder
from pretrainkit.exporting.published_files import read_saved
from pretrainkit.exporting.transformers_folder import new_transformers_folder, their_names, to_ours, to_theirs
from pretrainkit.files.manifest import read_object
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import NUM_CHANNELS, Activation, PixelModelConfig, PixelRun, Zero
from pretrainkit.recipes.pixel.model import fitted_table, position_table
from pretrainkit.rendering.folder import copy_renderer

_logger = logging.getLogger(__name__)
State = Mapping[str, Tensor]

_HF_ACTIVATIONS: dict[Activation, str] = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "swish": "silu"}
_OUR_ACTIVATIONS = {theirs: ours for ours, theirs in _HF_ACTIVATIONS.items()}
KIND = "with a model of type pixel or vit_mae"
_PIXEL_EPSILON = 1e-5
"""Epsilon of the decoder's last norm in models of the original's code, whatever the value in config.json."""
_TABLES = {
    "encoder.position_embedding": "vit.embeddings.position_embeddings",
    "decoder.position_embedding": "decoder.decoder_pos_embed",
}
_TOKENS = {"encoder.class_token": "vit.embeddings.cls_token", "decoder.mask_token": "decoder.mask_token"}
_LEADING_ONES = frozenset({*_TABLES.values(), *_TOKENS.values()})
"""Published tensors of shape (1, 1, D) or (1, 1 + L, D). Ours have no dimensions of size 1."""
_PATCH = ("encoder.patch", "vit.embeddings.patch_embeddings.projection")
_FIELDS: dict[str, tuple[str, Any]] = {
    "hidden_size": ("hidden_size", 768),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "intermediate_size": ("intermediate_size", 3072),
    "decoder_hidden_size": ("decoder_hidden_size", 512),
    "decoder_num_layers": ("decoder_num_hidden_layers", 8),
    "decoder_num_heads": ("decoder_num_attention_heads", 16),
    "decoder_intermediate_size": ("decoder_intermediate_size", 2048),
    "patch_size": ("patch_size", 16),
    "hidden_dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
"""Maps our field to the original's field and to its default there, for keys that are missing in config.json."""
_PROCESSOR_FILE = "preprocessor_config.json"
_PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_convert_rgb": True,
    "do_resize": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": False,
}
"""Settings of the image processor: pictures of rendered text keep their size, and colours are scaled to [0, 1]."""


def _names(config: PixelModelConfig, part: str) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return two mappings from our names that begin with `part` to published names: of tensors that are equal except
    for leading dimensions of size 1; and of query, key and value projections, which are three published tensors."""
    blocks = {f"encoder.layers.{layer}": f"vit.encoder.layer.{layer}" for layer in range(config.num_layers)}
    blocks |= {f"decoder.layers.{j}": f"decoder.decoder_layers.{j}" for j in range(config.decoder_num_layers)}
    modules = {
        "encoder.final_norm": "vit.layernorm",
        "decoder.embed": "decoder.decoder_embed",
        "decoder.final_norm": "decoder.decoder_norm",
        "decoder.predict": "decoder.decoder_pred",
    }
    for ours, theirs in blocks.items():
        modules |= {
            f"{ours}.attention.out": f"{theirs}.attention.output.dense",
            f"{ours}.attention_norm": f"{theirs}.layernorm_before",
            f"{ours}.feed_forward_norm": f"{theirs}.layernorm_after",
            f"{ours}.feed_forward.up": f"{theirs}.intermediate.dense",
            f"{ours}.feed_forward.down": f"{theirs}.output.dense",
        }
    kinds = ("weight", "bias")
    same = {**_TOKENS, **_TABLES, f"{_PATCH[0]}.bias": f"{_PATCH[1]}.bias"}
    same |= {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in kinds}
    split = {
        f"{ours}.attention.qkv.{kind}": tuple(
            f"{theirs}.attention.attention.{name}.{kind}" for name in ("query", "key", "value")
        )
        for ours, theirs in blocks.items()
        for kind in kinds
    }
    return (
        {ours: theirs for ours, theirs in same.items() if ours.startswith(part)},
        {ours: names for ours, names in split.items() if ours.startswith(part)},
    )


def published_names(config: PixelModelConfig, part: str = "") -> list[str]:
    """Return the published names of all tensors whose names here begin with `part`: "" for all, or "encoder."."""
    return [*their_names(*_names(config, part)), f"{_PATCH[1]}.weight"]


def to_huggingface_state(state: State, config: PixelModelConfig, part: str = "") -> dict[str, Tensor]:
    """Convert our state dict, or its tensors whose names begin with `part`, to published names."""
    same, split = _names(config, part)
    published = to_theirs(state, same, split)
    for theirs in published.keys() & _LEADING_ONES:
        published[theirs] = published[theirs][(None,) * (3 - published[theirs].ndim)]
    weight, bias = _with_zero(state, config.pixel_zero)
    # Ours are flattened in row-major order with colours last; theirs are the weights of a convolution.
    weight = weight.unflatten(1, (config.patch_size, config.patch_size, NUM_CHANNELS)).permute(0, 3, 1, 2)
    return published | {f"{_PATCH[1]}.weight": weight, f"{_PATCH[1]}.bias": bias}


def _with_zero(state: State, zero: Zero) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the layer that embeds patches, converted between a model for which black is 0 and an
    equivalent one for which `zero` is 0. The conversion is its own inverse."""
    weight, bias = (state[f"{_PATCH[0]}.{kind}"] for kind in ("weight", "bias"))
    if zero == "black":
        return weight, bias
    return -weight, bias + weight.sum(1)  # W (1 - x) + b = -W x + (b + W 1)


def patch_for_zero(state: State, zero: Zero) -> dict[str, Tensor]:
    """Convert our state dict of a model for which black is 0 to an equivalent one for which `zero` is 0."""
    weight, bias = _with_zero(state, zero)
    return {**state, f"{_PATCH[0]}.weight": weight, f"{_PATCH[0]}.bias": bias}


def to_our_state(state: State, config: PixelModelConfig, part: str = "") -> dict[str, Tensor]:
    """Convert published tensors to our names that begin with `part`. All `published_names` must be present."""
    state = {name: t.squeeze(0).squeeze(0) if name in _LEADING_ONES else t for name, t in state.items()}
    ours = to_ours(state, *_names(config, part))
    return ours | {f"{_PATCH[0]}.weight": state[f"{_PATCH[1]}.weight"].permute(0, 2, 3, 1).flatten(1)}


def from_huggingface_state(state: State, config: PixelModelConfig) -> dict[str, Tensor]:
    """Convert published tensors to our names. Raises CheckpointError if tensors are missing or unexpected."""
    # transformers 5 saves the decoder's layers under a wrong name by mistake.
    state = {name.replace("decoder.decoder_encoder.layer.", "decoder.decoder_layers."): t for name, t in state.items()}
    expected = published_names(config)
    if missing := [name for name in expected if name not in state]:
        raise CheckpointError(
            f"{len(missing)} of {len(expected)} tensors are missing, such as {', '.join(missing[:3])}\n"
            "  give a PIXELForPreTraining or ViTMAEForPreTraining with its decoder; for a fine-tuned model: "
            "pretrainkit import FOLDER --recipe glue"
        )
    if left_over := sorted(set(state) - set(expected)):
        raise CheckpointError(
            f"{len(left_over)} tensors are not part of this model, such as {', '.join(left_over[:3])}\n"
            "  the weights belong to a different architecture than config.json specifies"
        )
    return to_our_state(state, config)


def with_length(state: State, config: PixelModelConfig, max_patches: int) -> tuple[PixelModelConfig, dict[str, Tensor]]:
    """Return the model for texts of another length: position tables are cut, or extended by their formula.

    The width of the grid does not change, so that learned positions stay valid. Rotary positions have no table.
    """
    state_of_length = dict(state)
    if config.positions == "rotary":
        return config.changed(max_patches=max_patches), state_of_length
    for name in _TABLES:
        state_of_length[name] = fitted_table(state[name], max_patches, config.position_grid_width)
    return config.changed(max_patches=max_patches, grid_width=config.position_grid_width), state_of_length


def to_huggingface_config(config: PixelRun, model_type: str = "pixel") -> dict[str, Any]:
    """Return the content of `config.json`."""
    model, objective = config.model, config.objective
    architecture = {"pixel": "PIXELForPreTraining", "vit_mae": "ViTMAEForPreTraining"}[model_type]
    return {
        "model_type": model_type,
        "architectures": [architecture],
        **{theirs: getattr(model, ours) for ours, (theirs, _) in _FIELDS.items()},
        "hidden_act": _HF_ACTIVATIONS[model.activation],
        "qkv_bias": True,
        "num_channels": NUM_CHANNELS,
        "image_size": [model.patch_size, model.patch_size * model.max_patches],
        "mask_ratio": objective.mask_ratio,
        "norm_pix_loss": objective.normalize_target,
        "is_encoder_decoder": False,
    }


def from_huggingface_config(values: Mapping[str, Any]) -> tuple[PixelModelConfig, dict[str, Any]]:
    """Convert the content of a `config.json` to our model's config and fields of our objective's config. Raises
    CheckpointError if the model is of another kind or has a feature that is not supported."""
    kind = values.get("model_type")
    if kind not in ("pixel", "vit_mae"):
        raise CheckpointError(f"config.json has model_type {kind!r}\n  the pixel recipe reads 'pixel' and 'vit_mae'")
    # The original interpolates the positions of texts that are longer than its table, here by the table's formula.
    known = {"qkv_bias": True, "num_channels": NUM_CHANNELS, "interpolate_pos_encoding": False}
    transformers_folder.only(values, known)
    sizes = {ours: values.get(theirs, usual) for ours, (theirs, usual) in _FIELDS.items()}
    size = values.get("image_size", [16, 8464])
    height, width = (size, size) if isinstance(size, int) else (size[0], size[1])
    patch_size = sizes["patch_size"]
    if height % patch_size or width % patch_size:
        raise CheckpointError(
            f"config.json has image_size {[height, width]}, which is not a multiple of patch_size {patch_size}\n"
            "  give a model whose pictures consist of whole patches"
        )
    is_pixel = kind == "pixel" or any(name.startswith("PIXEL") for name in values.get("architectures") or ())
    model = PixelModelConfig(
        **sizes,
        decoder_norm_epsilon=_PIXEL_EPSILON if is_pixel else sizes["layer_norm_epsilon"],
        activation=transformers_folder.our_activation(values.get("hidden_act", "gelu"), _OUR_ACTIVATIONS),
        max_patches=(height // patch_size) * (width // patch_size),
    )
    objective = {
        "mask_ratio": values.get("mask_ratio", 0.25 if is_pixel else 0.75),
        "normalize_target": values.get("norm_pix_loss", is_pixel),
    }
    return model, objective


def write_huggingface(
    state: State, config: PixelRun, out: Path, *, renderer: Path | None = None, model_type: str = "pixel"
) -> None:
    """Write a folder in the layout of the published models or, with model_type vit_mae, for transformers. The files of
    the folder `renderer` are copied into it. Raises InputError if the model has no such form, if `out` exists and is
    not an empty folder, or if it cannot be written."""
    require_grid(config)
    write_folder(out, to_huggingface_config(config, model_type), to_huggingface_state(state, config.model), renderer)


def require_grid(config: PixelRun) -> None:
    """Raise InputError if the model has no published form."""
    if config.model.positions != "grid":
        raise InputError(
            f"a model with model.positions={config.model.positions} has no Hugging Face form: PIXEL and ViTMAE add "
            "fixed positions\n  use --format safetensors, or train another model, such as pixel/tiny-grid"
        )


def write_folder(out: Path, values: Mapping[str, Any], state: State, renderer: Path | None) -> None:
    """Create the folder `out` with `config.json`, weights with published names, the files of a renderer's folder, and
    the settings of the image processor of transformers that converts pictures to the model's input."""
    with new_transformers_folder(out, values, state) as folder:
        (folder / _PROCESSOR_FILE).write_text(json.dumps(_PROCESSOR, indent=2) + "\n", "utf-8")
        if renderer is not None:
            copy_renderer(renderer, folder)


def read_huggingface(folder: Path) -> tuple[PixelModelConfig, dict[str, Any], dict[str, Tensor]]:
    """Read a published model. Return the model's config, fields of the objective's config and our state dict. Raises
    CheckpointError if a file is missing or broken, or the model is of another kind."""
    (config, objective), _ = transformers_folder.read_config(folder, from_huggingface_config, KIND)
    state = from_huggingface_state(read_saved(folder), config)
    path = folder / _PROCESSOR_FILE
    if path.is_file() and read_object(path, "copy it again").get("do_normalize", True):
        _logger.warning(
            "%s normalizes colors, which this recipe does not: it reads colors from 0 to 1, as PIXEL does, so that the "
            "model gets other pixels here than in transformers",
            path,
        )
    table = state["encoder.position_embedding"]
    require_length(table, config, folder)
    return config.changed(grid_width=grid_width_of(table, config)), objective, state


def require_length(table: Tensor, config: PixelModelConfig, folder: Path) -> None:
    """Raise CheckpointError if the length of a position table differs from that in `config.json`."""
    if len(table) != 1 + config.max_patches:
        raise CheckpointError(
            f"{folder / 'config.json'} has {config.max_patches} patches, but the position table has {len(table) - 1}\n"
            "  set image_size in config.json to the size for which the weights are made"
        )


def grid_width_of(table: Tensor, config: PixelModelConfig) -> int | None:
    """Return the width of the grid whose fixed positions are in a table. None: the default width for its length, or not
    a fixed table."""
    candidates = [config.position_grid_width, *range(config.position_grid_width + 1, config.max_patches + 1)]
    for width in candidates:
        if torch.allclose(table, position_table(len(table) - 1, table.shape[1], width), atol=1e-5):
            return None if width == config.position_grid_width else width
    _logger.info("the position table is not a fixed one; it is kept unchanged")
    return None


@torch.no_grad()
def difference_from_huggingface(config: PixelRun, model: nn.Module, folder: Path) -> float:
    """Return the largest difference between the pixels that the model predicts and those of transformers'
    `ViTMAEForPreTraining` with the weights in `folder`, for random pictures without blank patches and random masks."""
    from transformers import ViTMAEForPreTraining

    P, L = config.model.patch_size, config.model.max_patches
    if config.model.position_grid_width**2 != L:
        raise InputError(
            f"transformers' ViTMAEForPreTraining has only square grids, and {L} patches are not a square of width "
            f"{config.model.position_grid_width}\n  compare a model with a square number of patches"
        )
    with tempfile.TemporaryDirectory() as folder_of_theirs:
        values = to_huggingface_config(config, "vit_mae")
        Path(folder_of_theirs, "config.json").write_text(json.dumps(values), "utf-8")
        shutil.copyfile(folder / "model.safetensors", Path(folder_of_theirs, "model.safetensors"))
        theirs = ViTMAEForPreTraining.from_pretrained(folder_of_theirs).eval()
    theirs.decoder.decoder_norm.eps = config.model.decoder_norm_epsilon  # it has no key in config.json
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, P, L * P, NUM_CHANNELS), np.uint8)
    num_kept = int(L * (1 - config.objective.mask_ratio))
    noise_BL = rng.random((2, L)).argsort(1).argsort(1)
    encoded = theirs.vit(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255, noise=torch.from_numpy(noise_BL))
    decoded = theirs.decoder(encoded.last_hidden_state, encoded.ids_restore).logits
    is_masked_BL = noise_BL >= num_kept
    batch = pack(pixels, np.full(2, L - 1), is_masked_BL)
    model = model.cpu().float().eval()
    ours = model({name: torch.from_numpy(array) for name, array in batch.items()}, L)
    return float((ours - decoded[torch.from_numpy(is_masked_BL)]).abs().max())
