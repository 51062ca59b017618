"""Conversion between our weights and T5X's names (trees of arrays, flattened with "/"), and import of T5X and Mesh
TensorFlow checkpoints.

T5X's kernels are input x output, the transpose of torch's, fused over heads; the table of relative positions is (heads,
buckets). The embedding table has the same layout. The "scalable" variant stacks the layers of a stack in one array
along dim 1.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretrainkit.data.aligned_samples import BAD_ARRAYS
from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.safetensors import read_tensors, write_tensors
from pretrainkit.formats.t5x_checkpoint import open_t5x
from pretrainkit.formats.tf_checkpoint import TensorFlowCheckpoint
from pretrainkit.recipes.t5.config import T5ModelConfig

State = Mapping[str, Tensor]

_SCAN_DIM = 1
"""Dimension along which T5X stacks the layers (`param_scan_axis`)."""
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/")
_ATTENTION = ("query", "key", "value", "out")

_MESH_SLOT = re.compile(r"_slot_(?:vr|vc|v|m)$")
_MESH_LAYER = re.compile(r"block_(\d+)/layer_(\d+)/(.+)")
_MESH_BIAS = "SelfAttention/relative_attention_bias"
_MESH_NORMS = {
    "encoder": ("attention", "mlp"),
    "decoder": ("self_attention", "cross_attention", "mlp"),
    "transformer": ("self_attention", "mlp"),
}
"""The sublayer that follows each norm, by layer number. Mesh TensorFlow calls a decoder-only model `transformer`."""
_MESH_PARTS = {
    **{f"SelfAttention/{part[0]}": f"{{own}}/{part}/kernel" for part in _ATTENTION},
    **{f"EncDecAttention/{part[0]}": f"encoder_decoder_attention/{part}/kernel" for part in _ATTENTION},
    **{f"DenseReluDense/{name}/kernel": f"mlp/{name}/kernel" for name in ("wi", "wi_0", "wi_1", "wo")},
}
"""T5X's names of the other parts of a block; `own` is replaced by its name of self-attention."""


_EMBEDDING = "token_embedder/embedding"
_EMBEDDING_OF_DECODER = f"decoder/{_EMBEDDING}"
"""T5X's name of the embedding of a decoder-only model."""


def tensors(config: T5ModelConfig) -> Iterator[tuple[str, str, str]]:
    """Yield our name, T5X's and Hugging Face's of every tensor."""
    embedding = _EMBEDDING_OF_DECODER if config.kind == "decoder_only" else _EMBEDDING
    yield "embedding.weight", embedding, "shared.weight"
    if not config.tied_logits:
        yield "logits.weight", "decoder/logits_dense/kernel", "lm_head.weight"
    num_ups = len(config.activations)
    ups = ["wi"] if num_ups == 1 else [f"wi_{index}" for index in range(num_ups)]
    feed_forward = [*((f"up.{index}", up, up) for index, up in enumerate(ups)), ("down", "wo", "wo")]
    attention = [(part, part, part[0]) for part in _ATTENTION]
    for stack, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        if num_layers is None:
            continue
        own = "attention" if stack == "encoder" else "self_attention"
        # Our names of the norm and its sublayer, T5X's of both, Hugging Face's of the sublayer, and the sublayer's
        # tensors.
        sublayers = [("attention_norm", "attention", own, own, "SelfAttention", attention)]
        if stack == "decoder" and config.kind == "encoder_decoder":
            cross = ("cross_norm", "cross_attention", "cross_attention", "encoder_decoder_attention", "EncDecAttention")
            sublayers.append((*cross, attention))
        sublayers.append(("feed_forward_norm", "feed_forward", "mlp", "mlp", "DenseReluDense", feed_forward))
        yield f"{stack}.final_norm.weight", f"{stack}/{stack}_norm/scale", f"{stack}.final_layer_norm.weight"
        for layer in range(num_layers):
            ours, t5x, hf = f"{stack}.layers.{layer}", f"{stack}/layers_{layer}", f"{stack}.block.{layer}.layer"
            if config.bias_per_layer or layer == 0:
                # A table that layers share belongs to the stack here, and to the first layer in transformers.
                place, their_place = (ours, t5x) if config.bias_per_layer else (stack, stack)
                table = f"{hf}.0.SelfAttention.relative_attention_bias.weight"
                yield f"{place}.relative_bias.weight", f"{their_place}/relpos_bias/rel_embedding", table
            for number, (norm, part, t5x_norm, t5x_part, hf_part, modules) in enumerate(sublayers):
                theirs = f"{hf}.{number}"
                yield f"{ours}.{norm}.weight", f"{t5x}/pre_{t5x_norm}_layer_norm/scale", f"{theirs}.layer_norm.weight"
                for module, in_t5x, in_hf in modules:
                    name = f"{ours}.{part}.{module}.weight"
                    yield name, f"{t5x}/{t5x_part}/{in_t5x}/kernel", f"{theirs}.{hf_part}.{in_hf}.weight"


def names(config: T5ModelConfig) -> dict[str, str]:
    """Return a map from our name of each tensor to T5X's name."""
    return {ours: t5x for ours, t5x, _ in tensors(config)}


def _turn(name: str, tensor: Tensor) -> Tensor:
    """Convert between our shape and T5X's, in either direction."""
    return tensor.t() if name.endswith(("/kernel", "/rel_embedding")) else tensor


def to_original(state: State, config: T5ModelConfig) -> dict[str, Tensor]:
    """Return our state dict with T5X's names and shapes."""
    return {theirs: _turn(theirs, state[ours]).contiguous() for ours, theirs in names(config).items()}


def from_original(arrays: State, config: T5ModelConfig) -> dict[str, Tensor]:
    """Return T5X's parameters as our state dict. Names may begin with `target/`; the optimizer's `state/` is ignored.
    Raises CheckpointError if a tensor is missing or left over."""
    rest = parameters_of(arrays)
    if not config.bias_per_layer and "encoder/layers_0/relpos_bias/rel_embedding" in rest:
        raise CheckpointError(
            "the checkpoint has one table of relative positions per layer\n  set model.bias_per_layer=true"
        )
    expected = names(config)
    differing = {
        "tensors of the model are missing": sorted(set(expected.values()) - set(rest)),
        "tensors have no place in the model": sorted(set(rest) - set(expected.values())),
    }
    if lines := [_listed(problem, listed) for problem, listed in differing.items() if listed]:
        raise CheckpointError(
            "\n".join(["the checkpoint belongs to another model", *lines])
            + "\n  use the config that belongs to the checkpoint"
        )
    return {ours: _turn(theirs, rest[theirs]).contiguous() for ours, theirs in expected.items()}


def _listed(problem: str, tensor_names: list[str], num_shown: int = 4) -> str:
    more = f" and {len(tensor_names) - num_shown} more" if len(tensor_names) > num_shown else ""
    return f"  {len(tensor_names)} {problem}: {', '.join(tensor_names[:num_shown])}{more}"


def parameters_of(arrays: State) -> dict[str, Tensor]:
    """Return the parameters among T5X's arrays, without `target/`, with separate names for stacked layers."""
    parameters = {}
    for name, array in arrays.items():
        name = name.removeprefix("target/")
        if name == _EMBEDDING and not any("encoder/" in other for other in arrays):
            name = _EMBEDDING_OF_DECODER  # as Mesh TensorFlow, and earlier exports of ours
        stack = name.split("/")[0]
        inner = f"{stack}/{stack}/"  # the scalable variant: one array of all layers, as `jax.lax.scan` reads it
        if name.startswith(inner):
            for layer, part in enumerate(array.unbind(_SCAN_DIM)):
                parameters[f"{stack}/layers_{layer}/{name.removeprefix(inner)}"] = part
        elif stack != "state":
            parameters[name] = array
    return {name: _with_merged_heads(name, array) for name, array in parameters.items()}


def _with_merged_heads(name: str, array: Tensor) -> Tensor:
    """Return a matrix from the kernel of a layer whose heads have a dim of their own, as in the scalable variant."""
    if array.ndim != 3:
        return array
    return array.flatten(0, 1) if name.endswith("/out/kernel") else array.flatten(1)


def model_of(parameters: State) -> T5ModelConfig:
    """Return the architecture of T5X's parameters, as `parameters_of` returns them.

    Settings that do not follow from shapes are those of T5: ReLU without a gate, GELU with a gate, distances up to 128,
    no dropout. Raises CheckpointError if these are not the parameters of a T5.
    """
    num_layers: dict[str, int] = {}
    for name in parameters:
        if match := _LAYER.match(name):
            num_layers[match[1]] = max(num_layers.get(match[1], 0), int(match[2]) + 1)
    embedding = parameters.get(_EMBEDDING, parameters.get(_EMBEDDING_OF_DECODER))
    if "decoder" not in num_layers or embedding is None:
        raise CheckpointError(
            f"not the parameters of a T5: no decoder or no embedding among {len(parameters)} tensors, such as "
            f"{sorted(parameters)[:3]}\n  use a checkpoint of T5 1.0, 1.1, mT5, ByT5 or umT5"
        )
    stack, own = ("encoder", "attention") if "encoder" in num_layers else ("decoder", "self_attention")
    layer = f"{stack}/layers_0"
    bias_per_layer = f"{layer}/relpos_bias/rel_embedding" in parameters
    try:
        bias = parameters[f"{layer if bias_per_layer else stack}/relpos_bias/rel_embedding"]
        query = parameters[f"{layer}/{own}/query/kernel"]
        down = parameters[f"{layer}/mlp/wo/kernel"]
    except KeyError as error:
        raise CheckpointError(f"the checkpoint has no tensor {error}\n  copy the whole folder again") from None
    num_gates = sum(f"{layer}/mlp/wi_{index}/kernel" in parameters for index in range(2))
    vocab_size, hidden_size = embedding.shape
    num_heads, num_buckets = bias.shape
    return T5ModelConfig(
        kind="encoder_decoder" if "encoder" in num_layers else "decoder_only",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_heads=num_heads,
        head_size=query.shape[1] // num_heads,
        intermediate_size=down.shape[0],
        num_encoder_layers=num_layers.get("encoder"),
        num_decoder_layers=num_layers["decoder"],
        activations=("gelu_tanh", "linear") if num_gates else ("relu",),
        tied_logits="decoder/logits_dense/kernel" not in parameters,
        bias_per_layer=bias_per_layer,
        num_buckets=num_buckets,
    )


def read_original(path: Path) -> dict[str, Tensor]:
    """Return all arrays of an .npz or .safetensors file. Raises CheckpointError if it cannot be read."""
    if path.suffix == ".safetensors":
        return read_tensors(path.parent, path.stem)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in arrays.files}
    except BAD_ARRAYS as error:
        reason = getattr(error, "strerror", None) or "it is not a complete .npz file of numbers"
        raise CheckpointError(f"{path} cannot be read: {reason}\n  use an .npz or .safetensors file") from None


def write_original(path: Path, state: State, config: T5ModelConfig) -> None:
    """Write our weights for T5X to an .npz or .safetensors file. Raises InputError for other file extensions."""
    if path.suffix not in (".npz", ".safetensors"):
        raise InputError(f"{path.name} ends in {path.suffix!r}\n  use a file name that ends in .npz or .safetensors")
    arrays = to_original(state, config)
    if path.suffix == ".safetensors":
        write_tensors(path, arrays)
    else:
        numbers: dict[str, Any] = {name: array.numpy(force=True) for name, array in arrays.items()}
        np.savez(path, **numbers)


class Foreign(NamedTuple):
    model: T5ModelConfig
    state: dict[str, Tensor]
    """float32 tensors by our names."""
    names: dict[str, str]
    """Names in the checkpoint by our names."""
    step: int | None
    """Number of training updates, if the checkpoint has it."""


def read_foreign(path: Path, format: str, model: T5ModelConfig | None = None) -> Foreign:
    """Return a checkpoint's model. Raises CheckpointError if it cannot be read, or its architecture is not `model`.

    Args:
        path: t5x: the folder of a checkpoint, or an .npz or .safetensors file of parameters with names joined by "/".
            mesh_tf: the prefix or folder of a checkpoint of TensorFlow.
        format: "t5x" or "mesh_tf", the library that wrote it.
        model: The architecture; None: it follows from the shapes. Without vocab_size it gets that of the checkpoint.
    """
    checkpoint: Mapping[str, Any]
    if format == "mesh_tf":
        checkpoint = TensorFlowCheckpoint(path)
        own, step = {t5x: name for name, t5x in mesh_names(checkpoint).items()}, "global_step"
    else:
        is_file = path.suffix in (".npz", ".safetensors")
        checkpoint = read_original(path) if is_file else open_t5x(path)
        beginning = "state/" if is_file else "target/"
        read = [name for name in checkpoint if name.startswith(beginning) != is_file]
        own, step = {name.removeprefix("target/"): name for name in read}, "state/step"
    parameters = parameters_of({t5x: _as_float(checkpoint[name]) for t5x, name in own.items()})
    model = _agreed(model, model_of(parameters))
    state = from_original(parameters, model)
    own |= {_EMBEDDING_OF_DECODER: own[_EMBEDDING]} if _EMBEDDING in own else {}
    theirs = {ours: own.get(t5x) or own[_stacked(t5x)] for ours, t5x in names(model).items()}
    return Foreign(model, state, theirs, int(checkpoint[step]) if step in checkpoint else None)


def _as_float(array: Any) -> Tensor:
    """Return a tensor in float32; an array is copied."""
    return array.float() if isinstance(array, Tensor) else torch.from_numpy(np.array(array, np.float32))


def _agreed(model: T5ModelConfig | None, seen: T5ModelConfig) -> T5ModelConfig:
    """Return `model`. Raises CheckpointError if the architecture of the checkpoint differs."""
    if model is None:
        return seen
    if model.vocab_size is None:
        model = model.model_copy(update={"vocab_size": seen.vocab_size})
    # Shapes determine the number of activations, but not which functions they are.
    unseen = {"activations", "max_distance", "dropout", "norm_epsilon", "init_style"}
    differing = [
        f"\n  model.{name}: {getattr(seen, name)} in the checkpoint, {getattr(model, name)} in the config"
        for name in T5ModelConfig.model_fields
        if name not in unseen and getattr(seen, name) != getattr(model, name)
    ]
    if len(seen.activations) != len(model.activations):
        num = len(seen.activations)
        differing.append(f"\n  model.activations: {num} in the checkpoint, {list(model.activations)} in the config")
    if differing:
        raise CheckpointError(
            f"the checkpoint has another architecture{''.join(differing)}\n"
            "  leave --config out, or pass the config of the checkpoint"
        )
    return model


def _stacked(name: str) -> str:
    """Return the name of a layer's tensor in the scalable variant."""
    stack, _, rest = name.partition("/")
    return f"{stack}/{stack}/{rest.partition('/')[2]}"


def mesh_names(variables: Iterable[str]) -> dict[str, str]:
    """Return T5X's name of each variable that is a parameter, without the optimizer's slots and the step. Raises
    CheckpointError if a variable does not belong to a T5."""
    own = [name for name in variables if not _MESH_SLOT.search(name) and name != "global_step"]
    bias_per_layer = any(name.endswith(_MESH_BIAS) and "/block_000/" not in name for name in own)
    converted = {name: theirs for name in own if (theirs := _mesh_name(name, bias_per_layer)) is not None}
    if unknown := sorted(set(own) - set(converted)):
        raise CheckpointError(
            f"{len(unknown)} variables do not belong to a T5, such as {', '.join(unknown[:3])}\n"
            "  use a checkpoint of T5 1.0, 1.1, mT5 or ByT5"
        )
    return converted


def _mesh_name(name: str, bias_per_layer: bool) -> str | None:
    """Return T5X's name; None if it has no such parameter."""
    if name == "shared/embedding":
        return _EMBEDDING
    stack, _, rest = name.partition("/")
    if stack not in _MESH_NORMS:
        return None
    tower, own = ("encoder", "attention") if stack == "encoder" else ("decoder", "self_attention")
    if rest == "logits/kernel" and tower == "decoder":
        return "decoder/logits_dense/kernel"
    if rest in ("final_layer_norm/scale", "rms_norm/scale"):
        return f"{tower}/{tower}_norm/scale"
    match = _MESH_LAYER.fullmatch(rest)
    if match is None:
        return None
    layer, number, part, norms = f"{tower}/layers_{int(match[1])}", int(match[2]), match[3], _MESH_NORMS[stack]
    if part == _MESH_BIAS:
        return f"{layer if bias_per_layer else tower}/relpos_bias/rel_embedding"
    if part in ("layer_norm/scale", "rms_norm/scale") and number < len(norms):
        return f"{layer}/pre_{norms[number]}_layer_norm/scale"
    return f"{layer}/{_MESH_PARTS[part].format(own=own)}" if part in _MESH_PARTS else None
