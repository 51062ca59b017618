"""What all kinds of tasks have in common: rows, examples made of them, answers. Torch-free.

Dimensions: R rows, N examples, B examples of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.tasks import INDEX_COLUMNS, TextTask
from pretrainkit.recipes.text_reader import Ints, ReadExamples, TextReader
from pretrainkit.tasks.row_files import open_rows
from pretrainkit.tasks.sources import TaskSource

Arrays = tuple[np.ndarray, ...]
Said = Any
"""What a model says about an example, as a JSON value: it travels between ranks."""


class Labelled(ABC):
    """Examples of one or several places, and what is true of them."""

    read: ReadExamples
    sizes: tuple[int, ...]
    """Examples of each place; together N."""
    index: Ints
    """(R,) the numbers of the rows."""

    @abstractmethod
    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """What is added to the batch of these examples, of which each has its first slot at `begins_B`."""

    @abstractmethod
    def said(self, index: int, outputs: Arrays) -> Said:
        """What is kept of the outputs for an example."""

    @abstractmethod
    def metrics(self, rows: Ints, said: Sequence[Said]) -> dict[str, float]:
        """`loss`, metrics in percent and `score`, by which runs are compared; `said` is of the examples of these rows,
        in order."""

    @abstractmethod
    def lines(self, rows: Ints, said: Sequence[Said]) -> list[dict[str, Any]]:
        """A JSON object for each of the rows; arguments as for `metrics`."""

    @abstractmethod
    def shown(self, rows: Ints, said: Sequence[Said]) -> list[dict[str, Any]]:
        """The rows for the report: what was read, what was answered, what is true."""

    def examples_of(self, rows: Ints) -> Ints:
        """The examples that these rows make, row by row. Default: one each."""
        return rows

    def figures(self) -> dict[str, Any]:
        """Counts for people, by name, such as of what was cut."""
        return {}


class TaskKind(ABC):
    """How rows become examples."""

    has_classes: bool = True
    """Whether answers are names that the training data tell."""

    def open(self, path: str, split: str) -> TaskSource:
        """A file of one's own; its one split is `split`."""
        return open_rows(path, split)

    @abstractmethod
    def rows(self, source: TaskSource, split: str, task: TextTask, *, needs_label: bool) -> Any:
        """All rows of a split, which have a length, as `classes` and `examples` want them.

        Raises:
            DataError: A row lacks a column, or a label that it needs.
        """

    @abstractmethod
    def without_labels(self, rows: Any) -> Any:
        """The rows, of which nothing is known."""

    def classes(self, places: Sequence[Any]) -> tuple[str, ...]:
        """The classes that occur in rows of all places. Only where `has_classes`."""
        return ()

    def bound(self, config: GlueRun, places: Callable[[], Sequence[Any]]) -> GlueRun:
        """The config with what only the rows of all places can say. Default: itself."""
        return config

    def settings(self, config: GlueRun, task: TextTask) -> str:
        """What examples depend on besides rows, reader, classes and greatest length. Default: nothing."""
        return ""

    @abstractmethod
    def examples(self, places: Sequence[Any], config: GlueRun, task: TextTask, reader: TextReader) -> Labelled:
        """The examples of the rows of all places; `config` has its classes."""


def index_of(row: Mapping[str, Any], number: int) -> int:
    """The number that a row gives itself, else its place."""
    return next((int(row[name]) for name in INDEX_COLUMNS if str(row.get(name, "")).isdecimal()), number)


def first_of(row: Mapping[str, Any], columns: Sequence[str]) -> Any:
    """What the first of these columns holds that is there and not null; None: none is."""
    return next((row[name] for name in columns if row.get(name) is not None), None)
