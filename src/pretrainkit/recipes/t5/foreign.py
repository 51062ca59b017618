"""Models of T5X and Mesh TensorFlow as ours, from the files that they wrote."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.formats.t5x_checkpoint import open_t5x
from pretrainkit.formats.tf_checkpoint import TensorFlowCheckpoint
from pretrainkit.recipes.t5 import original
from pretrainkit.recipes.t5.config import T5ModelConfig

_SLOT = re.compile(r"_slot_(?:vr|vc|v|m)$")
_STACK = r"(?P<stack>encoder|decoder|transformer)"
_LAYER = rf"{_STACK}/block_(?P<block>\d+)/layer_(?P<layer>\d+)"
_ATTENTION = re.compile(rf"{_LAYER}/(?P<kind>SelfAttention|EncDecAttention)/(?P<part>[qkvo])")
_BIAS = re.compile(rf"{_LAYER}/SelfAttention/relative_attention_bias")
_FEED_FORWARD = re.compile(rf"{_LAYER}/DenseReluDense/(?P<part>wi|wi_\d+|wo)/kernel")
_NORM = re.compile(rf"{_LAYER}/(?:layer|rms)_norm/scale")
_FINAL_NORM = re.compile(rf"{_STACK}/(?:final_layer|rms)_norm/scale")
_LOGITS = re.compile(r"(?:decoder|transformer)/logits/kernel")
_PARTS = {"q": "query", "k": "key", "v": "value", "o": "out"}
_NORMS = {
    "encoder": ("attention", "mlp"),
    "decoder": ("self_attention", "cross_attention", "mlp"),
    "transformer": ("self_attention", "mlp"),
}


@dataclass(frozen=True)
class Foreign:
    model: T5ModelConfig
    state: dict[str, Tensor]
    """float32, by our names."""
    names: dict[str, str]
    """Our name to that in the checkpoint."""
    step: int | None
    """Updates it was trained for, where the checkpoint says."""


def read_foreign(path: Path, format: str, model: T5ModelConfig | None = None) -> Foreign:
    """A checkpoint's model. Raises CheckpointError where it cannot be read, or is of another architecture than `model`.

    Args:
        path: t5x: the folder of a checkpoint, or an .npz or .safetensors file of parameters with names joined by "/".
            mesh_tf: the prefix or folder of a checkpoint of TensorFlow.
        format: Who wrote it.
        model: The architecture; None: as the shapes say. One without vocab_size takes that of the checkpoint.
    """
    arrays, named, step = _arrays(path, format)
    parameters = original.parameters_of(arrays)
    seen = original.model_of(parameters)
    model = _agreed(model, seen)
    state = original.from_original(parameters, model)
    theirs = {ours: named.get(t5x) or named[_stacked(t5x)] for ours, t5x in original.names(model).items()}
    return Foreign(model, state, theirs, step)


def _agreed(model: T5ModelConfig | None, seen: T5ModelConfig) -> T5ModelConfig:
    """`model`, unless the shapes say otherwise."""
    if model is None:
        return seen
    if model.vocab_size is None:
        model = model.model_copy(update={"vocab_size": seen.vocab_size})
    # How many activations there are is seen; which ones they are is not.
    told = ("activations", "max_distance", "dropout", "norm_epsilon", "init_style")
    differing = [
        f"  model.{name}: {getattr(seen, name)} in the checkpoint, {getattr(model, name)} in the config"
        for name in T5ModelConfig.model_fields
        if name not in told and getattr(seen, name) != getattr(model, name)
    ]
    if len(seen.activations) != len(model.activations):
        differing.append(
            f"  model.activations: {len(seen.activations)} in the checkpoint, {list(model.activations)} here"
        )
    if differing:
        raise CheckpointError(
            "the checkpoint is of another architecture\n"
            + "\n".join(differing)
            + "\n  leave --config out, or give the one that belongs to it"
        )
    return model


def _arrays(path: Path, format: str) -> tuple[dict[str, Tensor], dict[str, str], int | None]:
    """(parameters by T5X's names, the checkpoint's own names by those, step)."""
    checkpoint: Mapping[str, np.ndarray[Any, Any]]
    if format == "t5x" and path.suffix in (".npz", ".safetensors"):
        arrays = original.read_original(path)
        step = arrays.get("state/step")
        found = {name: array.float() for name, array in arrays.items() if not name.startswith("state/")}
        own_names = {name.removeprefix("target/"): name for name in arrays}
        return found, own_names, None if step is None else int(step)
    if format == "t5x":
        checkpoint = open_t5x(path)
        own = {name: name for name in checkpoint if name.startswith("target/")}
        step_name = "state/step"
    else:
        checkpoint = TensorFlowCheckpoint(path)
        own = {t5x: name for name, t5x in mesh_names(checkpoint).items()}
        step_name = "global_step"
    found = {name: torch.from_numpy(np.array(checkpoint[theirs], np.float32)) for name, theirs in own.items()}
    step_value = int(checkpoint[step_name]) if step_name in checkpoint else None
    return found, {name.removeprefix("target/"): theirs for name, theirs in own.items()}, step_value


def _stacked(name: str) -> str:
    """The name that a layer's tensor has in the scalable variant."""
    stack, _, rest = name.partition("/")
    return f"{stack}/{stack}/{rest.partition('/')[2]}"


def mesh_names(variables: Iterable[str]) -> dict[str, str]:
    """T5X's name of each variable that is a parameter; the optimizer's slots and the step are left out. Raises
    CheckpointError where a variable has no place in a T5."""
    given = [name for name in variables if not _SLOT.search(name) and name != "global_step"]
    tables = [name for name in given if _BIAS.fullmatch(name)]
    bias_per_layer = any("/block_000/" not in name for name in tables)
    found = {name: _mesh_name(name, bias_per_layer) for name in given}
    unknown = sorted(name for name, theirs in found.items() if theirs is None)
    if unknown:
        raise CheckpointError(
            f"{len(unknown)} variables are none of a T5, such as {', '.join(unknown[:3])}\n"
            "  give a checkpoint of T5 1.0, 1.1, mT5 or ByT5"
        )
    return {name: theirs for name, theirs in found.items() if theirs is not None}


def _mesh_name(name: str, bias_per_layer: bool) -> str | None:
    """T5X's name; None: there is none. A decoder alone is called transformer there."""
    if name == "shared/embedding":
        return "token_embedder/embedding"
    if _LOGITS.fullmatch(name):
        return "decoder/logits_dense/kernel"
    if found := _FINAL_NORM.fullmatch(name):
        return f"{_tower(found)}/{_tower(found)}_norm/scale"
    for pattern in (_ATTENTION, _BIAS, _FEED_FORWARD, _NORM):
        if found := pattern.fullmatch(name):
            return _in_layer(pattern, found, bias_per_layer)
    return None


def _in_layer(pattern: re.Pattern[str], found: re.Match[str], bias_per_layer: bool) -> str | None:
    layer = f"{_tower(found)}/layers_{int(found['block'])}"
    if pattern is _BIAS:
        return f"{layer if bias_per_layer else _tower(found)}/relpos_bias/rel_embedding"
    if pattern is _FEED_FORWARD:
        return f"{layer}/mlp/{found['part']}/kernel"
    if pattern is _NORM:
        # A norm is named by the part of the block that it stands before, here by its number.
        parts = _NORMS[found["stack"]]
        number = int(found["layer"])
        return f"{layer}/pre_{parts[number]}_layer_norm/scale" if number < len(parts) else None
    own = "attention" if found["stack"] == "encoder" else "self_attention"
    kind = "encoder_decoder_attention" if found["kind"] == "EncDecAttention" else own
    return f"{layer}/{kind}/{_PARTS[found['part']]}/kernel"


def _tower(found: re.Match[str]) -> str:
    return "decoder" if found["stack"] == "transformer" else found["stack"]
