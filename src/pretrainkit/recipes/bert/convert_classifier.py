"""A fine-tuned encoder for Hugging Face's `BertForSequenceClassification` and `ModernBertForSequenceClassification`."""

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from pretrainkit.exporting.folder import new_folder
from pretrainkit.exporting.safetensors import write_tensors
from pretrainkit.recipes.bert.config import BertModelConfig, ModernModelConfig
from pretrainkit.recipes.bert.convert import TOKENIZER_FILES, encoder_names, split_tensors, to_huggingface_config
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.recipe import TextClassifier


def write_classifier(
    model: TextClassifier,
    config: BertModelConfig | ModernModelConfig,
    out: Path,
    *,
    tokenizer: Path | None,
    special: SpecialIds,
) -> None:
    """Write a folder that `AutoModelForSequenceClassification.from_pretrained` loads.

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
    pooler = {"pooler.dense": "bert.pooler.dense"}
    if isinstance(config, ModernModelConfig):
        pooler = {"pooler.dense": "head.dense", "pooler.norm": "head.norm"}
    names = encoder_names(config)
    names |= {
        name: name.replace(ours, theirs) for ours, theirs in pooler.items() for name in state if name.startswith(ours)
    }
    found = {theirs: state[ours] for ours, theirs in names.items()}
    for ours, three in split_tensors(config).items():
        found |= zip(three, state[ours].chunk(3))
    return found | {f"classifier.{name}": tensor for name, tensor in model.head.state_dict().items()}


def classifier_config(
    model: TextClassifier, config: BertModelConfig | ModernModelConfig, special: SpecialIds
) -> dict[str, Any]:
    """The contents of `config.json`."""
    values = to_huggingface_config(config, special)
    is_bert = isinstance(config, BertModelConfig)
    values["architectures"] = [f"{'Bert' if is_bert else 'ModernBert'}ForSequenceClassification"]
    values["classifier_dropout"] = model.dropout
    names = dict(enumerate(model.classes or ("LABEL_0",)))
    values["id2label"] = {str(number): name for number, name in names.items()}
    values["label2id"] = {name: number for number, name in names.items()}
    values["problem_type"] = "single_label_classification" if model.classes else "regression"
    if not is_bert:
        values["classifier_pooling"] = "cls"
    return values
