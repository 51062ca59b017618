"""Weights in the flat Flax names of Sabertooth (the parameters of its checkpoints, joined by "/"), both ways.

Its kernels are input x output, the transpose of torch's; queries, keys and values are split into heads.
Dimensions: V vocabulary, D width, H heads, K width of one head.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.recipes.bert.config import BertModelConfig

State = Mapping[str, Tensor]


def _names(num_layers: int) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Our name to the original's: equal tensors, norms (weight is scale there), dense layers (transposed there)."""
    same = {
        "embeddings.word.weight": "bert/word_embeddings/embedding",
        "embeddings.position.weight": "bert/position_embeddings/embedding",
        "embeddings.token_type.weight": "bert/type_embeddings/embedding",
        "masked_lm.decoder_bias": "predictions_output/bias",
        "sentence_order.classifier.weight": "classification/kernel",  # the one kernel that is output x input there too
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


def to_original(state: State, config: BertModelConfig) -> dict[str, Tensor]:
    """Our state dict (with its sentence-order head) in the original's names and shapes."""
    width, heads = config.hidden_size, config.num_heads
    same, norms, dense = _names(config.num_layers)
    found = {theirs: state[ours] for ours, theirs in same.items()}
    for ours, theirs in norms.items():
        found |= {f"{theirs}/scale": state[f"{ours}.weight"], f"{theirs}/bias": state[f"{ours}.bias"]}
    for ours, theirs in dense.items():
        found |= {f"{theirs}/kernel": state[f"{ours}.weight"].t(), f"{theirs}/bias": state[f"{ours}.bias"]}
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.attention", f"bert/encoder_layer_{layer}/self_attention"
        kernels, biases = state[f"{ours}.qkv.weight"].chunk(3), state[f"{ours}.qkv.bias"].chunk(3)
        for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
            found[f"{theirs}/{name}/kernel"] = kernel.t().reshape(width, heads, -1)
            found[f"{theirs}/{name}/bias"] = bias.reshape(heads, -1)
        found[f"{theirs}/out/kernel"] = state[f"{ours}.out.weight"].t().reshape(heads, -1, width)
        found[f"{theirs}/out/bias"] = state[f"{ours}.out.bias"]
    return found


def from_original(arrays: State, config: BertModelConfig) -> dict[str, Tensor]:
    """The original's parameters as our state dict.

    Raises:
        CheckpointError: A tensor is missing or left over.
    """
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
    found = {ours: take(theirs) for ours, theirs in same.items()}
    for ours, theirs in norms.items():
        found |= {f"{ours}.weight": take(f"{theirs}/scale"), f"{ours}.bias": take(f"{theirs}/bias")}
    for ours, theirs in dense.items():
        found |= {f"{ours}.weight": take(f"{theirs}/kernel").t(), f"{ours}.bias": take(f"{theirs}/bias")}
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.attention", f"bert/encoder_layer_{layer}/self_attention"
        kernels = [take(f"{theirs}/{name}/kernel").reshape(width, width).t() for name in ("query", "key", "value")]
        biases = [take(f"{theirs}/{name}/bias").reshape(width) for name in ("query", "key", "value")]
        found |= {f"{ours}.qkv.weight": torch.cat(kernels), f"{ours}.qkv.bias": torch.cat(biases)}
        found[f"{ours}.out.weight"] = take(f"{theirs}/out/kernel").reshape(width, width).t()
        found[f"{ours}.out.bias"] = take(f"{theirs}/out/bias")
    if rest:
        raise CheckpointError(
            f"{len(rest)} tensors have no place in a model of {config.num_layers} layers, such as {sorted(rest)[:3]}\n"
            "  give the config that belongs to the checkpoint"
        )
    return {name: tensor.contiguous() for name, tensor in found.items()}
