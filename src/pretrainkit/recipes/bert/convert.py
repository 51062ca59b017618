"""Convert weights to and from Hugging Face's `BertForPreTraining` and `ModernBertForMaskedLM`, and fine-tuned encoders
to and from `BertForSequenceClassification`, `BertForTokenClassification`, `BertForQuestionAnswering` and their
ModernBERT counterparts.

transformers is not imported: its folders consist of `config.json`, `model.safetensors` and tokenizer files.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.class_names import HEADS, Reads, class_names, class_settings, require_head
from pretrainkit.exporting.published_files import read_saved
from pretrainkit.exporting.transformers_folder import (
    BY_TRANSFORMERS,
    new_transformers_folder,
    only,
    our_activation,
    read_config,
    require_no_others,
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
from pretrainkit.tokenizers.folder import CONFIG_JSON, TOKENIZER_JSON, write_json
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.special import SpecialIds

logger = logging.getLogger(__name__)

State = Mapping[str, Tensor]

_KINDS = ("weight", "bias")
"""Names of the parameters of a linear layer or norm."""
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
"""Maps our settings to names in config.json. These are always in it; for others, transformers has our defaults."""
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
        # For transformers 4. transformers 5 stores them in rope_parameters.
        "global_rope_theta": "global_rope_theta",
        "local_rope_theta": "local_rope_theta",
    },
}

_DISENTANGLED = ("deberta", "deberta-v2")
_MODERN_BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
_MASKED_WORD_HEADS = {"bert": "cls.predictions.", "modern": "decoder."}
"""Prefixes of the tensors that only a masked-word model has."""
_OTHER_HEADS = {"classifier", "qa_outputs"}
"""Prefixes of the heads of fine-tuned models."""

DEFAULT_SPECIAL_IDS = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
"""Layout of our SentencePiece vocabularies, the same as Sabertooth's."""


def special_ids(tokenizer: Path | None) -> SpecialIds:
    """Return the special ids of a tokenizer's folder, or the default ones if it is None."""
    return DEFAULT_SPECIAL_IDS if tokenizer is None else load_tokenizer(tokenizer).special


def _same_tensors(config: AnyModelConfig, *, has_sentence_order: bool) -> dict[str, str]:
    """Map our names to Hugging Face's for all tensors that are equal in both (not BERT's queries, keys and values)."""
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
        if layer:  # the first layer has no attention norm, because the embeddings are normalized
            modules[f"{ours}.attention_norm"] = f"{theirs}.attn_norm"
    return {
        "masked_lm.decoder_bias": "decoder.bias",
        **{f"{ours}.weight": f"{theirs}.weight" for ours, theirs in modules.items()},
    }


def split_tensors(config: AnyModelConfig) -> dict[str, tuple[str, ...]]:
    """Map our fused tensors to Hugging Face's three: the rows of the queries, then those of the keys and values."""
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
    """Return our state dict in Hugging Face's names. ModernBERT has no sentence-order head, so ours is left out with a
    warning."""
    has_sentence_order = "sentence_order.classifier.weight" in state
    same, split = _same_tensors(config, has_sentence_order=has_sentence_order), split_tensors(config)
    left_out = sorted(set(state) - set(same) - set(split))
    if left_out:
        modules = ", ".join(sorted({name.split(".")[0] for name in left_out}))
        logger.warning("not exported, because ModernBertForMaskedLM has no such head: %s", modules)
    return to_theirs(state, same, split)


def from_huggingface_state(state: State, config: AnyModelConfig) -> dict[str, Tensor]:
    """Return Hugging Face's state dict in our names. If it has no masked-word head, one is initialized, with a warning.

    Raises CheckpointError if a tensor is missing or left over, or the output matrix is not the embedding table.
    """
    state = in_full_names(state, config)
    is_whole = any(name.startswith(_MASKED_WORD_HEADS[config.arch]) for name in state)
    # With a masked-word head and no sentence-order head, the pooler was not trained.
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
    """Return the state with the names of models with heads. An encoder that was saved alone has no prefix. Checkpoints
    from before 2020 call the parameters of layer norm gamma and beta."""
    prefix = {"bert": "bert.", "modern": "model."}[config.arch]
    if not any(name.startswith(prefix) for name in state):
        state = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    bias, tied = "cls.predictions.bias", "cls.predictions.decoder.bias"
    if tied in state and bias not in state:  # two names of one tensor
        state = {**state, bias: state[tied]}
    return {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in state.items()
    }


def _drawn_heads(config: AnyModelConfig, missing: list[str]) -> dict[str, Tensor]:
    """Initialize the missing tensors of the heads, always with the same values."""
    heads = [name for name in missing if name.startswith(("masked_lm.", "sentence_order.classifier."))]
    if not heads:
        return {}
    logger.warning(
        "the weights lack these heads, which are initialized at random: %s",
        ", ".join(sorted({name.rpartition(".")[0] for name in heads})),
    )
    with torch.random.fork_rng(), torch.device("cpu"):
        torch.manual_seed(0)
        state = fresh_heads(config).state_dict()
    return {name: state[name] for name in heads}


def _check_names(state: State, needed: list[str], config: AnyModelConfig) -> None:
    missing = [name for name in needed if name not in state]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(needed)} tensors are missing, such as {', '.join(missing[:3])}\n"
            "  give the weights of a BERT or ModernBERT, with or without heads"
        )
    names = _same_tensors(config, has_sentence_order=False)
    word_table, output_bias = names["embeddings.word.weight"], names["masked_lm.decoder_bias"]
    copies = {"cls.predictions.decoder.weight": word_table, "decoder.weight": word_table}
    copies["cls.predictions.decoder.bias"] = output_bias
    for name, original in copies.items():
        if name in state and original in state and not torch.equal(state[name], state[original]):
            raise CheckpointError(
                f"{name} differs from {original}\n  models with an untied output matrix are not supported"
            )
    # Old BertForMaskedLM checkpoints have a pooler without a classifier. It was never trained.
    ignored = {*copies, "bert.embeddings.position_ids", "bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    left_over = sorted(set(state) - set(needed) - ignored)
    others = {name.split(".")[0] for name in left_over} & _OTHER_HEADS
    if others:
        logger.warning("not read, because pretraining has no such head: %s", ", ".join(sorted(others)))
    require_no_others((name for name in left_over if name.split(".")[0] not in others), ())


def to_huggingface_config(
    config: AnyModelConfig, special: SpecialIds = DEFAULT_SPECIAL_IDS, *, has_sentence_order: bool = True
) -> dict[str, Any]:
    """Return the contents of `config.json`."""
    activation = _HF_ACTIVATIONS[config.activation]
    names = _SIZES | _SETTINGS[config.arch]
    roles = {"pad": special.pad, "bos": special.cls, "eos": special.sep, "cls": special.cls, "sep": special.sep}
    shared = {
        **{theirs: getattr(config, ours) for ours, theirs in names.items()},
        # Without a tokenizer, the ids may be beyond the vocabulary, which transformers does not load.
        **{
            f"{role}_token_id": index if config.vocab_size is None or index < config.vocab_size else None
            for role, index in {**roles, "mask": special.mask}.items()
        },
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
    """Return our config for the contents of a `config.json`. Raises CheckpointError if the model is of another kind or
    has a feature that ours lacks."""
    if values.get("model_type") in roberta.MODEL_TYPES:
        values = roberta.as_bert_config(values)
    kind = values.get("model_type")
    if kind in _DISENTANGLED:
        raise CheckpointError(
            f"config.json has model_type {kind!r}, whose attention adds relative positions to queries and keys "
            "(disentangled attention), which the bert recipe does not have\n"
            "  fine-tune it with the model code of transformers: --recipe huggingface"
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
    pairs = ("hidden_activation", "classifier_activation", "gelu"), ("embedding_dropout", "mlp_dropout", 0.0)
    for first, second, usual in pairs:
        if (value := values.get(first, usual)) != (other := values.get(second, usual)):
            raise CheckpointError(
                f"config.json has {first} {value!r} and {second} {other!r}, but this recipe has one setting for both\n"
                "  a dropout rate may be changed in config.json: the outputs of a trained model do not depend on it"
            )
    only(values, dict.fromkeys(_MODERN_BIASES, False), BY_TRANSFORMERS)
    only(values, {"sliding_window": values.get("local_attention", 128) // 2}, BY_TRANSFORMERS)
    if values.get("rope_scaling"):  # the name in transformers 4
        only(values["rope_scaling"], {"rope_type": "default", "type": "default"}, BY_TRANSFORMERS)
    if values.get("layer_types"):
        settings.setdefault("global_every", _period(values["layer_types"]))
    for name, layers in (("global_rope_theta", "full_attention"), ("local_rope_theta", "sliding_attention")):
        rope = (values.get("rope_parameters") or {}).get(layers) or {}
        if rope.get("rope_type", "default") != "default":
            raise CheckpointError(f"config.json has rope_type {rope['rope_type']!r}\n  only 'default' is supported")
        if "rope_theta" in rope:
            settings[name] = rope["rope_theta"]
    config = ModernModelConfig(**settings)
    # Our layers are global at regular intervals, but a list in config.json could have any pattern.
    only(values, {"layer_types": to_huggingface_config(config)["layer_types"]}, BY_TRANSFORMERS)
    return config


def _period(layer_types: list[str]) -> int:
    """Return the index of the second global layer, or the number of layers if only the first one is global."""
    global_layers = [layer for layer, kind in enumerate(layer_types) if kind == "full_attention"]
    return global_layers[1] if len(global_layers) > 1 else len(layer_types)


def write_huggingface(
    state: State,
    config: AnyModelConfig,
    out: Path,
    *,
    tokenizer: Path | None = None,
    special: SpecialIds = DEFAULT_SPECIAL_IDS,
) -> None:
    """Write a folder that `from_pretrained` loads; the files of the folder `tokenizer` are copied into it. Raises
    InputError if `out` exists and is not an empty folder, or cannot be written."""
    values = to_huggingface_config(config, special, has_sentence_order="sentence_order.classifier.weight" in state)
    write_folder(out, values, to_huggingface_state(state, config), tokenizer)


def write_folder(out: Path, values: Mapping[str, Any], state: State, tokenizer: Path | None) -> None:
    """Write config, weights under Hugging Face's names, and the files of a tokenizer's folder."""
    with new_transformers_folder(out, values, state) as folder:
        for name in TOKENIZER_FILES:
            if tokenizer is not None and (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, folder / name)
        if (folder / TOKENIZER_JSON).is_file() and not (folder / CONFIG_JSON).is_file():
            # The class that AutoTokenizer would choose for the model replaces steps of tokenizer.json.
            loaded = load_tokenizer(folder)
            roles = {f"{role}_token": loaded.pieces()[index] for role, index in loaded.special.as_dict().items()}
            write_json(folder / CONFIG_JSON, {"tokenizer_class": "PreTrainedTokenizerFast", **roles})


def read_huggingface(folder: Path) -> tuple[AnyModelConfig, dict[str, Tensor]]:
    """Read a folder that transformers or Sabertooth wrote (both have the same config.json); return the config and our
    state dict. Raises CheckpointError if a file is missing or broken, or the model is of another kind."""
    config, values = read_config(folder, from_huggingface_config)
    if values["model_type"] in roberta.MODEL_TYPES:
        return config, from_huggingface_state(roberta.as_bert_state(read_saved(folder), values), config)
    if isinstance(config, BertModelConfig) and not any(folder.glob("*.safetensors")):
        original = newest_original(folder)
        if original is not None:
            return config, read_original(original, config)
    state = read_saved(folder)
    if values.get("decoder_bias") is False and "head.dense.weight" in state:
        state["decoder.bias"] = torch.zeros(len(state["model.embeddings.tok_embeddings.weight"]))
    return config, from_huggingface_state(state, config)


def write_classifier(model: TextClassifier, config: AnyModelConfig, out: Path, *, tokenizer: Path | None) -> None:
    """Write a folder for `from_pretrained` of `AutoModelForSequenceClassification`, `AutoModelForTokenClassification`
    (heads on words) or `AutoModelForQuestionAnswering` (heads on spans). Raises InputError if `out` exists and is not
    an empty folder, or cannot be written."""
    state = model.encoder.state_dict() | {f"head.{name}": tensor for name, tensor in model.head.state_dict().items()}
    state = to_theirs(state, _classifier_names(config, model.reads), split_tensors(config))
    write_folder(out, _classifier_config(model, config, special_ids(tokenizer)), state, tokenizer)


def _has_pooler(config: AnyModelConfig, reads: Reads) -> bool:
    """True if the head reads pooled features. BERT pools only whole examples, ModernBERT every token."""
    return reads == "examples" or not isinstance(config, BertModelConfig)


def _classifier_names(config: AnyModelConfig, reads: Reads) -> dict[str, str]:
    """Map names like `_same_tensors`, for the encoder, its pooler if it has one, and the `head` on it."""
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
    """Return the contents of `config.json`."""
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
) -> tuple[AnyModelConfig, dict[str, Tensor], dict[str, Tensor], tuple[str, ...], Reads, float | None]:
    """Read a classifier that `write_classifier` or transformers wrote.

    Models with heads on words and spans lack BERT's pooler. It is initialized, always with the same values. Raises
    CheckpointError if a file is missing or broken, or the model is of another kind.

    Returns:
        The config, the encoder's tensors, the head's tensors, the class names by number (empty if the head predicts a
        number or reads spans), the kind of input that the head reads, and its dropout (None: that of the encoder).
    """
    config, values = read_config(folder, from_huggingface_config)
    reads = require_head(values, folder)
    if reads == "examples" and values.get("classifier_pooling", "cls") != "cls":
        raise CheckpointError(
            f"{folder}/config.json has classifier_pooling {values['classifier_pooling']!r}; this recipe supports only "
            "'cls'\n  use the model code of transformers: init.recipe=huggingface"
        )
    state = in_full_names(read_saved(folder), config)
    names, split = _classifier_names(config, reads), split_tensors(config)
    needed = their_names(names, split)
    if missing := [name for name in needed if name not in state]:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} tensors of its classifier, such as {', '.join(missing[:3])}\n"
            "  copy the folder again"
        )
    prefix = {"bert": "bert.", "modern": "model."}[config.arch]
    ignored = (f"{prefix}embeddings.position_ids", *(f"{prefix}pooler.dense.{kind}" for kind in _KINDS))
    require_no_others((name for name in state if name.startswith(prefix)), (*needed, *ignored))
    if others := sorted({name.partition(".")[0] for name in set(state).difference(needed, ignored)}):
        logger.warning("not read, because the classifier has no such layer: %s", ", ".join(others))
    encoder = to_ours(state, names, split)
    if not _has_pooler(config, reads):
        encoder |= _drawn_pooler(config)
    head = {kind: encoder.pop(f"head.{kind}") for kind in _KINDS}
    classes = () if reads == "spans" else class_names(values, len(head["weight"]))
    return config, encoder, head, classes, reads, values.get("classifier_dropout")


def _drawn_pooler(config: AnyModelConfig) -> dict[str, Tensor]:
    with torch.random.fork_rng(), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        initialise_layer(dense, config.initializer_range)
    return {f"pooler.dense.{part}": tensor for part, tensor in dense.state_dict().items()}
