"""What a `config.json` of transformers says about a head: its kind, and the names of its classes. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pretrainkit.errors import CheckpointError

Reads = Literal["examples", "words", "spans"]

HEADS: dict[Reads, str] = {
    "examples": "ForSequenceClassification",
    "words": "ForTokenClassification",
    "spans": "ForQuestionAnswering",
}
"""By what a head reads, how transformers calls models with it in every family."""


def read_by_head(values: Mapping[str, Any]) -> Reads | None:
    """What the head reads of the model that a config.json names; None: it has none of these heads."""
    names = values.get("architectures") or ()
    return next((reads for reads, end in HEADS.items() if any(name.endswith(end) for name in names)), None)


def class_settings(classes: Sequence[str]) -> dict[str, Any]:
    """What a classifier's config.json says about its classes; none: it gives a number."""
    names = classes or ("LABEL_0",)
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification" if classes else "regression",
    }


def class_names(values: Mapping[str, Any], num_outputs: int) -> tuple[str, ...]:
    """The classes by number, from the contents of a config.json; none where its one output is a number. Raises
    CheckpointError where several classes may hold at once."""
    if values.get("problem_type") == "multi_label_classification":
        raise CheckpointError(
            "config.json says that several classes may hold at once (multi_label_classification)\n"
            "  give a classifier of one class per example, or the encoder it was trained from"
        )
    names = values.get("id2label") or {}
    return tuple(str(names.get(str(n), f"LABEL_{n}")) for n in range(num_outputs)) if num_outputs > 1 else ()
