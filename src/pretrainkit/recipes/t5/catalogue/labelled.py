"""Rows of fields with a label, as text: `rte sentence1: A sentence2: B` and `entailment`; and what all named tasks are
made of: their features, the steps around their own, and `postprocess`, from decoded texts to what metrics compare.

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
"""Of all of them, but for those of language models alone."""
Metrics = Sequence[Callable[..., Mapping[str, Any]]]
Postprocess = Callable[..., Any]
NO_CLASS = -1
"""What a text is that names no class."""
UNKNOWN = "<unk>"
"""Target of a row without a label, as those of test sets are."""
INDEX = ("idx", "index", "id")
"""Columns that number rows."""
LABEL = ("label", "gold_label", "is_duplicate", "Quality")
"""Columns that hold the class; the first that a row has counts."""
_SCORE = ("label", "score")
_UNLABELLED = -1
_BOLD = re.compile("</?b>")
_STEPS_PER_POINT = np.float32(5)


@dataclass(frozen=True)
class LabelledFields:
    """`inputs` of named fields, `targets` of the class's name, and `idx` where rows are numbered."""

    benchmark: str
    """The first word."""
    fields: Mapping[str, Sequence[str]]
    """Field, in the order of the text, to the columns that may hold it."""
    classes: Sequence[str]
    """Names of the classes by number."""

    def __call__(self, row: Row) -> Example:
        label = class_of(row, self.classes)
        found: Example = {
            "inputs": f"{self.benchmark} {_joined(row, self.fields)}",
            "targets": UNKNOWN if label == _UNLABELLED else self.classes[label],
        }
        return found | _numbered(row)


def similarity(row: Row) -> Example:
    """STS-B: the score to the nearest 0.2 as text. 3.25 becomes 3.2 and 4.9 becomes 4.8: halves go to the even side,
    in float32."""
    value = _first(row, _SCORE)
    score = np.float32(_UNLABELLED if value is None else value)
    rounded = np.rint(score * _STEPS_PER_POINT) / _STEPS_PER_POINT
    texts = _joined(row, {"sentence1": ("sentence1",), "sentence2": ("sentence2",)})
    return {"inputs": f"stsb {texts}", "targets": f"{rounded:.1f}"} | _numbered(row)


def multirc_answers(row: Row) -> Iterator[Example]:
    """A row for every answer of MultiRC, from a passage with all of its questions, as it is distributed, or from one
    answer, as the hub has it."""
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
    """One answer of MultiRC, without markup, with the numbers of paragraph and question for the metric."""
    fields = {name: (name,) for name in ("question", "answer", "paragraph")}
    found = LabelledFields("multirc", fields, ("False", "True"))(row)
    numbers = found.pop("idx")
    found["inputs"] = _BOLD.sub("", found["inputs"].replace("<br>", " "))
    return found | {f"idx/{part}": numbers[part] for part in ("paragraph", "question", "answer")}


def class_of(row: Row, classes: Sequence[str]) -> int:
    """Number of a row's class, from its number, its name, or a bool; -1 where there is none. Raises DataError where the
    label is none of the classes."""
    value = _first(row, LABEL)
    if value is None or value in (-1, "-1", "", "-"):
        return _UNLABELLED
    if isinstance(value, str) and value in classes:
        return classes.index(value)
    is_number = isinstance(value, (int, float)) or str(value).isdecimal()
    if is_number and 0 <= int(value) < len(classes):
        return int(value)
    raise DataError(
        f"the label {value!r} is none of the classes {', '.join(classes)}\n"
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


def class_task(
    name: str,
    source: TaskSource,
    benchmark: str,
    fields: Sequence[str],
    classes: Sequence[str],
    metrics: Metrics = (accuracy,),
    columns: Mapping[str, str] | None = None,
) -> Task:
    """Return a task of rows of `fields` with one of `classes`. `columns`: field to the other name that its column may
    have."""
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
    """A task whose `steps` make texts, `inputs` and `targets`, of rows; they are tokenized, kept, and ended. `after`:
    steps behind the cache marker, before EOS is appended."""
    return Task(
        name,
        source,
        FEATURES,
        (*steps, tokenize(), CacheMarker(), *after, append_eos_after_trim),
        postprocess=postprocess,
        metrics=metrics,
    )
