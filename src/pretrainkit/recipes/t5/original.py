"""Weights in the names of T5X, both ways: trees of arrays, flattened with "/".

Its kernels are input x output, the transpose of torch's, fused over heads; the table of relative positions is (heads,
buckets). The embedding table is as ours. In the "scalable" variant the layers of a stack lie in one array along dim 1.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.recipes.t5.config import T5ModelConfig

State = Mapping[str, Tensor]

_ATTENTION = ("query", "key", "value", "out")
_SCAN_DIM = 1
"""Where T5X puts the layers (`param_scan_axis`)."""
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/")


def names(config: T5ModelConfig) -> dict[str, str]:
    """Our name to T5X's, of every tensor."""
    found = {"embedding.weight": "token_embedder/embedding"}
    if not config.tied_logits:
        found["logits.weight"] = "decoder/logits_dense/kernel"
    stacks = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    for stack, num_layers in stacks.items():
        if num_layers is None:
            continue
        found[f"{stack}.final_norm.weight"] = f"{stack}/{stack}_norm/scale"
        if not config.bias_per_layer:
            found[f"{stack}.relative_bias.weight"] = f"{stack}/relpos_bias/rel_embedding"
        for layer in range(num_layers):
            found |= _layer_names(config, stack, f"{stack}.layers.{layer}", f"{stack}/layers_{layer}")
    return found


def _layer_names(config: T5ModelConfig, stack: str, ours: str, theirs: str) -> dict[str, str]:
    own = "attention" if stack == "encoder" else "self_attention"
    found = {f"{ours}.attention_norm.weight": f"{theirs}/pre_{own}_layer_norm/scale"}
    found |= {f"{ours}.attention.{part}.weight": f"{theirs}/{own}/{part}/kernel" for part in _ATTENTION}
    if config.bias_per_layer:
        found[f"{ours}.relative_bias.weight"] = f"{theirs}/relpos_bias/rel_embedding"
    if stack == "decoder" and config.kind == "encoder_decoder":
        found[f"{ours}.cross_norm.weight"] = f"{theirs}/pre_cross_attention_layer_norm/scale"
        cross = f"{theirs}/encoder_decoder_attention"
        found |= {f"{ours}.cross_attention.{part}.weight": f"{cross}/{part}/kernel" for part in _ATTENTION}
    found[f"{ours}.feed_forward_norm.weight"] = f"{theirs}/pre_mlp_layer_norm/scale"
    num = len(config.activations)
    ups = ["wi"] if num == 1 else [f"wi_{index}" for index in range(num)]
    found |= {f"{ours}.feed_forward.up.{index}.weight": f"{theirs}/mlp/{up}/kernel" for index, up in enumerate(ups)}
    found[f"{ours}.feed_forward.down.weight"] = f"{theirs}/mlp/wo/kernel"
    return found


def _turn(name: str, tensor: Tensor) -> Tensor:
    """Between our shape and T5X's, in either direction."""
    return tensor.t() if name.endswith(("/kernel", "/rel_embedding")) else tensor


def to_original(state: State, config: T5ModelConfig) -> dict[str, Tensor]:
    """Our state dict in T5X's names and shapes."""
    return {theirs: _turn(theirs, state[ours]).contiguous() for ours, theirs in names(config).items()}


def from_original(arrays: State, config: T5ModelConfig) -> dict[str, Tensor]:
    """T5X's parameters as our state dict. Names may begin with `target/`; the optimizer's `state/` is not read. Raises
    CheckpointError where a tensor is missing or left over."""
    rest = parameters_of(arrays)
    if not config.bias_per_layer and "encoder/layers_0/relpos_bias/rel_embedding" in rest:
        raise CheckpointError(
            "the checkpoint has one table of relative positions per layer\n  set model.bias_per_layer=true"
        )
    wanted = names(config)
    missing = sorted(set(wanted.values()) - set(rest))
    left_over = sorted(set(rest) - set(wanted.values()))
    if missing or left_over:
        raise CheckpointError(
            "the checkpoint belongs to another model\n"
            + _listed("tensors that the model has are missing", missing)
            + _listed("tensors have no place in the model", left_over)
            + "  give the config that belongs to the checkpoint"
        )
    return {ours: _turn(theirs, rest[theirs]).contiguous() for ours, theirs in wanted.items()}


def _listed(what: str, found: list[str], num_shown: int = 4) -> str:
    more = f" and {len(found) - num_shown} more" if len(found) > num_shown else ""
    return f"  {len(found)} {what}: {', '.join(found[:num_shown])}{more}\n" if found else ""


def parameters_of(arrays: State) -> dict[str, Tensor]:
    """The parameters among T5X's arrays, without `target/`, with a name for each layer where they are stacked."""
    rest = {name.removeprefix("target/"): array for name, array in arrays.items() if not name.startswith("state/")}
    found = {}
    for name, array in rest.items():
        stack = name.split("/")[0]
        inner = f"{stack}/{stack}/"  # the scalable variant
        if not name.startswith(inner):
            found[name] = array
            continue
        # One array of all layers, as `jax.lax.scan` reads it.
        for layer, part in enumerate(array.unbind(_SCAN_DIM)):
            found[f"{stack}/layers_{layer}/{name.removeprefix(inner)}"] = part
    return found


def model_of(parameters: State) -> T5ModelConfig:
    """The architecture that T5X's parameters belong to, as `parameters_of` gives them.

    What no shape tells is what T5 has: ReLU without a gate, GELU with one, distances up to 128, no dropout. Raises
    CheckpointError where they are no T5.
    """
    num_layers: dict[str, int] = {}
    for name in parameters:
        if found := _LAYER.match(name):
            num_layers[found[1]] = max(num_layers.get(found[1], 0), int(found[2]) + 1)
    if "decoder" not in num_layers or "token_embedder/embedding" not in parameters:
        raise CheckpointError(
            f"these are not the parameters of a T5: no decoder or no embedding among {len(parameters)}, such as "
            f"{sorted(parameters)[:3]}\n  give a checkpoint of T5 1.0, 1.1, mT5, ByT5 or umT5"
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
    vocab_size, hidden_size = parameters["token_embedder/embedding"].shape
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
    """All arrays of an .npz or .safetensors file. Raises CheckpointError where it cannot be read."""
    if path.suffix == ".safetensors":
        from pretrainkit.exporting.safetensors import read_tensors

        return read_tensors(path.parent, path.stem)
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "it is no whole .npz file of numbers"
        raise CheckpointError(f"{path} cannot be read: {reason}\n  give an .npz or .safetensors file") from None


def write_original(path: Path, state: State, config: T5ModelConfig) -> None:
    """Our weights for T5X, in an .npz or .safetensors file. Raises InputError where the name ends otherwise."""
    if path.suffix not in (".npz", ".safetensors"):
        raise InputError(f"{path.name} ends in {path.suffix!r}\n  give a file whose name ends in .npz or .safetensors")
    arrays = to_original(state, config)
    if path.suffix == ".safetensors":
        from pretrainkit.exporting.safetensors import write_tensors

        write_tensors(path, arrays)
        return
    import numpy as np

    found: dict[str, Any] = {name: array.detach().cpu().numpy() for name, array in arrays.items()}
    np.savez(path, **found)
