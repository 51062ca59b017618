"""Labelled rows as text: `rte sentence1: A sentence2: B` and `entailment`; and the parts of all named tasks: features,
common steps, and `postprocess`, which converts decoded texts for metrics.

Source: appendix D of Raffel et al. 2020, https://arxiv.org/abs/1910.10683, and the released `t5`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.eval.metrics import accuracy, same_referent
from pretrainkit.tasks.preprocessors import append_eos_after_trim, tokenize
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.tasks.steps import CacheMarker, Example, Step
from pretrainkit.tasks.supply import RunVocabulary
from pretrainkit.tasks.task import Feature, Task

Row = Mapping[str, Any]
FEATURES = {"inputs": Feature(RunVocabulary(), required=False), "targets": Feature(RunVocabulary())}
"""Features of all named tasks except language models."""
Metrics = Sequence[Callable[..., Mapping[str, Any]]]
Postprocess = Callable[..., Any]
NO_CLASS = -1
"""Class number of a text that is not the name of a class."""
UNKNOWN = "<unk>"
"""Target of a row without a label, such as in test sets."""
INDEX = ("idx", "index", "id")
"""Columns that number rows."""
LABEL = ("label", "gold_label", "is_duplicate", "Quality")
"""Columns that hold the class; the first one in a row is used."""
_SCORE = ("label", "score")
_UNLABELLED = -1
_BOLD = re.compile("</?b>")
_STEPS_PER_POINT = np.float32(5)


@dataclass(frozen=True)
class LabelledFields:
    """Make `inputs` from named fields, `targets` from the class's name, and `idx` if rows are numbered."""

    benchmark: str
    """First word of the inputs."""
    fields: Mapping[str, Sequence[str]]
    """Fields in the order of the text, with the columns that may contain them."""
    classes: Sequence[str]
    """Names of the classes by number."""

    def __call__(self, row: Row) -> Example:
        label = class_of(row, self.classes)
        example: Example = {
            "inputs": f"{self.benchmark} {_joined(row, self.fields)}",
            "targets": UNKNOWN if label == _UNLABELLED else self.classes[label],
        }
        return example | _numbered(row)


def similarity(row: Row) -> Example:
    """Make an example of STS-B, with the score rounded to 0.2 as text. 3.25 becomes 3.2 and 4.9 becomes 4.8: halves are
    rounded to even, in float32."""
    value = _first(row, _SCORE)
    score = np.float32(_UNLABELLED if value is None else value)
    rounded = np.rint(score * _STEPS_PER_POINT) / _STEPS_PER_POINT
    texts = _joined(row, {"sentence1": ("sentence1",), "sentence2": ("sentence2",)})
    return {"inputs": f"stsb {texts}", "targets": f"{rounded:.1f}"} | _numbered(row)


def multirc_answers(row: Row) -> Iterator[Example]:
    """Yield a row for every answer of MultiRC, from a passage with all of its questions (the distributed form) or from
    one answer (the form of the hub)."""
    if "passage" not in row:
        yield dict(row)
        return
    for question in row["passage"]["questions"]:
        for answer in question["answers"]:
            yield {
                "paragraph": row["passage"]["text"],
                "question": question["question"],
                "answer": answer["text"],
                "label": answer.get("label"),
                "idx": {"paragraph": row["idx"], "question": question["idx"], "answer": answer["idx"]},
            }


def multirc(row: Row) -> Example:
    """Make an example of one answer of MultiRC, without markup, with the paragraph and question numbers for the
    metric."""
    fields = {name: (name,) for name in ("question", "answer", "paragraph")}
    example = LabelledFields("multirc", fields, ("False", "True"))(row)
    numbers = example.pop("idx")
    example["inputs"] = _BOLD.sub("", example["inputs"].replace("<br>", " "))
    return example | {f"idx/{part}": numbers[part] for part in ("paragraph", "question", "answer")}


def class_of(row: Row, classes: Sequence[str]) -> int:
    """Return the number of a row's class, from its number, its name, or a bool; -1 without a label. Raises DataError if
    the label is not one of the classes."""
    value = _first(row, LABEL)
    if value is None or value in (-1, "-1", "", "-"):
        return _UNLABELLED
    if isinstance(value, str) and value in classes:
        return classes.index(value)
    is_number = isinstance(value, (int, float)) or str(value).isdecimal()
    if is_number and 0 <= int(value) < len(classes):
        return int(value)
    raise DataError(
        f"the label {value!r} is not one of the classes {', '.join(classes)}\n"
        f"  write one of them, or its number from 0, into the column {' or '.join(LABEL)}"
    )


def _first(row: Row, columns: Sequence[str]) -> Any:
    return next((row[column] for column in columns if column in row), None)


def _joined(row: Row, fields: Mapping[str, Sequence[str]]) -> str:
    texts = {name: _first(row, columns) for name, columns in fields.items()}
    if missing := [name for name, text in texts.items() if text is None]:
        raise DataError(f"a row has no {', '.join(missing)}\n  its columns are: {', '.join(map(str, row))}")
    return " ".join(f"{name}: {text}" for name, text in texts.items())


def _numbered(row: Row) -> Example:
    number = _first(row, INDEX)
    return {} if number is None else {"idx": int(number) if str(number).isdecimal() else number}


@dataclass(frozen=True)
class ClassNumber:
    """Convert the name of a class to its number."""

    classes: Sequence[str]

    def __call__(self, decoded: str, *, example: Row | None = None, is_target: bool = False) -> int:
        return self.classes.index(decoded) if decoded in self.classes else NO_CLASS


def number(decoded: str, *, example: Row | None = None, is_target: bool = False) -> float:
    """Convert a text to its number; -1 if it is not a finite number."""
    try:
        value = float(decoded)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


def judged_answer(decoded: str, *, example: Row, is_target: bool = False) -> dict[str, Any]:
    """Return 1 for a right answer of MultiRC, 0 for a wrong one, else -1; for targets also the question's number."""
    judged: dict[str, Any] = {"value": ClassNumber(("False", "True"))(decoded)}
    return judged | ({"group": (example["idx/paragraph"], example["idx/question"])} if is_target else {})


def entity(decoded: str, *, example: Row, is_target: bool = False) -> dict[str, Any]:
    """Return an answer of ReCoRD; for targets all right answers and the query's number."""
    if not is_target:
        return {"value": decoded}
    return {"value": list(example["answers"]), "group": (example["idx/passage"], example["idx/query"])}


def all_answers(decoded: str, *, example: Row, is_target: bool = False) -> str | list[str]:
    """Return an answer; for targets all right answers."""
    return list(example["answers"]) if is_target else decoded


def span(decoded: str, *, example: Row, is_target: bool = False) -> str | dict[str, Any]:
    """Return a span as text; for targets the context and all right answers."""
    return {"answers": list(example["answers"]), "context": example["context"]} if is_target else decoded


def referent(decoded: str, *, example: Row, is_target: bool = False) -> int:
    """Return 1 if an answer refers to the noun of the example, otherwise 0; for targets the label."""
    return int(example["label"]) if is_target else same_referent(decoded, example["targets_pretokenized"])


def class_task(
    name: str,
    source: TaskSource,
    benchmark: str,
    fields: Sequence[str],
    classes: Sequence[str],
    metrics: Metrics = (accuracy,),
    columns: Mapping[str, str] | None = None,
) -> Task:
    """Return a task of rows of `fields` with one of `classes`. `columns`: other names of the fields' columns."""
    others = columns or {}
    places = {name: (name, others[name]) if name in others else (name,) for name in fields}
    step = LabelledFields(benchmark, places, tuple(classes))
    return text_task(name, source, step, postprocess=ClassNumber(tuple(classes)), metrics=metrics)


def text_task(
    name: str,
    source: TaskSource,
    *steps: Step,
    postprocess: Postprocess | None = None,
    metrics: Metrics = (),
    after: Sequence[Step] = (),
) -> Task:
    """Return a task whose `steps` make the texts `inputs` and `targets` from rows; the task then tokenizes them and
    appends EOS. `after`: steps after the cache marker, before EOS is appended."""
    return Task(
        name,
        source,
        FEATURES,
        (*steps, tokenize(), CacheMarker(), *after, append_eos_after_trim),
        postprocess=postprocess,
        metrics=metrics,
    )
