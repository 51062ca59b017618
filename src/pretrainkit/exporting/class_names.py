"""Kind of a head and names of its classes in a `config.json` of transformers. Imports no torch."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pretrainkit.errors import CheckpointError

Reads = Literal["examples", "words", "spans", "trees"]

HEADS: dict[Reads, str] = {
    "examples": "ForSequenceClassification",
    "words": "ForTokenClassification",
    "spans": "ForQuestionAnswering",
}
"""Suffixes of class names of transformers, in every model family, by the input of the head."""


def read_by_head(values: Mapping[str, Any]) -> Reads | None:
    """Return the input of the head of the model in a config.json, or None if the model has another head or none."""
    names = list(map(str, values.get("architectures") or ()))
    return next((reads for reads, end in HEADS.items() if any(name.endswith(end) for name in names)), None)


def class_settings(classes: Sequence[str]) -> dict[str, Any]:
    """Return the entries of a config.json for these classes; without classes, the head is a regression."""
    names = classes or ("LABEL_0",)
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification" if classes else "regression",
    }


def class_names(values: Mapping[str, Any], num_outputs: int) -> tuple[str, ...]:
    """Return the names of the classes in a config.json, in the order of their numbers; none for a single output, which
    is a regression. Raises CheckpointError for multi-label classification."""
    if values.get("problem_type") == "multi_label_classification":
        raise CheckpointError(
            "config.json has the problem type multi_label_classification, which is not supported\n"
            "  use a classifier with one class per example, or the encoder that this model was trained from"
        )
    names = values.get("id2label") or {}
    return tuple(str(names.get(str(n), f"LABEL_{n}")) for n in range(num_outputs)) if num_outputs > 1 else ()
