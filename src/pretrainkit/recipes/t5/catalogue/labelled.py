"""Rows of fields with a label, as text: `rte sentence1: A sentence2: B` and `entailment`.

Source: appendix D of Raffel et al. 2020, https://arxiv.org/abs/1910.10683, and the released `t5`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.tasks.steps import Example

Row = Mapping[str, Any]
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


def labelled(
    benchmark: str, fields: Sequence[str], classes: Sequence[str], columns: Mapping[str, str] | None = None
) -> LabelledFields:
    """`LabelledFields`; `columns`: field to the other name that its column may have."""
    others = columns or {}
    places = {name: (name, others[name]) if name in others else (name,) for name in fields}
    return LabelledFields(benchmark, places, tuple(classes))


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
    """Number of a row's class, from its number, its name, or a bool; -1 where there is none.

    Raises:
        DataError: The label is none of the classes.
    """
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
