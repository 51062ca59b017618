"""The same weights for published PIXEL checkpoints and for transformers' `ViTMAEForPreTraining`, both ways.

Both have the same tensors under the same names and differ in config.json alone. Nothing but
`difference_from_huggingface` imports transformers.

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
from pretrainkit.exporting.published_files import read_pickle
from pretrainkit.exporting.safetensors import read_tensors
from pretrainkit.exporting.transformers_folder import new_transformers_folder, their_names, to_ours, to_theirs
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
"""Of the decoder's last norm in models of the original's code, whatever config.json says of the others."""
_TABLES = {
    "encoder.position_embedding": "vit.embeddings.position_embeddings",
    "decoder.position_embedding": "decoder.decoder_pos_embed",
}
_TOKENS = {"encoder.class_token": "vit.embeddings.cls_token", "decoder.mask_token": "decoder.mask_token"}
_LEADING_ONES = frozenset({*_TABLES.values(), *_TOKENS.values()})
"""Their tensors that are (1, 1, D) or (1, 1 + L, D); ours have no dimensions of 1."""
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
"""Our field to the original's, and the default of its config class, for keys that a config.json leaves out."""
_PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_convert_rgb": True,
    "do_resize": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": False,
}
"""Pictures of rendered text keep their size and their colours, in [0, 1]."""


def _names(config: PixelModelConfig, part: str) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Our names that begin with `part` to theirs: of tensors that are equal but for leading dimensions of 1, and of
    queries, keys and values, which are three there."""
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
    """The published names of all tensors whose names here begin with `part`: everything, or "encoder."."""
    return [*their_names(*_names(config, part)), f"{_PATCH[1]}.weight"]


def to_huggingface_state(state: State, config: PixelModelConfig, part: str = "") -> dict[str, Tensor]:
    """Our state dict, or the tensors whose names begin with `part`, under the published names."""
    same, split = _names(config, part)
    found = to_theirs(state, same, split)
    for theirs in found.keys() & _LEADING_ONES:
        found[theirs] = found[theirs][(None,) * (3 - found[theirs].ndim)]
    weight, bias = _with_zero(state, config.pixel_zero)
    # Ours are flattened row by row, column by column, colour fastest; theirs are a convolution's.
    weight = weight.unflatten(1, (config.patch_size, config.patch_size, NUM_CHANNELS)).permute(0, 3, 1, 2)
    return found | {f"{_PATCH[1]}.weight": weight, f"{_PATCH[1]}.bias": bias}


def _with_zero(state: State, zero: Zero) -> tuple[Tensor, Tensor]:
    """Weight and bias of the layer that embeds patches, turned between a model that reads black as 0, and one that
    reads `zero` so and computes the same."""
    weight, bias = (state[f"{_PATCH[0]}.{kind}"] for kind in ("weight", "bias"))
    if zero == "black":
        return weight, bias
    return -weight, bias + weight.sum(1)  # W (1 - x) + b = -W x + (b + W 1), which is its own inverse


def patch_for_zero(state: State, zero: Zero) -> dict[str, Tensor]:
    """Our state dict of a model that reads black as zero, for one that reads `zero` so and computes the same."""
    weight, bias = _with_zero(state, zero)
    return {**state, f"{_PATCH[0]}.weight": weight, f"{_PATCH[0]}.bias": bias}


def to_our_state(state: State, config: PixelModelConfig, part: str = "") -> dict[str, Tensor]:
    """Published tensors under our names, of those that begin with `part`; all `published_names` must be there."""
    state = {name: t.squeeze(0).squeeze(0) if name in _LEADING_ONES else t for name, t in state.items()}
    found = to_ours(state, *_names(config, part))
    return found | {f"{_PATCH[0]}.weight": state[f"{_PATCH[1]}.weight"].permute(0, 2, 3, 1).flatten(1)}


def from_huggingface_state(state: State, config: PixelModelConfig) -> dict[str, Tensor]:
    """Return published tensors under our names. Raises CheckpointError where a tensor is missing or left over."""
    # transformers 5 saves the decoder's layers under a name that it makes up by mistake.
    state = {name.replace("decoder.decoder_encoder.layer.", "decoder.decoder_layers."): t for name, t in state.items()}
    wanted = published_names(config)
    if missing := [name for name in wanted if name not in state]:
        raise CheckpointError(
            f"{len(missing)} of {len(wanted)} tensors are missing, such as {', '.join(missing[:3])}\n"
            "  what is read is PIXELForPreTraining or ViTMAEForPreTraining, with the decoder; for a fine-tuned model: "
            "pretrainkit import FOLDER --recipe glue"
        )
    if left_over := sorted(set(state) - set(wanted)):
        raise CheckpointError(
            f"{len(left_over)} tensors have no place in this model, such as {', '.join(left_over[:3])}\n"
            "  the weights belong to another architecture than config.json says"
        )
    return to_our_state(state, config)


def with_length(state: State, config: PixelModelConfig, max_patches: int) -> tuple[PixelModelConfig, dict[str, Tensor]]:
    """The model for texts of another length: position tables are cut, or go on by the formula that made them.

    The number of patches in a row of their grid stays as it is, so what was learnt of a position holds. Rotary
    positions have no table.
    """
    found = dict(state)
    if config.positions == "rotary":
        return config.changed(max_patches=max_patches), found
    for name in _TABLES:
        found[name] = fitted_table(state[name], max_patches, config.position_grid_width)
    return config.changed(max_patches=max_patches, grid_width=config.position_grid_width), found


def to_huggingface_config(config: PixelRun, model_type: str = "pixel") -> dict[str, Any]:
    """The contents of `config.json`."""
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
    """Return our model's config, and fields of our objective's, for the contents of a `config.json`. Raises
    CheckpointError where the model is of another kind, or has a feature ours lacks."""
    kind = values.get("model_type")
    if kind not in ("pixel", "vit_mae"):
        raise CheckpointError(f"config.json has model_type {kind!r}\n  the pixel recipe reads 'pixel' and 'vit_mae'")
    transformers_folder.only(values, {"qkv_bias": True, "num_channels": NUM_CHANNELS})
    sizes = {ours: values.get(theirs, usual) for ours, (theirs, usual) in _FIELDS.items()}
    size = values.get("image_size", [16, 8464])
    height, width = (size, size) if isinstance(size, int) else (size[0], size[1])
    patch_size = sizes["patch_size"]
    if height % patch_size or width % patch_size:
        raise CheckpointError(
            f"config.json has image_size {[height, width]}, which squares of patch_size {patch_size} do not fill\n"
            "  give a model whose pictures are whole patches"
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
    """Write a folder in the layout of the published models, or for transformers itself with model_type vit_mae. The
    files of the folder `renderer` are copied into it. Raises InputError where the model has no such form, or `out`
    exists and is not an empty folder, or cannot be written."""
    require_grid(config)
    write_folder(out, to_huggingface_config(config, model_type), to_huggingface_state(state, config.model), renderer)


def require_grid(config: PixelRun) -> None:
    """Raises InputError where the model has no published form."""
    if config.model.positions != "grid":
        raise InputError(
            f"a model with model.positions={config.model.positions} has no Hugging Face form: PIXEL and ViTMAE add "
            "fixed positions\n  use --format safetensors, or train another one, such as pixel/tiny-grid"
        )


def write_folder(out: Path, values: Mapping[str, Any], state: State, renderer: Path | None) -> None:
    """The new folder `out` with `config.json`, weights under published names, the files of a renderer's folder, and the
    image processor of transformers that makes its pictures what the model reads."""
    with new_transformers_folder(out, values, state) as folder:
        (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR, indent=2) + "\n", "utf-8")
        if renderer is not None:
            copy_renderer(renderer, folder)


def read_huggingface(folder: Path) -> tuple[PixelModelConfig, dict[str, Any], dict[str, Tensor]]:
    """Return the model's config, fields of the objective's and our state dict of a folder with a published model.
    Raises CheckpointError where a file is missing or broken, or the model is of another kind."""
    (config, objective), _ = transformers_folder.read_config(folder, from_huggingface_config, KIND)
    state = from_huggingface_state(published_tensors(folder), config)
    table = state["encoder.position_embedding"]
    require_length(table, config, folder)
    return config.changed(grid_width=grid_width_of(table, config)), objective, state


def require_length(table: Tensor, config: PixelModelConfig, folder: Path) -> None:
    """Raises CheckpointError where a table of positions is not as long as `config.json` says."""
    if len(table) != 1 + config.max_patches:
        raise CheckpointError(
            f"{folder / 'config.json'} says {config.max_patches} patches, but the position table has {len(table) - 1}\n"
            "  set image_size in config.json to what the weights are for"
        )


def grid_width_of(table: Tensor, config: PixelModelConfig) -> int | None:
    """The width of the grid whose positions a table holds; None: that which its length stands for, or none at all."""
    tried = [config.position_grid_width, *range(config.position_grid_width + 1, config.max_patches + 1)]
    for width in tried:
        if torch.allclose(table, position_table(len(table) - 1, table.shape[1], width), atol=1e-5):
            return None if width == config.position_grid_width else width
    _logger.info("the position table is no fixed one; it is kept as it is")
    return None


def published_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the tensors from safetensors, else from pytorch_model.bin, of which nothing but tensors is read."""
    pickled = folder / "pytorch_model.bin"
    if any(folder.glob("*.safetensors")) or not pickled.is_file():
        return read_tensors(folder)
    return read_pickle(pickled, ("state_dict",), "the weights that transformers saved")


@torch.no_grad()
def difference_from_huggingface(config: PixelRun, model: nn.Module, folder: Path) -> float:
    """The largest difference of the pixels that the model draws from those of transformers' `ViTMAEForPreTraining` with
    the weights in `folder`, for random pictures that are full of text, and random masks."""
    from transformers import ViTMAEForPreTraining

    P, L = config.model.patch_size, config.model.max_patches
    if config.model.position_grid_width**2 != L:
        raise InputError(
            f"transformers' ViTMAEForPreTraining has square grids only, and {L} patches are not one of width "
            f"{config.model.position_grid_width}\n  compare a model of a square number of patches"
        )
    with tempfile.TemporaryDirectory() as place:
        values = to_huggingface_config(config, "vit_mae")
        Path(place, "config.json").write_text(json.dumps(values), "utf-8")
        shutil.copyfile(folder / "model.safetensors", Path(place, "model.safetensors"))
        theirs = ViTMAEForPreTraining.from_pretrained(place).eval()
    theirs.decoder.decoder_norm.eps = config.model.decoder_norm_epsilon  # of which config.json does not speak
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, P, L * P, NUM_CHANNELS), np.uint8)
    num_kept = int(L * (1 - config.objective.mask_ratio))
    noise_BL = rng.random((2, L)).argsort(1).argsort(1)
    seen = theirs.vit(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255, noise=torch.from_numpy(noise_BL))
    drawn = theirs.decoder(seen.last_hidden_state, seen.ids_restore).logits
    is_masked_BL = noise_BL >= num_kept
    batch = pack(pixels, np.full(2, L - 1), is_masked_BL)
    model = model.cpu().float().eval()
    ours = model({name: torch.from_numpy(array) for name, array in batch.items()}, L)
    return float((ours - drawn[torch.from_numpy(is_masked_BL)]).abs().max())
