"""Rows of tables to ids: the texts of a split, encoded, cut and laid end to end, with their labels.

Dimensions: B examples, M tokens of all their texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.task_sources import TaskSource
from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.tasks import INDEX_COLUMNS, Columns, TextTask
from pretrainkit.training.text_reader import Ids, TextReader

Ints = NDArray[np.int64]
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


@dataclass(frozen=True)
class Examples:
    """A split as the model reads it."""

    tokens: tuple[Ids, ...]
    """(M,) int32 ids of the first texts one after another, cut, and of the second ones."""
    lengths: tuple[Ints, ...]
    """(B,) tokens of each."""
    label: NDArray[np.int64] | NDArray[np.float32]
    """(B,) int64 numbers of classes, -1 where there is none; float32 numbers, NaN where there is none."""
    index: Ints
    """(B,) the numbers of the rows."""

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
        label = next((row[name] for name in task.label if name in row), None)
        label = None if label in ("", "-", -1, "-1") or label is None else label
        if label is None and needs_label:
            raise DataError(
                f"row {number} of {split} has no label: looked for {', '.join(task.label)} in {', '.join(row)}\n"
                "  leave such rows out, or name the column: data.label=COLUMN"
            )
        labels.append(label)
        index.append(next((int(row[name]) for name in INDEX_COLUMNS if str(row.get(name, "")).isdecimal()), number))
    return Rows(texts, labels, index)


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
    if all(name.lstrip("-").isdecimal() for name in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


def numbered(labels: Sequence[Any], classes: Sequence[str]) -> NDArray[np.int64] | NDArray[np.float32]:
    """Labels as the model is told: (B,) int64 numbers of `classes`, or float32 where there are none.

    A label is the name of a class, or its number.

    Raises:
        DataError: One is neither.
    """
    if not classes:
        try:
            return np.array([np.nan if label is None else float(label) for label in labels], np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"a label is no number: {error}\n  for classes set data.kind=classes") from None
    numbers = {str(number): number for number in range(len(classes))}
    numbers |= {name: number for number, name in enumerate(classes)}  # a name counts before a number
    unknown = sorted({str(label) for label in labels if label is not None and str(label) not in numbers})
    if unknown:
        raise DataError(
            f"labels that are no class: {', '.join(unknown[:5])[:_SHOWN]}\n  the classes are {', '.join(classes)}"
        )
    return np.array([UNLABELLED if label is None else numbers[str(label)] for label in labels], np.int64)


def encoded(rows: Rows, classes: Sequence[str], reader: TextReader, max_length: int) -> Examples:
    """The examples of `rows`, cut so that with control tokens none is longer than `max_length`."""
    is_pair = len(rows.texts) == 2
    found = [reader.encode(texts) for texts in rows.texts]
    room = max_length - reader.num_added(is_pair=is_pair)
    kept = pair_lengths(found[0][1], found[1][1], room) if is_pair else (np.minimum(found[0][1], room),)
    tokens = tuple(_cut(ids, lengths, own) for (ids, lengths), own in zip(found, kept, strict=True))
    return Examples(tokens, kept, numbered(rows.labels, classes), np.array(rows.index, np.int64))


def pair_lengths(first: Ints, second: Ints, room: int) -> tuple[Ints, Ints]:
    """What is left of pairs when the longer text (of equal ones the second) loses its last token until both together
    have `room`.

    Args:
        first: (B,) tokens.
        second: (B,) tokens.
        room: Most tokens of both.

    Returns:
        (B,) tokens of the first and of the second text.
    """
    half = room - room // 2
    fits = first + second <= room
    # A text shorter than its half stays whole; of two longer ones the first gets the odd token.
    kept_first = np.minimum(first, np.maximum(half, room - second))
    kept_second = np.minimum(second, room - kept_first)
    return np.where(fits, first, kept_first), np.where(fits, second, kept_second)


def _cut(ids: Ids, lengths: Ints, kept: Ints) -> Ids:
    """(M,) ids without the ends of texts that are too long."""
    begins = np.cumsum(lengths) - lengths
    place = np.arange(len(ids)) - np.repeat(begins, lengths)
    return ids[place < np.repeat(kept, lengths)]
