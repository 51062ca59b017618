"""Common parts of all kinds of tasks: rows, their examples and answers. Imports no torch.

Dimensions: R rows, N examples, B examples of a batch, K examples or words with C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.tasks import INDEX_COLUMNS, TextTask
from pretrainkit.recipes.text_reader import Ints, ReadExamples, TextReader
from pretrainkit.tasks.row_files import open_rows
from pretrainkit.tasks.sources import TaskSource

Columns = Mapping[str, Any]
"""Value of a row in each column."""
Arrays = tuple[np.ndarray, ...]
Prediction = Any
"""Prediction for an example, as a JSON value that can be sent between ranks."""
UNKNOWN = -1
"""Index of an unknown class, slot or head."""


@dataclass(frozen=True)
class Row:
    """A row of a file."""

    index: int
    """Index of the row."""
    truth: Any
    """Target of the row; None if unknown."""


class Labelled(ABC):
    """Examples of one kind of task, with their targets and metrics."""

    read: ReadExamples
    """Encoder inputs of all rows."""
    sizes: tuple[int, ...]
    """Number of examples of each component; the sum is N."""

    def __init__(self, places: Sequence[Sequence[Any]], config: GlueRun, task: TextTask, reader: TextReader) -> None:
        """Read the rows of each component (`places`), which were created by `row`. The classes are in `config`."""
        self.config, self.task, self.classes = config, task, config.model.classes or ()
        self.rows: list[Any] = [row for place in places for row in place]
        self.sizes = tuple(map(len, places))
        self.index = np.array([row.index for row in self.rows], np.int64)
        """(R,) the indices of the rows."""

    @staticmethod
    def open(path: str, split: str) -> TaskSource:
        """Open a user's file as a source with the single split `split`."""
        return open_rows(path, split)

    @staticmethod
    @abstractmethod
    def row(row: Columns, split: str, number: int, task: TextTask, *, needs_label: bool) -> Row:
        """Convert a row of a split. Raises DataError if it lacks a column, or a label that is needed."""

    @classmethod
    def classes_in(cls, rows: Iterable[Any]) -> tuple[str, ...]:
        """Return the classes that occur in rows, if answers are names of classes."""
        return ()

    @staticmethod
    def bound(config: GlueRun, rows: Callable[[], Sequence[Any]]) -> GlueRun:
        """Return the config with settings that depend on the training rows. Default: unchanged."""
        return config

    @staticmethod
    def settings(config: GlueRun, task: TextTask) -> str:
        """Return settings that affect examples, besides rows, reader, classes and length. Default: none."""
        return ""

    @staticmethod
    def truth_of(row: Any) -> str:
        """Return the target of a row for people to read."""
        return str(row.truth)

    @abstractmethod
    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """Return the targets for the batch of these examples; each example has its first slot at `begins_B`."""

    @abstractmethod
    def predict(self, index: int, outputs: Arrays) -> Prediction:
        """Return the prediction for an example from its outputs."""

    @abstractmethod
    def metrics(self, rows: Ints, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return `loss`, metrics in percent, and `score`, by which runs are compared. `predictions` are those for the
        examples of these rows, in order."""

    @abstractmethod
    def line(self, row: int, prediction: Any) -> dict[str, Any]:
        """Return a JSON object for a row; `prediction` is its entry of `by_row`."""

    @abstractmethod
    def show(self, row: int, prediction: Any) -> dict[str, Any]:
        """Return a row for the report: input, prediction and target. Arguments as for `line`."""

    def lines(self, rows: Ints, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        """Return a JSON object for each of the rows; arguments as for `metrics`."""
        return [
            self.line(row, prediction)
            for row, prediction in zip(rows.tolist(), self.by_row(rows, predictions), strict=True)
        ]

    def shown(self, rows: Ints, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        """Return the rows for the report; arguments as for `metrics`."""
        return [
            self.show(row, prediction)
            for row, prediction in zip(rows.tolist(), self.by_row(rows, predictions), strict=True)
        ]

    def examples_of(self, rows: Ints) -> Ints:
        """Return the examples of these rows, row by row. Default: one per row."""
        return rows

    def by_row(self, rows: Ints, predictions: Sequence[Prediction]) -> Iterable[Any]:
        """Return the prediction for each row; arguments as for `metrics`. Default: that of its single example."""
        return predictions

    def figures(self) -> dict[str, Any]:
        """Return counts for the summary of the data by name, such as the number of cut examples."""
        return {}


def index_of(row: Mapping[str, Any], number: int) -> int:
    """Return the index in the row's index column, or `number` if there is none."""
    return next((int(row[name]) for name in INDEX_COLUMNS if str(row.get(name, "")).isdecimal()), number)


def first_of(row: Mapping[str, Any], columns: Sequence[str]) -> Any:
    """Return the first value of these columns that is not null; None if there is none."""
    return next((row[name] for name in columns if row.get(name) is not None), None)


def cross_entropies(logits_KC: np.ndarray, label_K: np.ndarray) -> NDArray[np.float64]:
    """Return the cross-entropies of the known labels (not -1), computed in float64."""
    known = np.flatnonzero(label_K != UNKNOWN)
    logits_KC = logits_KC[known].astype(np.float64)
    return np.logaddexp.reduce(logits_KC, axis=1) - logits_KC[np.arange(len(known)), label_K[known]]
