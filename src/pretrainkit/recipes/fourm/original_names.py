"""Weights under the names of the published models, both ways.

Dimensions: D width, F width of the feed-forward layer, V vocabulary, R registers.
Source: section 3.13 of the specification; `fm.py` of the original.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.recipes.fourm.embeddings import Places
from pretrainkit.recipes.fourm.model import FourM
from pretrainkit.recipes.fourm.model_config import FourMModelConfig

State = Mapping[str, Tensor]

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
    for ours, theirs in module_names(model.config):
        for leaf in ("weight", "bias"):
            if f"{ours}.{leaf}" in state:
                found[f"{theirs}.{leaf}"] = state[f"{ours}.{leaf}"]
        if _is_norm(theirs) and not model.config.biases:
            found[f"{theirs}.bias"] = torch.zeros_like(state[f"{ours}.weight"])
    for ours, parts in _stacked(model.config):
        for leaf in ("weight", "bias"):
            if f"{ours}.{leaf}" in state:
                pieces = state[f"{ours}.{leaf}"].chunk(len(parts))
                found |= {f"{part}.{leaf}": piece for part, piece in zip(parts, pieces, strict=True)}
    for ours, theirs in _singles(model.config):
        found[theirs] = _as_row(state[ours])
    for side, name, embedding in _embeddings(model):
        table = embedding.fixed_positions if embedding.positions is None else embedding.positions.detach()
        assert table is not None
        found[f"{side}_embeddings.{name}.pos_emb"] = table[None]
    for ours, theirs in _tables(model.config):
        found[theirs] = state[ours]
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

    def take(name: str) -> Tensor:
        if name not in original:
            raise CheckpointError(
                f"the file has no tensor {name}\n  its architecture is another one: give the config that belongs to it"
            )
        unused.discard(name)
        return original[name]

    for ours, theirs in module_names(config):
        found[f"{ours}.weight"] = take(f"{theirs}.weight")
        if _has_bias(theirs, config):
            found[f"{ours}.bias"] = take(f"{theirs}.bias")
        elif f"{theirs}.bias" in original:
            _refuse_bias(f"{theirs}.bias", take(f"{theirs}.bias"))
    for ours, parts in _stacked(config):
        found[f"{ours}.weight"] = torch.cat([take(f"{part}.weight") for part in parts])
        if config.biases:
            found[f"{ours}.bias"] = torch.cat([take(f"{part}.bias") for part in parts])
    for ours, theirs in _singles(config):
        row = take(theirs)
        single = row.reshape(row.shape[-2:]) if ours == "registers" else row.reshape(-1)
        if ours in found and not torch.equal(found[ours], single):
            raise CheckpointError(
                f"{theirs} is not the encoder's, but model.shared_modality_embeddings says so\n  set it to false"
            )
        found[ours] = single
    for modality in config.modalities:
        for side, owner, is_there in (
            ("encoder", "inputs", modality.is_input),
            ("decoder", "targets", modality.is_target),
        ):
            if is_there and modality.has_learned_positions:
                found[f"{owner}.{modality.name}.positions"] = take(f"{side}_embeddings.{modality.name}.pos_emb")[0]
    for ours, theirs in _tables(config):
        table = take(theirs)
        if ours in found and not theirs.startswith("encoder") and not _is_unread(theirs, config):
            if not torch.equal(found[ours], table):
                raise CheckpointError(
                    f"{theirs} and the table of its inputs differ, but model.tied_logits says they are one\n"
                    "  set model.tied_logits=false"
                )
        elif not _is_unread(theirs, config):
            found[ours] = table
    if unused:
        raise CheckpointError(
            f"the model has no place for {', '.join(sorted(unused)[:4])}{' and more' if len(unused) > 4 else ''}\n"
            "  its architecture is another one: give the config that belongs to it"
        )
    return found


def module_names(config: FourMModelConfig) -> Iterator[tuple[str, str]]:
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


def _stacked(config: FourMModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Our name of a linear layer, and those of the original's whose rows it has one above another."""
    if config.gated:
        for side, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
            for layer in range(layers):
                yield f"{side}.{layer}.{_UP}", [f"{side}.{layer}.{name}" for name in _GATED]


def _singles(config: FourMModelConfig) -> Iterator[tuple[str, str]]:
    """Vectors: ours (D,), the original's (1, 1, D); registers (R, D) and (1, R, D)."""
    yield "mask_token", "mask_token"
    if config.num_registers:
        yield "registers", "register_tokens"
    for modality in config.modalities:
        if modality.is_input:
            yield f"input_modality.{modality.name}", f"encoder_embeddings.{modality.name}.mod_emb"
        if modality.is_target:
            owner = "input_modality" if config.shared_modality_embeddings else "target_modality"
            yield f"{owner}.{modality.name}", f"decoder_embeddings.{modality.name}.mod_emb"


def _tables(config: FourMModelConfig) -> Iterator[tuple[str, str]]:
    """Parameters (V, D)."""
    for modality in config.modalities:
        if modality.kind not in ("image", "sequence"):
            continue
        if modality.is_input:
            yield f"inputs.{modality.name}.table", f"encoder_embeddings.{modality.name}.token_emb.weight"
        if modality.is_target:
            is_read = modality.kind == "sequence"
            ours, theirs = f"targets.{modality.name}", f"decoder_embeddings.{modality.name}"
            yield f"{ours}.{'table' if is_read else 'head'}", f"{theirs}.token_emb.weight"
            head = "table" if is_read and config.tied_logits else "head"
            yield f"{ours}.{head}", f"{theirs}.to_logits.weight"


def _is_unread(name: str, config: FourMModelConfig) -> bool:
    """Whether it is the table of an image among the targets, which is never read."""
    return any(
        modality.kind == "image" and name == f"decoder_embeddings.{modality.name}.token_emb.weight"
        for modality in config.modalities
    )


def _embeddings(model: FourM) -> Iterator[tuple[str, str, Places]]:
    for side, embeddings in (("encoder", model.inputs), ("decoder", model.targets)):
        for name, embedding in embeddings.items():
            assert isinstance(embedding, Places)
            yield side, name, embedding


def _as_row(tensor: Tensor) -> Tensor:
    """With dimensions of 1 in front: three in all."""
    return tensor.reshape(1, -1, tensor.shape[-1])


def _is_norm(name: str) -> bool:
    return "norm" in name.rpartition(".")[2]


def _has_bias(name: str, config: FourMModelConfig) -> bool:
    if name == "decoder_proj_context" or ".emb_proj" in name:
        return True
    return config.biases and not name.startswith("encoder_embeddings")


def _refuse_bias(name: str, bias: Tensor) -> None:
    if bias.any():
        raise CheckpointError(f"{name} is not zero, but model.biases is false\n  give the config that belongs to it")
