"""Weights in the names of T5X, both ways: trees of arrays, flattened with "/" and given as npz or safetensors.

Its kernels are input x output, the transpose of torch's, fused over heads; the table of relative positions is (heads,
buckets). The embedding table is as ours. In the "scalable" variant the layers of a stack lie in one array along dim 1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.recipes.t5.config import T5ModelConfig

State = Mapping[str, Tensor]

_ATTENTION = {"query": "query", "key": "key", "value": "value", "out": "out"}
_SCAN_DIM = 1
"""Where T5X puts the layers (`param_scan_axis`)."""


def _names(config: T5ModelConfig) -> dict[str, str]:
    """Our name to T5X's."""
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
    found |= {f"{ours}.attention.{a}.weight": f"{theirs}/{own}/{b}/kernel" for a, b in _ATTENTION.items()}
    if config.bias_per_layer:
        found[f"{ours}.relative_bias.weight"] = f"{theirs}/relpos_bias/rel_embedding"
    if stack == "decoder" and config.kind == "encoder_decoder":
        found[f"{ours}.cross_norm.weight"] = f"{theirs}/pre_cross_attention_layer_norm/scale"
        cross = f"{theirs}/encoder_decoder_attention"
        found |= {f"{ours}.cross_attention.{a}.weight": f"{cross}/{b}/kernel" for a, b in _ATTENTION.items()}
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
    return {theirs: _turn(theirs, state[ours]).contiguous() for ours, theirs in _names(config).items()}


def from_original(arrays: State, config: T5ModelConfig) -> dict[str, Tensor]:
    """T5X's parameters as our state dict. Names may begin with `target/`; the optimizer's `state/` is not read.

    Raises:
        CheckpointError: A tensor is missing or left over.
    """
    rest = {name.removeprefix("target/"): array for name, array in arrays.items() if not name.startswith("state/")}
    rest = _unstacked(rest, config)
    found = {}
    for ours, theirs in _names(config).items():
        if theirs not in rest:
            raise CheckpointError(
                f"the checkpoint has no tensor {theirs!r}\n  it has {len(arrays)}, such as {sorted(arrays)[:2]}; give "
                "the config that belongs to it"
            )
        found[ours] = _turn(theirs, rest.pop(theirs)).contiguous()
    if rest:
        raise CheckpointError(
            f"{len(rest)} tensors have no place in the model, such as {sorted(rest)[:3]}\n"
            "  give the config that belongs to the checkpoint"
        )
    return found


def _unstacked(arrays: dict[str, Tensor], config: T5ModelConfig) -> dict[str, Tensor]:
    """The scalable variant, `encoder/encoder/…` and `decoder/decoder/…`, with a name for each layer."""
    found = {}
    for name, array in arrays.items():
        stack = name.split("/")[0]
        inner = f"{stack}/{stack}/"
        if not name.startswith(inner):
            found[name] = array
            continue
        if not config.bias_per_layer and name.endswith("relpos_bias/rel_embedding"):
            raise CheckpointError(
                f"the checkpoint has one table of relative positions per layer ({name})\n"
                "  set model.bias_per_layer=true"
            )
        for layer, part in enumerate(array.unbind(_SCAN_DIM)):
            found[f"{stack}/layers_{layer}/{name.removeprefix(inner)}"] = part
    return found


def read_original(path: Path) -> dict[str, Tensor]:
    """All arrays of an .npz or .safetensors file.

    Raises:
        CheckpointError: It cannot be read.
    """
    if path.suffix == ".safetensors":
        from pretrainkit.exporting.safetensors import read_tensors

        return read_tensors(path.parent, path.stem)
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in arrays.files}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}\n  give an .npz or .safetensors file") from None


def write_original(path: Path, state: State, config: T5ModelConfig) -> None:
    """Our weights for T5X, in an .npz or .safetensors file."""
    arrays = to_original(state, config)
    if path.suffix == ".safetensors":
        from pretrainkit.exporting.safetensors import write_tensors

        write_tensors(path, arrays)
        return
    import numpy as np

    found: dict[str, Any] = {name: array.detach().cpu().numpy() for name, array in arrays.items()}
    np.savez(path, **found)
