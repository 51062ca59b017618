"""The same weights for Hugging Face's `BertForPreTraining` and `ModernBertForMaskedLM`, both ways; and a fine-tuned
encoder for `BertForSequenceClassification`, `BertForTokenClassification`, `BertForQuestionAnswering`, and those of
ModernBERT.

Nothing here imports transformers: its folders are `config.json`, `model.safetensors` and tokenizer files.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.class_names import HEADS, Reads, class_names, class_settings, read_by_head
from pretrainkit.exporting.safetensors import read_tensors
from pretrainkit.exporting.transformers_folder import (
    new_transformers_folder,
    only,
    our_activation,
    read_config,
    their_names,
    to_ours,
    to_theirs,
)
from pretrainkit.nn.initialise import initialise_layer
from pretrainkit.recipes.bert import roberta
from pretrainkit.recipes.bert.config import Activation, AnyModelConfig, BertModelConfig, ModernModelConfig
from pretrainkit.recipes.bert.model import fresh_heads, is_local
from pretrainkit.recipes.bert.original import newest_original, read_original
from pretrainkit.recipes.exchange import TextClassifier
from pretrainkit.tokenizers.special import SpecialIds

logger = logging.getLogger(__name__)

State = Mapping[str, Tensor]

_KINDS = ("weight", "bias")
"""Of the parameters of a linear layer or norm."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "sentencepiece.model")

_HF_ACTIVATIONS: dict[Activation, str] = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "swish": "silu"}
_OUR_ACTIVATIONS: dict[str, Activation] = {theirs: ours for ours, theirs in _HF_ACTIVATIONS.items()}
_OUR_ACTIVATIONS |= {"gelu_pytorch_tanh": "gelu_tanh", "swish": "swish"}

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
"""Our settings to theirs. These are in every config.json; where others are missing, transformers has our defaults."""
_SETTINGS = {
    "bert": {
        "max_positions": "max_position_embeddings",
        "initializer_range": "initializer_range",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "type_vocab_size": "type_vocab_size",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    "modern": {
        "max_positions": "max_position_embeddings",
        "initializer_range": "initializer_range",
        "hidden_dropout": "embedding_dropout",
        "attention_dropout": "attention_dropout",
        "layer_norm_epsilon": "norm_eps",
        "local_window": "local_attention",
        "global_every": "global_attn_every_n_layers",
        # For transformers 4; transformers 5 has them in rope_parameters.
        "global_rope_theta": "global_rope_theta",
        "local_rope_theta": "local_rope_theta",
    },
}

_DISENTANGLED = ("deberta", "deberta-v2")
_MODERN_BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
_MASKED_WORD_HEADS = {"bert": "cls.predictions.", "modern": "decoder."}
"""What names of tensors begin with that only a model of masked words has."""
_OTHER_HEADS = {"classifier", "qa_outputs"}
"""Of models that were fine-tuned."""

DEFAULT_SPECIAL_IDS = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
"""The layout of our SentencePiece vocabularies, which is Sabertooth's."""


def special_ids(tokenizer: Path | None) -> SpecialIds:
    """Of a tokenizer's folder; the usual ones where there is none."""
    from pretrainkit.tokenizers.load import load_tokenizer

    return DEFAULT_SPECIAL_IDS if tokenizer is None else load_tokenizer(tokenizer).special


def _same_tensors(config: AnyModelConfig, *, has_sentence_order: bool) -> dict[str, str]:
    """Our name to Hugging Face's, for all tensors that are equal in both (not BERT's queries, keys and values)."""
    if isinstance(config, ModernModelConfig):
        return _modern_tensors(config)
    modules = {
        "embeddings.norm": "bert.embeddings.LayerNorm",
        "masked_lm.dense": "cls.predictions.transform.dense",
        "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    }
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}", f"bert.encoder.layer.{layer}"
        modules |= {
            f"{ours}.attention.out": f"{theirs}.attention.output.dense",
            f"{ours}.attention_norm": f"{theirs}.attention.output.LayerNorm",
            f"{ours}.feed_forward.up": f"{theirs}.intermediate.dense",
            f"{ours}.feed_forward.down": f"{theirs}.output.dense",
            f"{ours}.feed_forward_norm": f"{theirs}.output.LayerNorm",
        }
    if has_sentence_order:
        modules |= {"sentence_order.pooler": "bert.pooler.dense", "sentence_order.classifier": "cls.seq_relationship"}
    return {
        "embeddings.word.weight": "bert.embeddings.word_embeddings.weight",
        "embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
        "embeddings.token_type.weight": "bert.embeddings.token_type_embeddings.weight",
        "masked_lm.decoder_bias": "cls.predictions.bias",
        **{f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in _KINDS},
    }


def _modern_tensors(config: ModernModelConfig) -> dict[str, str]:
    modules = {
        "embeddings.word": "model.embeddings.tok_embeddings",
        "embeddings.norm": "model.embeddings.norm",
        "final_norm": "model.final_norm",
        "masked_lm.dense": "head.dense",
        "masked_lm.norm": "head.norm",
    }
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        modules |= {
            f"{ours}.attention.qkv": f"{theirs}.attn.Wqkv",
            f"{ours}.attention.out": f"{theirs}.attn.Wo",
            f"{ours}.feed_forward_norm": f"{theirs}.mlp_norm",
            f"{ours}.feed_forward.up": f"{theirs}.mlp.Wi",
            f"{ours}.feed_forward.down": f"{theirs}.mlp.Wo",
        }
        if layer:  # the first layer has no norm of its own: the embeddings are normalised
            modules[f"{ours}.attention_norm"] = f"{theirs}.attn_norm"
    return {
        "masked_lm.decoder_bias": "decoder.bias",
        **{f"{ours}.weight": f"{theirs}.weight" for ours, theirs in modules.items()},
    }


def split_tensors(config: AnyModelConfig) -> dict[str, tuple[str, ...]]:
    """Our fused tensors to Hugging Face's three: queries, keys, values one below the other."""
    if isinstance(config, ModernModelConfig):
        return {}
    return {
        f"layers.{layer}.attention.qkv.{kind}": tuple(
            f"bert.encoder.layer.{layer}.attention.self.{part}.{kind}" for part in ("query", "key", "value")
        )
        for layer in range(config.num_layers)
        for kind in _KINDS
    }


def to_huggingface_state(state: State, config: AnyModelConfig) -> dict[str, Tensor]:
    """Our state dict in Hugging Face's names. ModernBERT's has no sentence-order head: left out, with a warning."""
    has_sentence_order = "sentence_order.classifier.weight" in state
    same, split = _same_tensors(config, has_sentence_order=has_sentence_order), split_tensors(config)
    left_out = sorted(set(state) - set(same) - set(split))
    if left_out:
        modules = ", ".join(sorted({name.split(".")[0] for name in left_out}))
        logger.warning("not exported, because ModernBertForMaskedLM has no place for it: %s", modules)
    return to_theirs(state, same, split)


def from_huggingface_state(state: State, config: AnyModelConfig) -> dict[str, Tensor]:
    """Return Hugging Face's state dict in our names. A masked-word head that it lacks is drawn, with a warning. Raises
    CheckpointError where a tensor is missing, one is left over, or the output matrix is not the embedding table."""
    state = in_full_names(state, config)
    is_whole = any(name.startswith(_MASKED_WORD_HEADS[config.arch]) for name in state)
    # Beside a masked-word head alone, nothing was trained through the pooler.
    has_pooler = config.arch == "bert" and not is_whole and "bert.pooler.dense.weight" in state
    has_sentence_order = "cls.seq_relationship.weight" in state or has_pooler
    same = _same_tensors(config, has_sentence_order=has_sentence_order)
    missing = [ours for ours, theirs in same.items() if theirs not in state]
    drawn = {} if is_whole else _drawn_heads(config, missing)
    same = {ours: theirs for ours, theirs in same.items() if ours not in drawn}
    split = split_tensors(config)
    _check_names(state, their_names(same, split), config)
    return to_ours(state, same, split) | drawn


def in_full_names(state: State, config: AnyModelConfig) -> dict[str, Tensor]:
    """As models with heads are saved: an encoder that was saved alone has no prefix. Checkpoints from before 2020 call
    the parameters of layer norm gamma and beta."""
    prefix = {"bert": "bert.", "modern": "model."}[config.arch]
    if not any(name.startswith(prefix) for name in state):
        state = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    return {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in state.items()
    }


def _drawn_heads(config: AnyModelConfig, missing: list[str]) -> dict[str, Tensor]:
    """Values for what is missing of the heads, always the same ones."""
    heads = [name for name in missing if name.startswith(("masked_lm.", "sentence_order.classifier."))]
    if not heads:
        return {}
    logger.warning(
        "heads that the weights lack are drawn anew: %s", ", ".join(sorted({name.rpartition(".")[0] for name in heads}))
    )
    with torch.random.fork_rng(), torch.device("cpu"):
        torch.manual_seed(0)
        state = fresh_heads(config).state_dict()
    return {name: state[name] for name in heads}


def _check_names(state: State, wanted: list[str], config: AnyModelConfig) -> None:
    missing = [name for name in wanted if name not in state]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(wanted)} tensors are missing, such as {', '.join(missing[:3])}\n"
            "  what is read is a BERT or ModernBERT, with or without heads"
        )
    names = _same_tensors(config, has_sentence_order=False)
    word_table, output_bias = names["embeddings.word.weight"], names["masked_lm.decoder_bias"]
    copies = {"cls.predictions.decoder.weight": word_table, "decoder.weight": word_table}
    copies["cls.predictions.decoder.bias"] = output_bias
    for name, original in copies.items():
        if name in state and original in state and not torch.equal(state[name], state[original]):
            raise CheckpointError(
                f"{name} differs from {original}\n  models with an output matrix of their own are not read"
            )
    # A pooler without classifier is left behind by BertForMaskedLM checkpoints of old; nothing was trained through it.
    ignored = {*copies, "bert.embeddings.position_ids", "bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    left_over = sorted(set(state) - set(wanted) - ignored)
    others = {name.split(".")[0] for name in left_over} & _OTHER_HEADS
    if others:
        logger.warning("not read, because pretraining has no place for it: %s", ", ".join(sorted(others)))
    left_over = [name for name in left_over if name.split(".")[0] not in others]
    if left_over:
        raise CheckpointError(
            f"{len(left_over)} tensors have no place in this model, such as {', '.join(left_over[:3])}\n"
            "  the weights belong to another architecture than config.json says"
        )


def to_huggingface_config(
    config: AnyModelConfig, special: SpecialIds = DEFAULT_SPECIAL_IDS, *, has_sentence_order: bool = True
) -> dict[str, Any]:
    """The contents of `config.json`."""
    activation = _HF_ACTIVATIONS[config.activation]
    names = _SIZES | _SETTINGS[config.arch]
    shared = {
        **{theirs: getattr(config, ours) for ours, theirs in names.items()},
        "pad_token_id": special.pad,
        "bos_token_id": special.cls,
        "eos_token_id": special.sep,
        "cls_token_id": special.cls,
        "sep_token_id": special.sep,
        "mask_token_id": special.mask,
        "tie_word_embeddings": True,
    }
    if isinstance(config, BertModelConfig):
        return {
            "model_type": "bert",
            "architectures": ["BertForPreTraining" if has_sentence_order else "BertForMaskedLM"],
            **shared,
            "hidden_act": activation,
            "position_embedding_type": "absolute",
        }
    kinds = ["sliding_attention" if is_local(config, layer) else "full_attention" for layer in range(config.num_layers)]
    return {
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM"],
        **shared,
        "hidden_activation": activation,
        "classifier_activation": activation,
        "mlp_dropout": config.hidden_dropout,
        **dict.fromkeys(_MODERN_BIASES, False),
        "decoder_bias": True,
        "layer_types": kinds,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.global_rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
    }


def from_huggingface_config(values: Mapping[str, Any]) -> AnyModelConfig:
    """Return our config for the contents of a `config.json`. Raises CheckpointError where the model is of another kind,
    or has a feature ours lacks."""
    if values.get("model_type") in roberta.MODEL_TYPES:
        values = roberta.as_bert_config(values)
    kind = values.get("model_type")
    if kind in _DISENTANGLED:
        raise CheckpointError(
            f"config.json has model_type {kind!r}, whose attention adds relative positions to queries and keys "
            "(disentangled attention): the bert recipe has no such attention\n"
            "  fine-tune it as transformers computes it, with --recipe huggingface"
        )
    if kind not in ("bert", "modernbert"):
        raise CheckpointError(
            f"config.json has model_type {kind!r}\n"
            f"  the bert recipe reads {', '.join(('bert', 'modernbert', *roberta.MODEL_TYPES))}"
        )
    arch: Literal["bert", "modern"] = "bert" if kind == "bert" else "modern"
    activation = values.get("hidden_act" if arch == "bert" else "hidden_activation", "gelu")
    settings = {ours: values[theirs] for ours, theirs in _SIZES.items()}
    settings |= {ours: values[theirs] for ours, theirs in _SETTINGS[arch].items() if theirs in values}
    settings["activation"] = our_activation(activation, _OUR_ACTIVATIONS)
    if arch == "bert":
        only(values, {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False})
        return BertModelConfig(**settings)
    only(values, {"classifier_activation": activation, "mlp_dropout": values.get("embedding_dropout", 0.0)})
    only(values, dict.fromkeys(_MODERN_BIASES, False))
    if values.get("layer_types"):
        settings.setdefault("global_every", _period(values["layer_types"]))
    for name, layers in (("global_rope_theta", "full_attention"), ("local_rope_theta", "sliding_attention")):
        rope = (values.get("rope_parameters") or {}).get(layers) or {}
        if rope.get("rope_type", "default") != "default":
            raise CheckpointError(f"config.json has rope_type {rope['rope_type']!r}\n  only 'default' is known here")
        if "rope_theta" in rope:
            settings[name] = rope["rope_theta"]
    config = ModernModelConfig(**settings)
    # The layers must be local and global by turns as ours are, which a list could say otherwise.
    only(values, {"layer_types": to_huggingface_config(config)["layer_types"]})
    return config


def _period(layer_types: list[str]) -> int:
    """Distance of the first two global layers; as many as there are layers when only the first one is global."""
    found = [layer for layer, kind in enumerate(layer_types) if kind == "full_attention"]
    return found[1] if len(found) > 1 else len(layer_types)


def write_huggingface(
    state: State,
    config: AnyModelConfig,
    out: Path,
    *,
    tokenizer: Path | None = None,
    special: SpecialIds = DEFAULT_SPECIAL_IDS,
) -> None:
    """Write a folder that `from_pretrained` loads; `tokenizer` is a folder whose files are copied into it. Raises
    InputError where `out` exists and is not an empty folder, or cannot be written."""
    values = to_huggingface_config(config, special, has_sentence_order="sentence_order.classifier.weight" in state)
    write_folder(out, values, to_huggingface_state(state, config), tokenizer)


def write_folder(out: Path, values: Mapping[str, Any], state: State, tokenizer: Path | None) -> None:
    """Write config, weights under Hugging Face's names, and the files of a tokenizer's folder."""
    with new_transformers_folder(out, values, state) as folder:
        for name in TOKENIZER_FILES:
            if tokenizer is not None and (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, folder / name)


def read_huggingface(folder: Path) -> tuple[AnyModelConfig, dict[str, Tensor]]:
    """Read the config and our state dict of a folder that transformers wrote, or Sabertooth, whose config.json is
    alike. Raises CheckpointError where a file is missing or broken, or the model is of another kind."""
    config, values = read_config(folder, from_huggingface_config)
    if values["model_type"] in roberta.MODEL_TYPES:
        return config, from_huggingface_state(roberta.as_bert_state(read_tensors(folder), values), config)
    if isinstance(config, BertModelConfig) and not any(folder.glob("*.safetensors")):
        original = newest_original(folder)
        if original is not None:
            return config, read_original(original, config)
    return config, from_huggingface_state(read_tensors(folder), config)


def write_classifier(model: TextClassifier, config: AnyModelConfig, out: Path, *, tokenizer: Path | None) -> None:
    """Write a folder that `AutoModelForSequenceClassification.from_pretrained` loads, or of words and spans
    `AutoModelForTokenClassification` and `AutoModelForQuestionAnswering`. Raises InputError where `out` exists and is
    not an empty folder, or cannot be written."""
    state = model.encoder.state_dict() | {f"head.{name}": tensor for name, tensor in model.head.state_dict().items()}
    state = to_theirs(state, _classifier_names(config, model.reads), split_tensors(config))
    write_folder(out, _classifier_config(model, config, special_ids(tokenizer)), state, tokenizer)


def _has_pooler(config: AnyModelConfig, reads: Reads) -> bool:
    """Only on whole examples BERT has its pooler; ModernBERT's goes over every token."""
    return reads == "examples" or not isinstance(config, BertModelConfig)


def _classifier_names(config: AnyModelConfig, reads: Reads) -> dict[str, str]:
    """As `_same_tensors`, of the encoder alone, its pooler included where it has one, and of the `head` on it."""
    same = _same_tensors(config, has_sentence_order=False)
    names = {ours: theirs for ours, theirs in same.items() if not ours.startswith("masked_lm.")}
    is_bert = isinstance(config, BertModelConfig)
    modules = {"head": "qa_outputs" if is_bert and reads == "spans" else "classifier"}
    if not is_bert:
        names |= {"pooler.dense.weight": "head.dense.weight", "pooler.norm.weight": "head.norm.weight"}
    elif _has_pooler(config, reads):
        modules["pooler.dense"] = "bert.pooler.dense"
    return names | {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in _KINDS}


def _classifier_config(model: TextClassifier, config: AnyModelConfig, special: SpecialIds) -> dict[str, Any]:
    """The contents of `config.json`."""
    values = to_huggingface_config(config, special)
    is_bert = isinstance(config, BertModelConfig)
    values["architectures"] = [f"{'Bert' if is_bert else 'ModernBert'}{HEADS[model.reads]}"]
    values["classifier_dropout"] = model.dropout
    if model.reads != "spans":
        values |= class_settings(model.classes)
    if not is_bert:
        values["classifier_pooling"] = "cls"
    return values


def read_classifier(
    folder: Path,
) -> tuple[AnyModelConfig, dict[str, Tensor], dict[str, Tensor], tuple[str, ...], Reads]:
    """Read what `write_classifier` wrote, or transformers. BERT's pooler, which heads on words and spans lack, is
    drawn, always the same one. Raises CheckpointError where a file is missing or broken, or the model is of another
    kind.

    Returns:
        The config, the encoder's tensors, the head's, the classes by number (none where the head gives a number, or
        reads spans), and what the head reads.
    """
    config, values = read_config(folder, from_huggingface_config)
    reads = read_by_head(values) or "examples"
    if reads == "examples" and values.get("classifier_pooling", "cls") != "cls":
        raise CheckpointError(
            f"{folder}/config.json has classifier_pooling {values['classifier_pooling']!r}; this recipe reads 'cls' "
            "alone\n  read it as transformers computes it: init.recipe=huggingface"
        )
    state = in_full_names(read_tensors(folder), config)
    names, split = _classifier_names(config, reads), split_tensors(config)
    wanted = their_names(names, split)
    if missing := [name for name in wanted if name not in state]:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} tensors of its classifier, such as {', '.join(missing[:3])}\n"
            "  copy it again"
        )
    encoder = to_ours(state, names, split)
    if not _has_pooler(config, reads):
        encoder |= _drawn_pooler(config)
    head = {kind: encoder.pop(f"head.{kind}") for kind in _KINDS}
    classes = () if reads == "spans" else class_names(values, len(head["weight"]))
    return config, encoder, head, classes, reads


def _drawn_pooler(config: AnyModelConfig) -> dict[str, Tensor]:
    with torch.random.fork_rng(), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        initialise_layer(dense, config.initializer_range)
    return {f"pooler.dense.{part}": tensor for part, tensor in dense.state_dict().items()}
