"""Read Sabertooth's checkpoints: folders with `config.json`, `sentencepiece.model` and `checkpoint_STEP`.

The last one is a file of Flax, or a folder of Orbax, which newer versions of Flax write.
Source: https://github.com/nikitakit/sabertooth.

Its kernels are input x output, the transpose of torch's. Queries, keys and values are split into heads.
Dimensions: V vocabulary, D width, H heads, K width of one head.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.formats.flax_file import flat_arrays, read_flax
from pretrainkit.formats.t5x_checkpoint import open_t5x
from pretrainkit.recipes.bert.config import BertModelConfig

State = Mapping[str, Tensor]
_CHECKPOINT = re.compile(r"checkpoint_(\d+)")


def _names(num_layers: int) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Map our names to the original's: equal tensors, norms (weight is named scale), dense layers (transposed)."""
    same = {
        "embeddings.word.weight": "bert/word_embeddings/embedding",
        "embeddings.position.weight": "bert/position_embeddings/embedding",
        "embeddings.token_type.weight": "bert/type_embeddings/embedding",
        "masked_lm.decoder_bias": "predictions_output/bias",
        "sentence_order.classifier.weight": "classification/kernel",  # the only kernel that is output x input
        "sentence_order.classifier.bias": "classification/bias",
    }
    norms = {"embeddings.norm": "bert/embeddings_layer_norm", "masked_lm.norm": "predictions_transform_layernorm"}
    dense = {"masked_lm.dense": "predictions_transform_dense", "sentence_order.pooler": "bert/pooler"}
    for layer in range(num_layers):
        ours, theirs = f"layers.{layer}", f"bert/encoder_layer_{layer}"
        norms[f"{ours}.attention_norm"] = f"{theirs}/self_attention_layer_norm"
        norms[f"{ours}.feed_forward_norm"] = f"{theirs}/output_layer_norm"
        dense[f"{ours}.feed_forward.up"] = f"{theirs}/feed_forward/intermediate"
        dense[f"{ours}.feed_forward.down"] = f"{theirs}/feed_forward/output"
    return same, norms, dense


def newest_original(folder: Path) -> Path | None:
    """Return the newest of Sabertooth's checkpoints in `folder` (`checkpoint_STEP`), or None if there is none."""
    steps = [int(match[1]) for path in folder.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))]
    return folder / f"checkpoint_{max(steps)}" if steps else None


def read_original(path: Path, config: BertModelConfig) -> dict[str, Tensor]:
    """Read the parameters of one of Sabertooth's checkpoints as our state dict. Raises CheckpointError if the file is
    truncated, is not a checkpoint, or is of a model of another size, and MissingPackageError if TensorStore is needed
    but not installed."""
    arrays = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in _parameters(path).items()}
    if not arrays:
        raise CheckpointError(
            f"{path} has no parameters: neither 'params' nor 'target'\n  give a pretraining checkpoint"
        )
    _check_sizes(arrays, config, path)
    return from_original(arrays, config)


def _parameters(path: Path) -> dict[str, np.ndarray]:
    """Return the parameters in a checkpoint by name; empty if there are none."""
    if path.is_dir():  # written by newer versions of Flax, in Orbax's format
        stored = open_t5x(path)
        return {name.partition("/")[2]: stored[name] for name in stored if name.startswith("params/")}
    tree = read_flax(path)
    # Checkpoints of 2021 have `target` instead of `params`.
    roots = [tree[name] for name in ("params", "target") if name in tree] if isinstance(tree, dict) else []
    return flat_arrays(roots[0].get("params", roots[0])) if roots else {}


def _check_sizes(arrays: State, config: BertModelConfig, path: Path) -> None:
    """Check the sizes that determine all others. `from_original` checks the names."""
    expected = {
        "bert/word_embeddings/embedding": (config.vocab_size, config.hidden_size),
        "bert/position_embeddings/embedding": (config.max_positions, config.hidden_size),
        "bert/type_embeddings/embedding": (config.type_vocab_size, config.hidden_size),
        "bert/encoder_layer_0/feed_forward/intermediate/kernel": (config.hidden_size, config.intermediate_size),
    }
    for name, shape in expected.items():
        if name in arrays and tuple(arrays[name].shape) != shape:
            raise CheckpointError(
                f"{path} has {name} of shape {tuple(arrays[name].shape)}, but its config.json implies {shape}\n"
                "  use the config.json that was written with the checkpoint"
            )


def from_original(arrays: State, config: BertModelConfig) -> dict[str, Tensor]:
    """Return the original parameters as our state dict. Raises CheckpointError if a tensor is missing or left over."""
    width = config.hidden_size
    rest = dict(arrays)

    def take(name: str) -> Tensor:
        if name not in rest:
            raise CheckpointError(
                f"the checkpoint has no tensor {name!r}\n"
                f"  is it a pretraining checkpoint with {config.num_layers} layers? It has {len(arrays)} tensors"
            )
        return rest.pop(name)

    same, norms, dense = _names(config.num_layers)
    state = {ours: take(theirs) for ours, theirs in same.items()}
    for ours, theirs in norms.items():
        state |= {f"{ours}.weight": take(f"{theirs}/scale"), f"{ours}.bias": take(f"{theirs}/bias")}
    for ours, theirs in dense.items():
        state |= {f"{ours}.weight": take(f"{theirs}/kernel").t(), f"{ours}.bias": take(f"{theirs}/bias")}
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.attention", f"bert/encoder_layer_{layer}/self_attention"
        # Kernels are (D, H, K). They are flattened to (D, H K), then transposed to (H K, D).
        kernels = [take(f"{theirs}/{name}/kernel").reshape(width, width).t() for name in ("query", "key", "value")]
        biases = [take(f"{theirs}/{name}/bias").reshape(width) for name in ("query", "key", "value")]
        state |= {f"{ours}.qkv.weight": torch.cat(kernels), f"{ours}.qkv.bias": torch.cat(biases)}
        state[f"{ours}.out.weight"] = take(f"{theirs}/out/kernel").reshape(width, width).t()
        state[f"{ours}.out.bias"] = take(f"{theirs}/out/bias")
    if rest:
        raise CheckpointError(
            f"{len(rest)} tensors have no place in a model of {config.num_layers} layers, such as {sorted(rest)[:3]}\n"
            "  give the config that belongs to the checkpoint"
        )
    return {name: tensor.contiguous() for name, tensor in state.items()}
