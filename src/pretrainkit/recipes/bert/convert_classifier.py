"""A fine-tuned encoder for Hugging Face's `BertForSequenceClassification`, `BertForTokenClassification`,
`BertForQuestionAnswering`, and those of ModernBERT."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.class_names import HEADS, Reads, class_names, class_settings, read_by_head
from pretrainkit.exporting.safetensors import read_tensors
from pretrainkit.exporting.transformers_folder import read_config, their_names, to_ours, to_theirs
from pretrainkit.nn.initialise import initialise_layer
from pretrainkit.recipes.bert.config import AnyModelConfig, BertModelConfig, ModernModelConfig
from pretrainkit.recipes.bert.convert import (
    encoder_names,
    from_huggingface_config,
    in_full_names,
    special_ids,
    split_tensors,
    to_huggingface_config,
    write_folder,
)
from pretrainkit.recipes.exchange import TextClassifier
from pretrainkit.tokenizers.special import SpecialIds


def write_classifier(model: TextClassifier, config: AnyModelConfig, out: Path, *, tokenizer: Path | None) -> None:
    """Write a folder that `AutoModelForSequenceClassification.from_pretrained` loads, or of words and spans
    `AutoModelForTokenClassification` and `AutoModelForQuestionAnswering`.

    Raises:
        InputError: `out` exists and is not an empty folder, or cannot be written.
    """
    state = to_theirs(model.encoder.state_dict(), _encoder_names(config, model.reads), split_tensors(config))
    head = _head_name(config, model.reads)
    state |= {f"{head}.{name}": tensor for name, tensor in model.head.state_dict().items()}
    write_folder(out, _classifier_config(model, config, special_ids(tokenizer)), state, tokenizer)


def _head_name(config: AnyModelConfig, reads: Reads) -> str:
    return "qa_outputs" if isinstance(config, BertModelConfig) and reads == "spans" else "classifier"


def _has_pooler(config: AnyModelConfig, reads: Reads) -> bool:
    """Only on whole examples BERT has its pooler; ModernBERT's goes over every token."""
    return reads == "examples" or not isinstance(config, BertModelConfig)


def _encoder_names(config: AnyModelConfig, reads: Reads) -> dict[str, str]:
    """Our names of the encoder's tensors, its pooler's included where it has one, to Hugging Face's."""
    if not _has_pooler(config, reads):
        return encoder_names(config)
    if isinstance(config, ModernModelConfig):
        pooler = {"pooler.dense.weight": "head.dense.weight", "pooler.norm.weight": "head.norm.weight"}
    else:
        pooler = {f"pooler.dense.{kind}": f"bert.pooler.dense.{kind}" for kind in ("weight", "bias")}
    return encoder_names(config) | pooler


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
    """What `write_classifier` wrote, or transformers. BERT's pooler, which heads on words and spans lack, is drawn,
    always the same one.

    Returns:
        The config, the encoder's tensors, the head's, the classes by number (none where the head gives a number, or
        reads spans), and what the head reads.

    Raises:
        CheckpointError: A file is missing or broken, or the model is of another kind.
    """
    config, values = read_config(folder, from_huggingface_config)
    reads = read_by_head(values) or "examples"
    if reads == "examples" and values.get("classifier_pooling", "cls") != "cls":
        raise CheckpointError(
            f"{folder}/config.json has classifier_pooling {values['classifier_pooling']!r}; this recipe reads 'cls' "
            "alone\n  read it as transformers computes it: init.recipe=huggingface"
        )
    state = in_full_names(read_tensors(folder), config)
    names, split, head_name = _encoder_names(config, reads), split_tensors(config), _head_name(config, reads)
    heads = {part: f"{head_name}.{part}" for part in ("weight", "bias")}
    wanted = [*their_names(names, split), *heads.values()]
    if missing := [name for name in wanted if name not in state]:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} tensors of its classifier, such as {', '.join(missing[:3])}\n"
            "  copy it again"
        )
    encoder = to_ours(state, names, split)
    if not _has_pooler(config, reads):
        encoder |= _drawn_pooler(config)
    head = {part: state[name] for part, name in heads.items()}
    classes = () if reads == "spans" else class_names(values, len(head["weight"]))
    return config, encoder, head, classes, reads


def _drawn_pooler(config: AnyModelConfig) -> dict[str, Tensor]:
    with torch.random.fork_rng(), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        initialise_layer(dense, config.initializer_range)
    return {f"pooler.dense.{part}": tensor for part, tensor in dense.state_dict().items()}
