"""Kind of a head and names of its classes in a `config.json` of transformers. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pretrainkit.errors import CheckpointError

Reads = Literal["examples", "words", "spans", "trees"]

HEADS: dict[Reads, str] = {
    "examples": "ForSequenceClassification",
    "words": "ForTokenClassification",
    "spans": "ForQuestionAnswering",
}
"""Suffixes of class names of transformers, in every model family, by the input of the head."""

HEAD_FILE = "classifier.safetensors"
"""File with weight and bias of a linear head beside an encoder that has no such class in transformers."""


def read_by_head(values: Mapping[str, Any]) -> Reads | None:
    """Return the input of the head of the model in a config.json, or None if the model has another head or none."""
    names = list(map(str, values.get("architectures") or ()))
    return next((reads for reads, end in HEADS.items() if any(name.endswith(end) for name in names)), None)


def require_head(values: Mapping[str, Any], folder: Path) -> Reads:
    """Return the input of the head of the model in the config.json of `folder`; if it has no name, that of a classifier
    of examples. Raises CheckpointError for another model."""
    reads, names = read_by_head(values), ", ".join(map(str, values.get("architectures") or ()))
    if reads is None and names:
        raise CheckpointError(
            f"{folder} is a {names}; the supported heads are {', '.join(HEADS.values())}\n"
            "  leave out --recipe to read its encoder alone"
        )
    return reads or "examples"


def class_settings(classes: Sequence[str]) -> dict[str, Any]:
    """Return the entries of a config.json for these classes; without classes, the head is a regression."""
    names = classes or ("LABEL_0",)
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification" if classes else "regression",
        # Without it, the CrossEncoder of sentence-transformers applies a sigmoid to a single output.
        **({} if classes else {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}),
    }


def class_names(values: Mapping[str, Any], num_outputs: int, *, has_encoder: bool = True) -> tuple[str, ...]:
    """Return the names of the classes in a config.json, in the order of their numbers; none for a single output, which
    is a regression. `has_encoder`: transformers can read the encoder alone. Raises CheckpointError for other outputs
    than one class or number per example, and for names that do not identify the outputs."""
    kind = values.get("problem_type")
    if kind == "multi_label_classification" or (kind == "regression" and num_outputs > 1):
        problem = f"config.json has the problem type {kind} with {num_outputs} outputs, which is not supported"
        raise CheckpointError(
            f"{problem}\n"
            "  use a model with one class or one number per example; or read only its encoder: init.recipe=huggingface"
            if has_encoder
            else f"{problem}\n  use a model with one class or one number per example, or the model it was trained from"
        )
    names = {int(number): str(name) for number, name in (values.get("id2label") or {}).items()}
    if max(names, default=0) >= num_outputs:
        raise CheckpointError(
            f"config.json has id2label with {len(names)} classes, but the classifier has {num_outputs} outputs\n"
            "  copy both files from one model"
        )
    classes = tuple(names.get(number, f"LABEL_{number}") for number in range(num_outputs)) if num_outputs > 1 else ()
    if len(set(classes)) < len(classes):
        raise CheckpointError(
            f"config.json has classes of the same name in id2label: {', '.join(classes)}\n"
            "  give each class its own name there"
        )
    return classes
