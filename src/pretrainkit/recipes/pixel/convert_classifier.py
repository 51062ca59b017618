"""Convert fine-tuned models with a linear head from and to the layout of the original. transformers has no classes for
them.

They are PIXELForSequenceClassification, PIXELForTokenClassification, PIXELForQuestionAnswering and
PIXELForBiaffineParsing: the encoder of `convert.py` without the decoder, a pooling of patches, and the head. The
original's pooling by attention is pma_padded; our own pma has no such form.

Dimensions: L patches, D width.
"""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting import transformers_folder
from pretrainkit.exporting.class_names import HEADS, Reads, class_names, class_settings
from pretrainkit.exporting.published_files import read_saved
from pretrainkit.recipes.exchange import ImportedTextClassifier, TextClassifier
from pretrainkit.recipes.pixel.config import PixelModelConfig, PixelRun
from pretrainkit.recipes.pixel.convert import (
    KIND,
    from_huggingface_config,
    published_names,
    require_grid,
    require_length,
    to_huggingface_config,
    to_huggingface_state,
    to_our_state,
    write_folder,
)
from pretrainkit.recipes.pixel.model import position_table
from pretrainkit.recipes.pixel.presets import base

_ARCHITECTURES = {reads: f"PIXEL{name}" for reads, name in HEADS.items()} | {"trees": "PIXELForBiaffineParsing"}
_READS = {name: reads for reads, name in _ARCHITECTURES.items()}
_HEADS: dict[Reads, dict[str, str]] = {
    "examples": {"weight": "classifier.weight", "bias": "classifier.bias"},
    "words": {"weight": "classifier.weight", "bias": "classifier.bias"},
    "spans": {"weight": "qa_outputs.weight", "bias": "qa_outputs.bias"},
    "trees": {"arc": "biaffine_arcs.weight", "relation": "biaffine_rels.weight"},
}
"""Maps our names of a head's tensors to those of the original."""
_ANSWERS_FOR = {"words": "word", "spans": "span", "trees": "word"}
_PUBLISHED_GRID = 23
_OURS = "encoder."
"""Prefix of the names of the encoder's tensors in a pretraining model."""
_POOLINGS = {
    "cls": {"pooling.dense": "vit.pooler.dense"},
    "patches": {"pooling.dense": "pooler.linear", "pooling.norm": "pooler.ln"},
    "pma_padded": {"pooling.norm": "pooler.ln"}
    | {
        f"pooling.{ours}": f"pooler.pooling.pooler.mab.{theirs}"
        for ours, theirs in (("queries", "fc_q"), ("out", "fc_o"))
    },
}
_QUERY, _KEYS, _VALUES = (f"pooler.pooling.pooler.{name}" for name in ("S", "mab.fc_k", "mab.fc_v"))
_STACKED, _OUR_QUERY = "pooling.keys_and_values", "pooling.query"


def write_classifier(model: TextClassifier, config: PixelRun, out: Path, *, renderer: Path | None) -> None:
    """Write a folder in the layout of the published fine-tuned models. Raises InputError if the model has no such form,
    if `out` exists and is not an empty folder, or if it cannot be written."""
    require_grid(config)
    pooling = config.text.pooling
    if model.reads == "examples" and pooling.startswith("pma:"):
        raise InputError(
            f"text.pooling={pooling} has no Hugging Face form: the original's pooling by attention is pma_padded\n"
            "  use --format safetensors"
        )
    if model.reads == "examples" and pooling in ("mean", "max") and not config.text.pooling_linear:
        raise InputError(
            f"text.pooling={pooling} without text.pooling_linear has no Hugging Face form: the original always has "
            "this layer\n  use --format safetensors"
        )
    if model.reads == "trees" and pooling != "cls":
        raise InputError(
            f"a parser with text.pooling={pooling} has no Hugging Face form: "
            "there, the root of a tree is the class token\n"
            "  use --format safetensors"
        )
    state = model.encoder.state_dict()
    tensors = to_huggingface_state({f"{_OURS}{name}": value for name, value in state.items()}, config.model, _OURS)
    if model.reads in ("examples", "trees"):
        kind = pooling.partition(":")[0]
        names = _POOLINGS[kind if kind in _POOLINGS else "patches"]
        tensors |= {
            f"{theirs}.{kind}": state[f"{ours}.{kind}"]
            for ours, theirs in names.items()
            for kind in ("weight", "bias")
            if f"{ours}.{kind}" in state
        }
    if _OUR_QUERY in state:
        tensors[_QUERY] = state[_OUR_QUERY][None, None]
        for part in ("weight", "bias"):
            keys, values = state[f"{_STACKED}.{part}"].chunk(2)
            tensors |= {f"{_KEYS}.{part}": keys, f"{_VALUES}.{part}": values}
    tensors |= {_HEADS[model.reads][name]: tensor for name, tensor in model.head.state_dict().items()}
    if model.reads == "trees":
        tensors[_HEADS["trees"]["arc"]] = model.head.state_dict()["arc"][None]
    values = to_huggingface_config(config) | {
        "architectures": [_ARCHITECTURES[model.reads]],
        "interpolate_pos_encoding": False,
        "pooling": pooling,
        **(class_settings(model.classes) if model.reads != "spans" else {}),
    }
    write_folder(out, values, tensors, renderer)


def read_classifier(folder: Path, pooling: str | None = None) -> ImportedTextClassifier:
    """Read a fine-tuned model of `write_classifier` or of the original. Its config is that of pixel/base with the model
    of the folder.

    Args:
        folder: The model's folder.
        pooling: mean, max or pma_padded:K, for files of the original, which do not store it.

    Raises:
        CheckpointError: A file is missing or broken, or the model is of another kind.
        InputError: The pooling is not known, or differs from that of the folder.
    """
    (model, _), values = transformers_folder.read_config(folder, from_huggingface_config, KIND)
    architectures = values.get("architectures") or ()
    reads = next((_READS[name] for name in architectures if name in _READS), None)
    if reads is None:
        raise CheckpointError(
            f"{folder} has {', '.join(architectures) or 'an unnamed model'}\n  supported models: {', '.join(_READS)}"
        )
    state = read_saved(folder)
    text: dict[str, Any] = {"pooling": "mean", "pooling_linear": False, "pooling_norm": False}
    names: dict[str, str] = {}
    if reads == "trees":
        names = _POOLINGS["cls"]
        text = {"pooling": "cls", "pooling_linear": True, "pooling_norm": True}
    if reads == "examples":
        # The original's files always contain the layers that pool patches, even if they are not used.
        kind = "cls" if "vit.pooler.dense.weight" in state else "pma_padded" if _QUERY in state else "patches"
        names = {ours: theirs for ours, theirs in _POOLINGS[kind].items() if f"{theirs}.weight" in state}
        if "pooling" not in values and "pooling.norm" in names and _is_untrained_norm(state, names["pooling.norm"]):
            del names["pooling.norm"]
        text = {
            "pooling": _pooling(folder, kind, "cls" if kind == "cls" else values.get("pooling"), pooling),
            "pooling_linear": kind == "cls" or "pooling.dense" in names,
            "pooling_norm": kind == "cls" or "pooling.norm" in names,
        }
    elif pooling is not None:
        raise InputError(
            f"{folder} gives an answer per {_ANSWERS_FOR[reads]} and does no pooling\n  leave --pooling out"
        )
    pairs = {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in names.items() for part in ("weight", "bias")}
    heads = _HEADS[reads]
    expected = [*published_names(model, _OURS), *pairs.values(), *heads.values()]
    if lacking := [name for name in expected if name not in state]:
        raise CheckpointError(
            f"{folder} lacks {len(lacking)} of {len(expected)} tensors, such as {', '.join(lacking[:3])}\n"
            "  copy it again"
        )
    encoder = {name.removeprefix(_OURS): value for name, value in to_our_state(state, model, _OURS).items()}
    table = encoder["position_embedding"]
    require_length(table, model, folder)
    model = model.changed(grid_width=nearest_grid_width(table, model))
    head = {part: state[name] for part, name in heads.items()}
    if reads == "trees":
        head["arc"] = head["arc"][0]
    outputs = head["relation"] if reads == "trees" else head["weight"]
    classes = () if reads == "spans" else class_names(values, len(outputs), has_encoder=False)
    encoder |= {ours: state[theirs] for ours, theirs in pairs.items()}
    if text["pooling"].startswith("pma_padded"):
        encoder[_OUR_QUERY] = state[_QUERY].flatten()
        for part in ("weight", "bias"):
            encoder[f"{_STACKED}.{part}"] = torch.cat([state[f"{name}.{part}"] for name in (_KEYS, _VALUES)])
    config, length = base(), model.max_patches
    config = config.changed(model=model, data={"max_patches": min(config.data.max_patches, length)}, text=text)
    return ImportedTextClassifier(config, encoder, head, classes, length, reads, length)


def _pooling(folder: Path, kind: str, stored: str | None, given: str | None) -> str:
    """Return the folder's pooling, or else the given one. Raises InputError if there is neither, or they differ."""
    is_named = given is not None and given.startswith("pma_padded:")
    if kind == "pma_padded" and stored is None and not is_named:
        raise InputError(
            f"{folder} pools by attention, and its files do not specify the number of heads\n"
            f"  fix: pretrainkit import {quote(str(folder))} --recipe glue --pooling pma_padded:8 --out OUT\n"
            "  with the number of heads in its fine-tuning, such as 8 for the original's pooling_mode pma8. Then use "
            "OUT instead"
        )
    if stored is None and given is None:
        raise InputError(
            f"{folder} does not specify whether it pools by mean or max: the original's files are the same for both\n"
            f"  fix: pretrainkit import {quote(str(folder))} --recipe glue --pooling mean --out OUT\n"
            "  or --pooling max; the original's default is mean. Then use OUT instead"
        )
    if stored is not None and given not in (None, stored):
        raise InputError(f"{folder} pools by {stored}, not by {given}\n  leave --pooling out")
    pooling = str(stored or given)
    if kind == "pma_padded":
        return pooling
    if pooling not in ("cls", "mean", "max") or (stored is None and pooling == "cls"):
        raise InputError(f"{folder} cannot pool by {pooling!r}: it has layers for mean and max\n  give --pooling mean")
    return pooling


def _is_untrained_norm(state: Mapping[str, Tensor], name: str) -> bool:
    """Return True for a layer norm of ones and zeros, which was not used in training: the original's files also contain
    a norm that `pooler_add_layer_norm` switched off."""
    return bool((state[f"{name}.weight"] == 1).all() and (state[f"{name}.bias"] == 0).all())


def nearest_grid_width(table: Tensor, config: PixelModelConfig) -> int | None:
    """Return the published width of the grid, or None for the default width of a table of this length, whichever is
    nearer to the trained table."""
    rows, widths = min(len(table) - 1, config.max_patches), (config.position_grid_width, _PUBLISHED_GRID)
    own_distance, published = (
        (table - position_table(rows, table.shape[1], width)).abs().mean().item() for width in widths
    )
    return _PUBLISHED_GRID if published < own_distance else None
