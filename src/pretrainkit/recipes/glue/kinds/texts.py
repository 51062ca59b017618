"""Single texts and pairs, of which each has a class or a number. Torch-free.

Dimensions: N examples, B examples of a batch, C classes (1 where a number is asked for).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Arrays, Labelled, TaskKind, index_of
from pretrainkit.recipes.glue.tasks import Columns, TextTask
from pretrainkit.recipes.text_reader import Ints, ReadExamples, TextReader
from pretrainkit.tasks.sources import TaskSource

Row = Mapping[str, Any]
UNLABELLED = -1
_SHOWN = 60


@dataclass(frozen=True)
class Rows:
    """A split as it is written."""

    texts: tuple[list[str], ...]
    """The first text of every row and, of pairs, the second."""
    labels: list[Any]
    """As written; None where there is none."""
    index: list[int]
    """The numbers of the rows."""

    def __len__(self) -> int:
        return len(self.index)


def read_rows(source: TaskSource, split: str, task: TextTask, *, needs_label: bool) -> Rows:
    """All rows of a split.

    Raises:
        DataError: A row lacks a column, or a label that it needs.
    """
    texts: tuple[list[str], ...] = tuple([] for _ in task.texts)
    labels, index = [], []
    for number in range(source.num_examples(split)):
        row = source.example(split, number)
        for column, found in zip(task.texts, texts, strict=True):
            found.append(_text(row, column, split, number))
        named = next((name for name in task.label if name in row), None)
        label = None if named is None or _says_nothing(row[named], named, task) else row[named]
        if label is None and needs_label:
            raise DataError(
                f"row {number} of {split} has no label: looked for {', '.join(task.label)} in {', '.join(row)}\n"
                "  leave such rows out, or name the column: data.label=COLUMN"
            )
        labels.append(label)
        index.append(index_of(row, number))
    return Rows(texts, labels, index)


def _says_nothing(label: Any, column: str, task: TextTask) -> bool:
    """Whether it stands for a label that is not known: none, of NLI without agreement `-`, in the hub's GLUE -1. In
    files of one's own -1 is a class or a number like others."""
    if label is None or label == "" or (column == "gold_label" and label == "-"):
        return True
    return task.data is not None and label in (-1, "-1")


def _text(row: Row, columns: Columns, split: str, number: int) -> str:
    for name in columns:
        if isinstance(row.get(name), str):
            return row[name]
    raise DataError(
        f"row {number} of {split} has no text {' or '.join(columns)}: it has {', '.join(map(str, row))}\n"
        "  mend the row, or name the columns: data.texts=[COLUMN] or data.texts=[FIRST,SECOND]"
    )


def classes_of(labels: Sequence[Any]) -> tuple[str, ...]:
    """The classes that occur, as texts: whole numbers by size, else alphabetically."""
    found = {str(label) for label in labels if label is not None}
    if all(_is_whole_number(name) for name in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


def _is_whole_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def numbered(labels: Sequence[Any], classes: Sequence[str]) -> NDArray[np.int64] | NDArray[np.float32]:
    """Labels as the model is told: (N,) int64 numbers of `classes`, or float32 where there are none.

    A label is the name of a class or, where names are no numbers themselves, its number.

    Raises:
        DataError: One is neither.
    """
    if not classes:
        return _as_numbers(labels)
    numbers = {name: number for number, name in enumerate(classes)}
    if not any(_is_whole_number(name) for name in classes):
        numbers |= {str(number): number for number in range(len(classes))}
    unknown = sorted({str(label) for label in labels if label is not None and str(label) not in numbers})
    if unknown:
        raise DataError(
            f"labels that are no class: {', '.join(unknown[:5])[:_SHOWN]}\n  the classes are {', '.join(classes)}"
        )
    return np.array([UNLABELLED if label is None else numbers[str(label)] for label in labels], np.int64)


def _as_numbers(labels: Sequence[Any]) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            found_N = np.array([np.nan if label is None else float(label) for label in labels], np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"a label is no number: {error}\n  for classes set data.kind=classes") from None
    broken = [label for label, found in zip(labels, found_N) if label is not None and not np.isfinite(found)]
    if broken:
        raise DataError(
            f"{len(broken)} labels are no finite numbers of 32 bits, such as {broken[0]!r}\n  leave those rows out"
        )
    return found_N


class TextExamples(Labelled):
    """Texts with a class or a number each."""

    def __init__(self, read: ReadExamples, places: Sequence[Rows], classes: tuple[str, ...], task: TextTask) -> None:
        """`read` is of the rows of all places, `places` has those of each; with no `classes`, numbers are asked for."""
        self.read, self.classes, self.task, self.places = read, classes, task, tuple(places)
        self.sizes = tuple(len(rows) for rows in places)
        self.index = np.array([number for rows in places for number in rows.index], np.int64)
        self.label = numbered([label for rows in places for label in rows.labels], classes)
        """(N,) int64 numbers of classes, -1 where there is none; float32 numbers, NaN where there is none."""

    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """`label` (B,), as in the field."""
        return {"label": self.label[index_B]}

    def said(self, index: int, outputs: Arrays) -> list[float]:
        """(C,) logits, or the number."""
        return outputs[0].tolist()

    def metrics(self, rows: Ints, said: Sequence[list[float]]) -> dict[str, float]:
        label_N, outputs_NC = self.label[rows], np.array(said, np.float32)
        answer_N = outputs_NC.argmax(1) if self.classes else outputs_NC[:, 0]
        return self.task.score(label_N.tolist(), answer_N.tolist()) | {"loss": loss_of(outputs_NC, label_N)}

    def lines(self, rows: Ints, said: Sequence[list[float]]) -> list[dict[str, Any]]:
        """`{"index", "label", "probabilities"}` for classes, `{"index", "value"}` for numbers."""
        outputs_NC, index_N = np.array(said, np.float64), self.index[rows].tolist()
        if not self.classes:
            return [{"index": i, "value": value} for i, value in zip(index_N, outputs_NC[:, 0].tolist(), strict=True)]
        share_NC = np.exp(outputs_NC - outputs_NC.max(1, keepdims=True))
        share_NC /= share_NC.sum(1, keepdims=True)
        return [
            {
                "index": index,
                "label": self.classes[int(share_C.argmax())],
                "probabilities": dict(zip(self.classes, share_C.tolist(), strict=True)),
            }
            for index, share_C in zip(index_N, share_NC, strict=True)
        ]

    def shown(self, rows: Ints, said: Sequence[list[float]]) -> list[dict[str, Any]]:
        texts = [
            list(chain.from_iterable(place.texts[k] for place in self.places)) for k in range(len(self.task.texts))
        ]
        found = []
        for row, line in zip(rows.tolist(), self.lines(rows, said), strict=True):
            label = self.label[row].item()
            truth = self.classes[label] if self.classes else f"{label:.2f}"
            answer = line["label"] if self.classes else f"{line['value']:.2f}"
            right = {"is_right": answer == truth} if self.classes else {}
            read = " | ".join(column[row] for column in texts)
            found.append({"text": read, "answer": [{"text": answer, **right}], "truth": truth})
        return found


class TextKind(TaskKind):
    """Classes and numbers."""

    def __init__(self, *, has_classes: bool) -> None:
        self.has_classes = has_classes

    def rows(self, source: TaskSource, split: str, task: TextTask, *, needs_label: bool) -> Rows:
        return read_rows(source, split, task, needs_label=needs_label)

    def without_labels(self, rows: Rows) -> Rows:
        return replace(rows, labels=[None] * len(rows))

    def classes(self, places: Sequence[Rows]) -> tuple[str, ...]:
        return classes_of([label for rows in places for label in rows.labels])

    def examples(self, places: Sequence[Rows], config: GlueRun, task: TextTask, reader: TextReader) -> TextExamples:
        texts = [[text for rows in places for text in rows.texts[k]] for k in range(len(task.texts))]
        read = reader.read(texts, config.data.max_seq_length)
        return TextExamples(read, places, config.model.classes or (), task)


def loss_of(outputs_NC: NDArray[np.float32], label_N: NDArray) -> float:
    """Mean cross-entropy of classes, which are whole numbers, or mean squared error of numbers."""
    outputs_NC = outputs_NC.astype(np.float64)
    if label_N.dtype != np.int64:
        return float(np.square(outputs_NC[:, 0] - label_N).mean())
    highest_N1 = outputs_NC.max(1, keepdims=True)
    log_total_N = np.log(np.exp(outputs_NC - highest_N1).sum(1)) + highest_N1[:, 0]
    return float((log_total_N - outputs_NC[np.arange(len(label_N)), label_N]).mean())
