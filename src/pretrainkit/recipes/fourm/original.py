"""Files of published models, both ways: weights as safetensors with their config in the header or beside them.

Source: sections 3.13 and 3.14 of the specification; the hub's format and `fm.py` of `apple/ml-4m`. The released
weights have a licence of their own; nothing here fetches them.

Dimensions: D width, V vocabulary, R registers.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, ConfigError, InputError
from pretrainkit.recipes.fourm.config import FourMModelConfig, published_model
from pretrainkit.recipes.fourm.modality import Modality, is_published, published
from pretrainkit.recipes.fourm.model import FourM, PositionEmbedding

State = Mapping[str, Tensor]
Form = Literal["same", "row", "unread"]
"""How the original's tensor looks: as ours; with dimensions of 1 in front, three in all; never read."""

_ACTIVATIONS = {"SiLU": "swish", "GELU": "gelu"}
_MODALITIES = "modalities"
"""Our own entry of a header: all modalities as JSON, where the original does not know some. It could not load such a
model in any case; a file that it can load has no entry that it does not know."""
_IGNORED = frozenset({"format", "drop_path_rate_encoder", "drop_path_rate_decoder", "shared_drop_path", _MODALITIES})
"""Of a config, besides those that `config_of` writes."""
_DEFAULTS: Mapping[str, Any] = {
    "mlp_ratio": 4.0,
    "act_layer": "GELU",
    "gated_mlp": False,
    "qk_norm": False,
    "num_register_tokens": 0,
    "decoder_causal_mask": False,
    "decoder_sep_mask": True,
    "share_modality_embeddings": True,
}
"""Of a config that does not say."""
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
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
}
_ENCODER = {ours: theirs.replace("self_attn", "attn") for ours, theirs in _DECODER.items()}
_SETTINGS = {
    "dim": "hidden_size",
    "encoder_depth": "num_encoder_layers",
    "decoder_depth": "num_decoder_layers",
    "num_heads": "num_heads",
    "gated_mlp": "gated",
    "qk_norm": "query_key_norm",
    "decoder_causal_mask": "causal_targets",
    "decoder_sep_mask": "separate_targets",
    "num_register_tokens": "num_registers",
    "share_modality_embeddings": "shared_modality_embeddings",
}
"""Keys of its config to ours, where values are the same."""
_BIASES = ("norm_bias", "qkv_bias", "proj_bias", "mlp_bias")


def config_of(config: FourMModelConfig) -> dict[str, Any]:
    """Return the original's config of a model. Raises InputError where it has no such model."""
    pixels = [modality for modality in config.modalities if modality.kind == "pixels"]
    activation = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[config.activation]
    expected = _inner_width(config.hidden_size, 4.0, is_gated=config.gated)
    ratio = 4.0
    if config.intermediate_size != expected:
        ratio = config.intermediate_size / config.hidden_size * (1.5 if config.gated else 1.0)
    if _inner_width(config.hidden_size, ratio, is_gated=config.gated) != config.intermediate_size:
        raise InputError(
            f"the original has no feed-forward layers of {config.intermediate_size} at a width of "
            f"{config.hidden_size}\n  use --format safetensors"
        )
    described = [modality.model_dump(mode="json", exclude_defaults=True) for modality in config.modalities]
    return {
        "domains_in": [modality.name for modality in config.modalities if modality.is_input],
        "domains_out": [modality.name for modality in config.modalities if modality.is_target],
        "image_size": pixels[0].image_size if pixels else 224,
        "patch_size": pixels[0].patch_size if pixels else 16,
        "act_layer": activation,
        "mlp_ratio": ratio,
        **dict.fromkeys(_BIASES, config.biases),
        **{theirs: getattr(config, ours) for theirs, ours in _SETTINGS.items()},
        "use_act_checkpoint": False,
        **({} if all(map(_is_known, config.modalities)) else {_MODALITIES: json.dumps(described)}),
    }


def model_of(values: Mapping[str, Any], tensors: State) -> FourMModelConfig:
    """Return our config of one of the original's. `values`: as in its `config.json`; `tensors`: its weights, which say
    how large tables are and whether targets have tables and heads in one. Raises CheckpointError where it has options
    that are not known here, or modalities that are not published."""
    values = dict(_DEFAULTS) | dict(values)
    biases = {name: bool(values.get(name, True)) for name in _BIASES}
    if len(set(biases.values())) > 1:
        raise CheckpointError(
            f"only some layers have biases: {biases}\n  no released model is so, and none here can be"
        )
    unknown = sorted(values.keys() - config_of(published_model("tiny", (published("rgb@224"),))).keys() - _IGNORED)
    if unknown or values["act_layer"] not in _ACTIVATIONS:
        what = f"options {', '.join(unknown)}" if unknown else f"the activation {values['act_layer']}"
        raise CheckpointError(f"the config has {what}, which no model here has\n  give --config with the model")
    inputs, targets = _names(values["domains_in"]), _names(values["domains_out"])
    modalities = (
        _read_modalities(values[_MODALITIES])
        if _MODALITIES in values
        else tuple(
            _modality(name, tensors, is_input=name in inputs, is_target=name in targets)
            for name in sorted({*inputs, *targets})
        )
    )
    return FourMModelConfig(
        modalities=modalities,
        intermediate_size=_inner_width(int(values["dim"]), float(values["mlp_ratio"]), is_gated=values["gated_mlp"]),
        activation=_ACTIVATIONS[values["act_layer"]],  # type: ignore[arg-type]
        biases=biases["qkv_bias"],
        tied_logits=_is_tied(modalities, tensors),
        **{ours: values[theirs] for theirs, ours in _SETTINGS.items()},
    )


def _is_known(modality: Modality) -> bool:
    """Return True if the original has the modality. Lengths of texts, folders and readers are no part of its models."""
    vocabulary = ("vocab_size",) if modality.kind == "sequence" else ()
    return is_published(modality, "is_input", "is_target", "length", "num_positions", "folder", "reader", *vocabulary)


def _read_modalities(value: Any) -> tuple[Modality, ...]:
    """Read what `config_of` wrote; the parser of headers leaves long texts as they are."""
    try:
        return tuple(Modality(**one) for one in (json.loads(value) if isinstance(value, str) else value))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the header has modalities that cannot be read: {error}\n  give --config with the model"
        ) from None


def _inner_width(width: int, ratio: float, *, is_gated: bool) -> int:
    """Return the width of feed-forward layers, as the original rounds it."""
    return int(2 * int(width * ratio) / 3) if is_gated else int(width * ratio)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value.split("-")) if isinstance(value, str) else tuple(value)


def _modality(name: str, tensors: State, *, is_input: bool, is_target: bool) -> Modality:
    try:
        found = published(name)
    except ConfigError as error:
        raise CheckpointError(
            f"{error}\n"
            "  the file says no more of it: give the config of its run, such as --config runs/NAME/config.yaml, or a "
            "preset that has it"
        ) from None
    table = tensors.get(f"{'encoder' if is_input else 'decoder'}_embeddings.{name}.token_emb.weight")
    changes: dict[str, Any] = {"is_input": is_input, "is_target": is_target}
    if found.vocab_size is not None and table is not None:
        changes["vocab_size"] = len(table)
    return Modality(**{**found.model_dump(), **changes})


def _is_tied(modalities: tuple[Modality, ...], tensors: State) -> bool:
    """Return True if tables and heads of all sequences among the targets are equal."""
    pairs = [
        [tensors.get(f"decoder_embeddings.{modality.name}.{part}.weight") for part in ("token_emb", "to_logits")]
        for modality in modalities
        if modality.is_target and modality.kind == "sequence"
    ]
    return all(a is not None and b is not None and a.shape == b.shape and bool((a == b).all()) for a, b in pairs)


def to_original(model: FourM) -> dict[str, Tensor]:
    """Return all entries of the original's state dict: shared tensors under each of their names, fixed positions, zero
    biases of norms without one. The table of an image among the targets, which the original has and never reads, is
    that of its head."""
    state, found = dict(model.state_dict()), dict[str, Tensor]()
    for ours, theirs, form in _entries(model.config):
        value = state[ours].reshape(1, -1, state[ours].shape[-1]) if form == "row" else state[ours]
        found |= zip(theirs, value.chunk(len(theirs)) if len(theirs) > 1 else [value], strict=True)
        if ours.endswith("norm.weight") and not model.config.biases:
            found[_bias_of(theirs[0])] = torch.zeros_like(value)
    for side, embeddings in (("encoder", model.inputs), ("decoder", model.targets)):
        for name, embedding in embeddings.items():
            assert isinstance(embedding, PositionEmbedding)
            if embedding.fixed_positions is not None:
                found[f"{side}_embeddings.{name}.pos_emb"] = embedding.fixed_positions[None]
    return found


def from_original(original: State, config: FourMModelConfig) -> dict[str, Tensor]:
    """Return the state dict of a model with this config. `original`: float tensors by the original's names; fixed
    positions are not read. With `tied_logits` the table and the head of a modality must be equal. Raises
    CheckpointError where something is missing, left over, of another shape, or does not fit the config."""
    unused = {name for name in original if not name.endswith(".pos_emb")}
    found, biases = dict[str, Tensor](), set[str]()
    for ours, theirs, form in _entries(config):
        missing = [name for name in theirs if name not in original]
        if missing:
            raise CheckpointError(
                f"the file has no tensor {missing[0]}\n"
                "  its architecture is another one: give the config that belongs to it"
            )
        unused -= {*theirs}
        biases |= {_bias_of(name) for name in theirs}
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
    for name in sorted(unused & biases):
        if original[name].any():
            raise CheckpointError(
                f"{name} is not zero, but model.biases is false\n  give the config that belongs to it"
            )
    unused -= biases
    if unused:
        raise CheckpointError(
            f"the model has no place for {', '.join(sorted(unused)[:4])}{' and more' if len(unused) > 4 else ''}\n"
            "  its architecture is another one: give the config that belongs to it"
        )
    return found


def _bias_of(name: str) -> str:
    return f"{name.removesuffix('weight')}bias"


def _entries(config: FourMModelConfig) -> Iterator[tuple[str, tuple[str, ...], Form]]:
    """Our name of every tensor, the original's whose rows it has one above another, and how theirs looks."""
    with torch.device("meta"):
        names = list(FourM(config).state_dict())
    for ours in names:
        part, _, rest = ours.partition(".")
        module, _, leaf = rest.rpartition(".")
        if part in ("encoder", "decoder"):
            layer, _, module = module.partition(".")
            theirs = f"{part}.{layer}.{(_ENCODER if part == 'encoder' else _DECODER)[module]}.{leaf}"
            # Ours has the gate above the other half.
            is_gated = config.gated and module == "feed_forward.up"
            yield ours, (theirs, theirs.replace("fc1", "fc3")) if is_gated else (theirs,), "same"
        elif part in ("inputs", "targets"):
            yield from _embedding_entries(ours, config)
        elif part in ("input_modality", "target_modality"):
            modality = next(one for one in config.modalities if one.name == rest)
            if modality.is_input and part == "input_modality":
                yield ours, (f"encoder_embeddings.{rest}.mod_emb",), "row"
            if modality.is_target and (config.shared_modality_embeddings or part == "target_modality"):
                yield ours, (f"decoder_embeddings.{rest}.mod_emb",), "row"
        elif part in ("mask_token", "registers"):
            yield ours, ("register_tokens" if part == "registers" else part,), "row"
        else:
            yield ours, (ours.replace("context", "decoder_proj_context"),), "same"


def _embedding_entries(ours: str, config: FourMModelConfig) -> Iterator[tuple[str, tuple[str, ...], Form]]:
    """The entries of `inputs.NAME.PART` or `targets.NAME.PART`."""
    side, name, part = ours.split(".", 2)
    theirs = f"{'encoder' if side == 'inputs' else 'decoder'}_embeddings.{name}"
    if part == "positions":
        yield ours, (f"{theirs}.pos_emb",), "row"
    elif part in ("table", "head"):
        is_sequence = next(one.kind for one in config.modalities if one.name == name) == "sequence"
        if part == "table" or not is_sequence:
            yield ours, (f"{theirs}.token_emb.weight",), "same" if part == "table" else "unread"
        if part == "head" or (side == "targets" and config.tied_logits):
            yield ours, (f"{theirs}.to_logits.weight",), "same"
    else:
        vector = "emb_proj" if config.vector_bottleneck is None else "emb_proj.1"
        for own, other in (("patch", "proj"), ("bottleneck", "emb_proj.0"), ("vector", vector)):
            part = part.replace(own, other)
        yield ours, (f"{theirs}.{part}",), "same"
