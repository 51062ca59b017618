"""Single texts and pairs, each with a class or a number. Imports no torch.

Dimensions: N examples, B examples of a batch, C classes (1 for numbers).
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import UNKNOWN, Arrays, Columns, Labelled, Row, cross_entropies, index_of
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints, TextReader

_SHOWN, _SHOWN_CLASSES = 60, 20
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextRow(Row):
    """A text or a pair; its truth is the label as it is in the file."""

    texts: tuple[str, ...]


def _is_missing(label: Any, column: str, task: TextTask) -> bool:
    """True if `label` means that the label is unknown: null, NaN or empty, `-` in NLI data without agreement, and -1 in
    GLUE on the hub. In users' files, -1 is an ordinary class or number."""
    is_nan = label != label
    if label is None or label == "" or is_nan or (column == "gold_label" and label == "-"):
        return True
    return task.data is not None and label in (-1, "-1")


def _text(row: Columns, names: Sequence[str], split: str, number: int, task: TextTask) -> str:
    for name in names:
        if isinstance(row.get(name), str):
            return row[name]
    own = "data.texts=[COLUMN] or data.texts=[FIRST,SECOND]"
    raise DataError(
        f"row {number} of {split} has no text in {' or '.join(names)}: it has {', '.join(map(str, row))}\n"
        + (
            f"  fix the row, or set the columns: {own}"
            if task.data is None
            else f"  rename it, or use task own with data.train=FILE data.valid=FILE data.label=COLUMN and {own}"
        )
    )


def classes_of(labels: Sequence[Any]) -> tuple[str, ...]:
    """Return the classes that occur, as texts. Whole numbers are sorted by size, other names alphabetically."""
    names = {_name(label) for label in labels if label is not None}
    if fraction := min(filter(_is_fraction, names), default=None):
        _logger.warning(
            "labels are numbers, such as %s, and each of the %s different ones is a class; to predict numbers set "
            "data.kind=numbers",
            *(fraction, f"{len(names):,}"),
        )
    if all(_is_whole_number(name) for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _name(label: Any) -> str:
    """Return the name of a class. Tables that lack some labels store whole numbers as 1.0, which is the same class."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _is_whole_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _is_fraction(name: str) -> bool:
    return _is_number(name) and 0 < abs(float(name)) % 1 < 1


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def numbered(labels: Sequence[Any], classes: Sequence[str]) -> NDArray[np.int64] | NDArray[np.float32]:
    """Return labels as the model uses them: (N,) int64 numbers of `classes`, or float32 without classes. A label is the
    name of a class or, if no name is a number, the number of a class. Raises DataError for any other label."""
    if not classes:
        return _as_numbers(labels)
    numbers = {name: number for number, name in enumerate(classes)}
    if not any(_is_number(name) for name in classes):
        numbers |= {str(number): number for number in range(len(classes))}
    names = [None if label is None else str(label) if str(label) in classes else _name(label) for label in labels]
    unknown = sorted({name for name in names if name is not None and name not in numbers})
    if unknown:
        more = len(classes) - _SHOWN_CLASSES
        shown = ", ".join(classes[:_SHOWN_CLASSES]) + (f" and {more:,} more" if more > 0 else "")
        raise DataError(
            f"labels without a class: {', '.join(unknown[:5])[:_SHOWN]}\n  the classes are {shown}"
            + ("; to predict numbers set data.kind=numbers" if any(map(_is_fraction, unknown)) else "")
            + ("; test sets without labels often have -1: use a split with labels" if unknown == ["-1"] else "")
            + ("; remove the line of column names, which files of this task lack" if unknown == ["label"] else "")
        )
    return np.array([UNKNOWN if name is None else numbers[name] for name in names], np.int64)


def _as_numbers(labels: Sequence[Any]) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            values_N = np.array([np.nan if label is None else float(label) for label in labels], np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"a label is not a number: {error}\n  for classes set data.kind=classes") from None
    broken = [label for label, value in zip(labels, values_N) if label is not None and not np.isfinite(value)]
    if broken:
        raise DataError(
            f"{len(broken)} labels are not finite float32 numbers, such as {broken[0]!r}\n  leave these rows out"
        )
    return values_N


class TextExamples(Labelled):
    """Texts, each with a class or a number."""

    def __init__(
        self, places: Sequence[Sequence[TextRow]], config: GlueRun, task: TextTask, reader: TextReader
    ) -> None:
        super().__init__(places, config, task, reader)
        texts = [[row.texts[k] for row in self.rows] for k in range(len(task.texts))]
        self.read = reader.read(texts, config.data.max_seq_length)
        self.label = numbered([row.truth for row in self.rows], self.classes)
        """(N,) int64 numbers of classes, -1 if unknown; or, without classes, float32 numbers, NaN if unknown."""

    @staticmethod
    def row(row: Columns, split: str, number: int, task: TextTask, *, needs_label: bool) -> TextRow:
        if not task.texts:  # an imported classifier
            raise DataError(
                "no columns of texts are set, because the model was not trained here\n"
                "  set data.texts=[COLUMN], or data.texts=[FIRST,SECOND] for pairs; for predictions:\n"
                "  pretrainkit infer MODEL data.texts=[COLUMN] --input ROWS --out ANSWERS"
            )
        texts = tuple(_text(row, names, split, number, task) for names in task.texts)
        named = next((name for name in task.label if name in row), None)
        label = None if named is None or _is_missing(row[named], named, task) else row[named]
        if label is None and needs_label:
            why = (
                f"searched {', '.join(task.label)} in {', '.join(row)}"
                if named is None
                else f"its {named} is {row[named]!r}"
            )
            raise DataError(
                f"row {number} of {split} has no label: {why}\n"
                "  leave such rows out, use a split with labels, or set the column: data.label=COLUMN"
            )
        if isinstance(label, list | dict):
            raise DataError(
                f"row {number} of {split} has several labels: {label!r:.60}\n"
                "  a row has one class or number; train one model for each class, with a column of its own"
            )
        return TextRow(index_of(row, number), label, texts)

    @classmethod
    def classes_in(cls, rows: Iterable[TextRow]) -> tuple[str, ...]:
        return classes_of([row.truth for row in rows])

    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        return {"label": self.label[index_B]}

    def predict(self, index: int, outputs: Arrays) -> list[float]:
        """Return the logits (C,), or the number."""
        return outputs[0].tolist()

    def metrics(self, rows: Ints, predictions: Sequence[list[float]]) -> dict[str, float]:
        label_N, outputs_NC = self.label[rows], np.array(predictions, np.float32)
        if self.classes:
            answer_N, losses = outputs_NC.argmax(1), cross_entropies(outputs_NC, label_N)
        else:
            answer_N, losses = outputs_NC[:, 0], np.square(outputs_NC[:, 0].astype(np.float64) - label_N)
        return self.task.score(label_N.tolist(), answer_N.tolist()) | {"loss": float(losses.mean())}

    def line(self, row: int, prediction: list[float]) -> dict[str, Any]:
        """Return `{"index", "label", "probabilities"}` for classes, `{"index", "value"}` for numbers."""
        index = self.rows[row].index
        if not self.classes:
            return {"index": index, "value": prediction[0]}
        share_C = np.exp(np.array(prediction, np.float64) - max(prediction))
        shares = (share_C / share_C.sum()).tolist()
        label = self.classes[int(share_C.argmax())]
        return {"index": index, "label": label, "probabilities": dict(zip(self.classes, shares, strict=True))}

    def show(self, row: int, prediction: list[float]) -> dict[str, Any]:
        line, label = self.line(row, prediction), self.label[row].item()
        truth = self.classes[label] if self.classes else f"{label:.2f}"
        answer = line["label"] if self.classes else f"{line['value']:.2f}"
        right = {"is_right": answer == truth} if self.classes else {}
        return {"text": " | ".join(self.rows[row].texts), "answer": [{"text": answer, **right}], "truth": truth}
