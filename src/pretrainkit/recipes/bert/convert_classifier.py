"""A fine-tuned encoder for Hugging Face's `BertForSequenceClassification`, `BertForTokenClassification`,
`BertForQuestionAnswering`, and those of ModernBERT."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.class_names import HEADS, Reads, class_names, class_settings, read_by_head
from pretrainkit.exporting.folder import new_folder
from pretrainkit.exporting.safetensors import read_tensors, write_tensors
from pretrainkit.nn.initialise import initialise_layer
from pretrainkit.recipes.bert.config import BertModelConfig, ModernModelConfig
from pretrainkit.recipes.bert.convert import (
    TOKENIZER_FILES,
    encoder_names,
    from_huggingface_config,
    in_full_names,
    split_tensors,
    to_huggingface_config,
)
from pretrainkit.recipes.exchange import TextClassifier
from pretrainkit.tokenizers.special import SpecialIds


def write_classifier(
    model: TextClassifier,
    config: BertModelConfig | ModernModelConfig,
    out: Path,
    *,
    tokenizer: Path | None,
    special: SpecialIds,
) -> None:
    """Write a folder that `AutoModelForSequenceClassification.from_pretrained` loads, or of words and spans
    `AutoModelForTokenClassification` and `AutoModelForQuestionAnswering`.

    Raises:
        InputError: `out` exists and is not an empty folder, or cannot be written.
    """
    with new_folder(out) as folder:
        write_tensors(folder / "model.safetensors", classifier_state(model, config))
        values = classifier_config(model, config, special)
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        for name in TOKENIZER_FILES:
            if tokenizer is not None and (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, folder / name)


def classifier_state(model: TextClassifier, config: BertModelConfig | ModernModelConfig) -> dict[str, Tensor]:
    """In Hugging Face's names."""
    state = model.encoder.state_dict()
    names = encoder_names(config) | (_pooler_names(config) if _has_pooler(config, model.reads) else {})
    found = {theirs: state[ours] for ours, theirs in names.items()}
    for ours, three in split_tensors(config).items():
        found |= zip(three, state[ours].chunk(3))
    head = _head_name(config, model.reads)
    return found | {f"{head}.{name}": tensor for name, tensor in model.head.state_dict().items()}


def _head_name(config: BertModelConfig | ModernModelConfig, reads: Reads) -> str:
    return "qa_outputs" if isinstance(config, BertModelConfig) and reads == "spans" else "classifier"


def _has_pooler(config: BertModelConfig | ModernModelConfig, reads: Reads) -> bool:
    """Only on whole examples BERT has its pooler; ModernBERT's goes over every token."""
    return reads == "examples" or not isinstance(config, BertModelConfig)


def _pooler_names(config: BertModelConfig | ModernModelConfig) -> dict[str, str]:
    """Our names of the pooler's tensors to Hugging Face's."""
    if isinstance(config, ModernModelConfig):
        return {"pooler.dense.weight": "head.dense.weight", "pooler.norm.weight": "head.norm.weight"}
    return {f"pooler.dense.{kind}": f"bert.pooler.dense.{kind}" for kind in ("weight", "bias")}


def classifier_config(
    model: TextClassifier, config: BertModelConfig | ModernModelConfig, special: SpecialIds
) -> dict[str, Any]:
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


@dataclass(frozen=True)
class PublishedClassifier:
    """What `write_classifier` wrote, or transformers."""

    config: BertModelConfig | ModernModelConfig
    encoder: dict[str, Tensor]
    head: dict[str, Tensor]
    classes: tuple[str, ...]
    """By number; empty where the head gives a number, or reads spans."""
    reads: Reads


def read_classifier(folder: Path) -> PublishedClassifier:
    """What `write_classifier` wrote, or transformers. BERT's pooler, which heads on words and spans lack, is drawn,
    always the same one.

    Raises:
        CheckpointError: A file is missing or broken, or the model is of another kind.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_bytes())
        config = from_huggingface_config(values)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}\n  copy it again") from None
    reads = read_by_head(values) or "examples"
    if reads == "examples" and values.get("classifier_pooling", "cls") != "cls":
        raise CheckpointError(
            f"{path} has classifier_pooling {values['classifier_pooling']!r}; this recipe reads 'cls' alone\n"
            "  read it as transformers computes it: init.recipe=huggingface"
        )
    state = in_full_names(read_tensors(folder), config)
    names = encoder_names(config) | (_pooler_names(config) if _has_pooler(config, reads) else {})
    split = split_tensors(config)
    head_name = _head_name(config, reads)
    heads = {part: f"{head_name}.{part}" for part in ("weight", "bias")}
    wanted = [*names.values(), *(name for three in split.values() for name in three), *heads.values()]
    if missing := [name for name in wanted if name not in state]:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} tensors of its classifier, such as {', '.join(missing[:3])}\n"
            "  copy it again"
        )
    encoder = {ours: state[theirs] for ours, theirs in names.items()}
    encoder |= {ours: torch.cat([state[name] for name in three]) for ours, three in split.items()}
    if not _has_pooler(config, reads):
        encoder |= _drawn_pooler(config)
    head = {part: state[name] for part, name in heads.items()}
    classes = () if reads == "spans" else class_names(values, len(head["weight"]))
    return PublishedClassifier(config, encoder, head, classes, reads)


def _drawn_pooler(config: BertModelConfig | ModernModelConfig) -> dict[str, Tensor]:
    with torch.random.fork_rng(), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        initialise_layer(dense, config.initializer_range)
    return {f"pooler.dense.{part}": tensor for part, tensor in dense.state_dict().items()}
