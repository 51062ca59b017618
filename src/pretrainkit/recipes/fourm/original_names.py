"""Weights under the names of the published models, both ways.

Dimensions: D width, F width of the feed-forward layer, V vocabulary, R registers.
Source: section 3.13 of the specification; `fm.py` of the original.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.recipes.fourm.embeddings import Places
from pretrainkit.recipes.fourm.model import FourM
from pretrainkit.recipes.fourm.model_config import FourMModelConfig

State = Mapping[str, Tensor]
Form = Literal["same", "row", "unread"]
"""How the original's tensor looks: as ours; with dimensions of 1 in front, three in all; never read."""

_ENCODER = {
    "attention_norm": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "attention.query_norm": "attn.q_norm",
    "attention.key_norm": "attn.k_norm",
    "feed_forward_norm": "norm2",
    "feed_forward.down": "mlp.fc2",
}
_DECODER = {
    "attention_norm": "norm1",
    "attention.qkv": "self_attn.qkv",
    "attention.out": "self_attn.proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "query_norm": "query_norm",
    "context_norm": "context_norm",
    "cross_attention.query": "cross_attn.q",
    "cross_attention.key_value": "cross_attn.kv",
    "cross_attention.out": "cross_attn.proj",
    "cross_attention.query_norm": "cross_attn.q_norm",
    "cross_attention.key_norm": "cross_attn.k_norm",
    "feed_forward_norm": "norm2",
    "feed_forward.down": "mlp.fc2",
}
_UP, _GATED = "feed_forward.up", ("mlp.fc1", "mlp.fc3")


def to_original(model: FourM) -> dict[str, Tensor]:
    """All entries of the original's state dict: shared tensors under each of their names, fixed positions, zero biases
    of norms without one.

    The table of an image among the targets, which the original has and never reads, is that of its head.
    """
    state, found = dict(model.state_dict()), dict[str, Tensor]()
    for ours, theirs, form in _entries(model.config):
        value = state[ours].reshape(1, -1, state[ours].shape[-1]) if form == "row" else state[ours]
        found |= zip(theirs, value.chunk(len(theirs)) if len(theirs) > 1 else [value], strict=True)
    for ours, theirs in _modules(model.config):
        if "norm" in theirs.rpartition(".")[2] and not model.config.biases:
            found[f"{theirs}.bias"] = torch.zeros_like(state[f"{ours}.weight"])
    for side, embeddings in (("encoder", model.inputs), ("decoder", model.targets)):
        for name, embedding in embeddings.items():
            assert isinstance(embedding, Places)
            if embedding.fixed_positions is not None:
                found[f"{side}_embeddings.{name}.pos_emb"] = embedding.fixed_positions[None]
    return found


def from_original(original: State, config: FourMModelConfig) -> dict[str, Tensor]:
    """The state dict of a model.

    Args:
        original: Float tensors by the original's names. Fixed positions are not read.
        config: Of the model. With `tied_logits` the table and the head of a modality must be equal.

    Raises:
        CheckpointError: Something is missing, left over, of another shape, or cannot be said in this config.
    """
    unused = {name for name in original if not name.endswith(".pos_emb")}
    found: dict[str, Tensor] = {}
    for ours, theirs, form in _entries(config):
        missing = [name for name in theirs if name not in original]
        if missing:
            raise CheckpointError(
                f"the file has no tensor {missing[0]}\n"
                "  its architecture is another one: give the config that belongs to it"
            )
        unused -= {*theirs}
        value = torch.cat([original[name] for name in theirs]) if len(theirs) > 1 else original[theirs[0]]
        if form == "row":
            value = value.reshape(value.shape[-2:]) if ours.endswith(("registers", "positions")) else value.reshape(-1)
        if ours in found and form != "unread" and not torch.equal(found[ours], value):
            if form == "row":
                raise CheckpointError(
                    f"{theirs[0]} is not the encoder's, but model.shared_modality_embeddings says so\n  set it to false"
                )
            raise CheckpointError(
                f"{theirs[0]} and the table of its inputs differ, but model.tied_logits says they are one\n"
                "  set model.tied_logits=false"
            )
        if form != "unread":
            found[ours] = value
    for _, theirs in _modules(config):
        name = f"{theirs}.bias"
        if name in unused and original[name].any():
            raise CheckpointError(
                f"{name} is not zero, but model.biases is false\n  give the config that belongs to it"
            )
        unused.discard(name)
    if unused:
        raise CheckpointError(
            f"the model has no place for {', '.join(sorted(unused)[:4])}{' and more' if len(unused) > 4 else ''}\n"
            "  its architecture is another one: give the config that belongs to it"
        )
    return found


def _entries(config: FourMModelConfig) -> Iterator[tuple[str, tuple[str, ...], Form]]:
    """Our name of every tensor, the original's whose rows it has one above another, and how theirs looks."""
    for ours, theirs in _modules(config):
        yield f"{ours}.weight", (f"{theirs}.weight",), "same"
        is_biased = config.biases and not theirs.startswith("encoder_embeddings")
        if is_biased or theirs == "decoder_proj_context" or ".emb_proj" in theirs:
            yield f"{ours}.bias", (f"{theirs}.bias",), "same"
    if config.gated:
        for side, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
            for layer in range(layers):
                for leaf in ("weight", "bias") if config.biases else ("weight",):
                    # Ours has the gate above the other half.
                    halves = tuple(f"{side}.{layer}.{name}.{leaf}" for name in _GATED)
                    yield f"{side}.{layer}.{_UP}.{leaf}", halves, "same"
    yield "mask_token", ("mask_token",), "row"
    if config.num_registers:
        yield "registers", ("register_tokens",), "row"
    for modality in config.modalities:
        name, is_read = modality.name, modality.kind == "sequence"
        has_table = modality.kind in ("image", "sequence")
        ours, theirs = f"inputs.{name}", f"encoder_embeddings.{name}"
        if modality.is_input:
            yield f"input_modality.{name}", (f"{theirs}.mod_emb",), "row"
            if modality.has_learned_positions:
                yield f"{ours}.positions", (f"{theirs}.pos_emb",), "row"
            if has_table:
                yield f"{ours}.table", (f"{theirs}.token_emb.weight",), "same"
        ours, theirs = f"targets.{name}", f"decoder_embeddings.{name}"
        if modality.is_target:
            owner = "input_modality" if config.shared_modality_embeddings else "target_modality"
            yield f"{owner}.{name}", (f"{theirs}.mod_emb",), "row"
            if modality.has_learned_positions:
                yield f"{ours}.positions", (f"{theirs}.pos_emb",), "row"
            table, head = "table" if is_read else "head", "table" if is_read and config.tied_logits else "head"
            yield f"{ours}.{table}", (f"{theirs}.token_emb.weight",), "same" if is_read else "unread"
            yield f"{ours}.{head}", (f"{theirs}.to_logits.weight",), "same"


def _modules(config: FourMModelConfig) -> Iterator[tuple[str, str]]:
    """Our and the original's name of every module with a weight of its own there, but for tables."""
    for side, layers, names in (
        ("encoder", config.num_encoder_layers, _ENCODER),
        ("decoder", config.num_decoder_layers, _DECODER),
    ):
        for layer in range(layers):
            for ours, theirs in names.items():
                if config.query_key_norm or not ours.endswith((".query_norm", ".key_norm")):
                    yield f"{side}.{layer}.{ours}", f"{side}.{layer}.{theirs}"
            if not config.gated:
                yield f"{side}.{layer}.{_UP}", f"{side}.{layer}.mlp.fc1"
    yield "encoder_norm", "encoder_norm"
    yield "decoder_norm", "decoder_norm"
    yield "context", "decoder_proj_context"
    for modality in config.modalities:
        ours, theirs = f"inputs.{modality.name}", f"encoder_embeddings.{modality.name}"
        if modality.kind == "pixels":
            yield f"{ours}.patch", f"{theirs}.proj"
        elif modality.kind == "vectors" and config.vector_bottleneck is None:
            yield f"{ours}.vector", f"{theirs}.emb_proj"
        elif modality.kind == "vectors":
            yield f"{ours}.bottleneck", f"{theirs}.emb_proj.0"
            yield f"{ours}.vector", f"{theirs}.emb_proj.1"
