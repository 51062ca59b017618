"""Read and write files of published models: safetensors with the config in the header or in a file next to it.

Source: format of the released models on the hub, and `fm.py` of `apple/ml-4m`. The released weights have their own
licence; this module does not download them.

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
"""Shape of the original's tensor: same as ours; row: three dimensions, with leading ones of size 1; unread: the
original never reads this tensor."""

_ACTIVATIONS = {"SiLU": "swish", "GELU": "gelu"}
_MODALITIES = "modalities"
"""Our own entry of a header: all modalities as JSON. It is written only if the original lacks some of them, and so
cannot load the model anyway."""
_IGNORED = frozenset({"format", "drop_path_rate_encoder", "drop_path_rate_decoder", "shared_drop_path", _MODALITIES})
"""Known entries of a config that have no effect here, besides those that `config_of` writes."""
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
"""Values of entries that a config lacks."""
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
"""Keys of the original's config and our fields, for entries with the same values."""
_BIASES = ("norm_bias", "qkv_bias", "proj_bias", "mlp_bias")


def config_of(config: FourMModelConfig) -> dict[str, Any]:
    """Return the original's config of a model. Raises InputError if the original has no such model."""
    # The original uses these sizes for images whose name has none, such as tok_dinov2_global.
    sizes = [
        modality.image_size for modality in config.modalities if modality.kind == "image" and "@" not in modality.name
    ]
    pixels = [modality for modality in config.modalities if modality.kind == "pixels"]
    activation = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[config.activation]
    expected = _inner_width(config.hidden_size, 4.0, is_gated=config.gated)
    ratio = 4.0
    if config.intermediate_size != expected:
        ratio = config.intermediate_size / config.hidden_size * (1.5 if config.gated else 1.0)
    if _inner_width(config.hidden_size, ratio, is_gated=config.gated) != config.intermediate_size:
        raise InputError(
            f"the original cannot have feed-forward layers of width {config.intermediate_size} in a model of width "
            f"{config.hidden_size}\n  use --format safetensors"
        )
    described = [modality.model_dump(mode="json", exclude_defaults=True) for modality in config.modalities]
    return {
        "domains_in": [modality.name for modality in config.modalities if modality.is_input],
        "domains_out": [modality.name for modality in config.modalities if modality.is_target],
        "image_size": [*sizes, *(modality.image_size for modality in pixels), 224][0],
        "patch_size": pixels[0].patch_size if pixels else 16,
        "act_layer": activation,
        "mlp_ratio": ratio,
        **dict.fromkeys(_BIASES, config.biases),
        **{theirs: getattr(config, ours) for theirs, ours in _SETTINGS.items()},
        "use_act_checkpoint": False,
        **({} if all(map(_is_known, config.modalities)) else {_MODALITIES: json.dumps(described)}),
    }


def model_of(values: Mapping[str, Any], tensors: State) -> FourMModelConfig:
    """Return our config of an original model. `values`: the contents of its `config.json`. `tensors`: its weights, from
    which the sizes of tables and `tied_logits` follow. Raises CheckpointError if it has unknown options or modalities
    that are not published."""
    values = dict(_DEFAULTS) | dict(values)
    biases = {name: bool(values.get(name, True)) for name in _BIASES}
    if len(set(biases.values())) > 1:
        raise CheckpointError(
            f"only some layers have biases: {biases}\n  this is not supported, and no released model is like this"
        )
    unknown = sorted(values.keys() - config_of(published_model("tiny", (published("rgb@224"),))).keys() - _IGNORED)
    if unknown or values["act_layer"] not in _ACTIVATIONS:
        unsupported = f"options {', '.join(unknown)}" if unknown else f"the activation {values['act_layer']}"
        raise CheckpointError(
            f"the config has {unsupported}, which is not supported\n  pass the config of the model with --config"
        )
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
    """Return True if the original has the modality. Its models do not depend on lengths of texts, folders and
    readers."""
    vocabulary = ("vocab_size",) if modality.kind == "sequence" else ()
    return is_published(modality, "is_input", "is_target", "length", "num_positions", "folder", "reader", *vocabulary)


def _read_modalities(value: Any) -> tuple[Modality, ...]:
    """Return the modalities that `config_of` wrote into a header, as JSON text or parsed JSON."""
    try:
        return tuple(Modality(**fields) for fields in (json.loads(value) if isinstance(value, str) else value))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the header has modalities that cannot be read: {error}\n  pass the config of the model with --config"
        ) from None


def _inner_width(width: int, ratio: float, *, is_gated: bool) -> int:
    """Return the width of feed-forward layers, rounded as in the original."""
    return int(2 * int(width * ratio) / 3) if is_gated else int(width * ratio)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value.split("-")) if isinstance(value, str) else tuple(value)


def _modality(name: str, tensors: State, *, is_input: bool, is_target: bool) -> Modality:
    try:
        default = published(name)
    except ConfigError as error:
        raise CheckpointError(
            f"{error}\n"
            "  the file does not describe it: pass the config of its run, such as --config runs/NAME/config.yaml, or a "
            "preset that has it"
        ) from None
    table = tensors.get(f"{'encoder' if is_input else 'decoder'}_embeddings.{name}.token_emb.weight")
    changes: dict[str, Any] = {"is_input": is_input, "is_target": is_target}
    if default.vocab_size is not None and table is not None:
        changes["vocab_size"] = len(table)
    return Modality(**{**default.model_dump(), **changes})


def _is_tied(modalities: tuple[Modality, ...], tensors: State) -> bool:
    """Return True if table and head are equal in all target sequences."""
    pairs = [
        [tensors.get(f"decoder_embeddings.{modality.name}.{part}.weight") for part in ("token_emb", "to_logits")]
        for modality in modalities
        if modality.is_target and modality.kind == "sequence"
    ]
    return all(a is not None and b is not None and a.shape == b.shape and bool((a == b).all()) for a, b in pairs)


def to_original(model: FourM) -> dict[str, Tensor]:
    """Return all entries of the original's state dict: shared tensors under each of their names, fixed positions, and
    zero biases of norms without a bias. The original has a table for each target image that it never reads; this table
    is a copy of the head."""
    state, original = dict(model.state_dict()), dict[str, Tensor]()
    for ours, theirs, form in _entries(model.config):
        value = state[ours].reshape(1, -1, state[ours].shape[-1]) if form == "row" else state[ours]
        original |= zip(theirs, value.chunk(len(theirs)) if len(theirs) > 1 else [value], strict=True)
        if ours.endswith("norm.weight") and not model.config.biases:
            original[_bias_of(theirs[0])] = torch.zeros_like(value)
    for side, embeddings in (("encoder", model.inputs), ("decoder", model.targets)):
        for name, embedding in embeddings.items():
            assert isinstance(embedding, PositionEmbedding)
            if embedding.fixed_positions is not None:
                original[f"{side}_embeddings.{name}.pos_emb"] = embedding.fixed_positions[None]
    return original


def from_original(original: State, config: FourMModelConfig) -> dict[str, Tensor]:
    """Return the state dict of a model with this config. `original`: float tensors by the original's names; fixed
    positions are ignored. With `tied_logits`, table and head of a modality must be equal. Raises CheckpointError if
    tensors are missing, left over, or do not fit the config."""
    unused = {name for name in original if not name.endswith(".pos_emb")}
    state, biases = dict[str, Tensor](), set[str]()
    for ours, theirs, form in _entries(config):
        missing = [name for name in theirs if name not in original]
        if missing:
            raise CheckpointError(
                f"the file has no tensor {missing[0]}\n"
                "  it has another architecture: pass the config that belongs to it"
            )
        unused -= {*theirs}
        biases |= {_bias_of(name) for name in theirs}
        value = torch.cat([original[name] for name in theirs]) if len(theirs) > 1 else original[theirs[0]]
        if form == "row":
            value = value.reshape(value.shape[-2:]) if ours.endswith(("registers", "positions")) else value.reshape(-1)
        if ours in state and form != "unread" and not torch.equal(state[ours], value):
            if form == "row":
                raise CheckpointError(
                    f"{theirs[0]} differs from the encoder's, but model.shared_modality_embeddings is true\n"
                    "  set it to false"
                )
            raise CheckpointError(
                f"{theirs[0]} differs from the table of its inputs, but model.tied_logits is true\n"
                "  set model.tied_logits=false"
            )
        if form != "unread":
            state[ours] = value
    for name in sorted(unused & biases):
        if original[name].any():
            raise CheckpointError(
                f"{name} is not zero, but model.biases is false\n  pass the config that belongs to it"
            )
    unused -= biases
    if unused:
        raise CheckpointError(
            f"the model does not have {', '.join(sorted(unused)[:4])}{' and more' if len(unused) > 4 else ''}\n"
            "  it has another architecture: pass the config that belongs to it"
        )
    return state


def _bias_of(name: str) -> str:
    return f"{name.removesuffix('weight')}bias"


def _entries(config: FourMModelConfig) -> Iterator[tuple[str, tuple[str, ...], Form]]:
    """Yield our name of every tensor, the original tensors whose rows it concatenates, and the form of the original."""
    with torch.device("meta"):
        names = list(FourM(config).state_dict())
    for ours in names:
        part, _, rest = ours.partition(".")
        module, _, leaf = rest.rpartition(".")
        if part in ("encoder", "decoder"):
            layer, _, module = module.partition(".")
            theirs = f"{part}.{layer}.{(_ENCODER if part == 'encoder' else _DECODER)[module]}.{leaf}"
            # Our tensor has the rows of the gate first, then those of the other half.
            is_gated = config.gated and module == "feed_forward.up"
            yield ours, (theirs, theirs.replace("fc1", "fc3")) if is_gated else (theirs,), "same"
        elif part in ("inputs", "targets"):
            yield from _embedding_entries(ours, config)
        elif part in ("input_modality", "target_modality"):
            modality = next(m for m in config.modalities if m.name == rest)
            if modality.is_input and part == "input_modality":
                yield ours, (f"encoder_embeddings.{rest}.mod_emb",), "row"
            if modality.is_target and (config.shared_modality_embeddings or part == "target_modality"):
                yield ours, (f"decoder_embeddings.{rest}.mod_emb",), "row"
        elif part in ("mask_token", "registers"):
            yield ours, ("register_tokens" if part == "registers" else part,), "row"
        else:
            yield ours, (ours.replace("context", "decoder_proj_context"),), "same"


def _embedding_entries(ours: str, config: FourMModelConfig) -> Iterator[tuple[str, tuple[str, ...], Form]]:
    """Yield the entries of `inputs.NAME.PART` or `targets.NAME.PART`, as `_entries` does."""
    side, name, part = ours.split(".", 2)
    theirs = f"{'encoder' if side == 'inputs' else 'decoder'}_embeddings.{name}"
    if part == "positions":
        yield ours, (f"{theirs}.pos_emb",), "row"
    elif part in ("table", "head"):
        is_sequence = next(m.kind for m in config.modalities if m.name == name) == "sequence"
        if part == "table" or not is_sequence:
            yield ours, (f"{theirs}.token_emb.weight",), "same" if part == "table" else "unread"
        if part == "head" or (side == "targets" and config.tied_logits):
            yield ours, (f"{theirs}.to_logits.weight",), "same"
    else:
        vector = "emb_proj" if config.vector_bottleneck is None else "emb_proj.1"
        for our_part, their_part in (("patch", "proj"), ("bottleneck", "emb_proj.0"), ("vector", vector)):
            part = part.replace(our_part, their_part)
        yield ours, (f"{theirs}.{part}",), "same"
