"""From decoded texts to what metrics compare: `postprocess` of the named tasks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrainkit.eval.metrics import same_referent

NO_CLASS = -1
"""What a text is that names no class."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class ClassNumber:
    """Text to the number of the class of that name."""

    classes: Sequence[str]

    def __call__(self, decoded: str, *, example: Row | None = None, is_target: bool = False) -> int:
        return self.classes.index(decoded) if decoded in self.classes else NO_CLASS


def number(decoded: str, *, example: Row | None = None, is_target: bool = False) -> float:
    """Text to the number it spells; -1 where it spells none, or one that no score is, such as nan."""
    try:
        value = float(decoded)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


def judged_answer(decoded: str, *, example: Row, is_target: bool = False) -> dict[str, Any]:
    """MultiRC: whether an answer is right; of targets also which question it belongs to."""
    found: dict[str, Any] = {"value": ClassNumber(("False", "True"))(decoded)}
    return found | ({"group": (example["idx/paragraph"], example["idx/question"])} if is_target else {})


def entity(decoded: str, *, example: Row, is_target: bool = False) -> dict[str, Any]:
    """ReCoRD: an answer; of targets all that are right, and which query they belong to."""
    if not is_target:
        return {"value": decoded}
    return {"value": list(example["answers"]), "group": (example["idx/passage"], example["idx/query"])}


def all_answers(decoded: str, *, example: Row, is_target: bool = False) -> str | list[str]:
    """An answer, or all that are right."""
    return list(example["answers"]) if is_target else decoded


def span(decoded: str, *, example: Row, is_target: bool = False) -> str | dict[str, Any]:
    """A place in the text, or the text and all answers that are right."""
    return {"answers": list(example["answers"]), "context": example["context"]} if is_target else decoded


def referent(decoded: str, *, example: Row, is_target: bool = False) -> int:
    """Whether an answer means the noun of the example, or whether it should."""
    return int(example["label"]) if is_target else same_referent(decoded, example["targets_pretokenized"])
