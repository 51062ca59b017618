"""Rows of sentences word by word, and how such examples lie in a batch. Torch-free.

Dimensions: N examples, B examples of a batch, W words of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.data.task_sources import TaskSource
from pretrainkit.data.word_files import open_sentences
from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.kinds.labelled import TaskKind
from pretrainkit.recipes.glue.tasks import INDEX_COLUMNS
from pretrainkit.training.text_reader import Ints, ReadWords

WORD_COLUMNS = ("words", "tokens")
"""What holds the words; the first that a row has counts."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sentence:
    """A row."""

    words: list[str]
    index: int
    """The number of the row."""
    truth: Any
    """What is known of the words; None: nothing."""


@dataclass(frozen=True)
class Sentences:
    """A split as it is written."""

    rows: list[Sentence]
    num_skipped: int
    """Lines of the file that are no words."""


class WordKind(TaskKind):
    """Sentences with something true of every word."""

    def open(self, path: str, split: str) -> TaskSource:
        return open_sentences(path, split)

    def count(self, rows: Sentences) -> int:
        return len(rows.rows)

    def without_labels(self, rows: Sentences) -> Sentences:
        return Sentences([Sentence(row.words, row.index, None) for row in rows.rows], rows.num_skipped)


class WordsInBatch:
    """Where the words of examples lie in batches."""

    def __init__(self, read: ReadWords) -> None:
        self._read = read

    def places(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """`word_begins` and `word_ends` (W,) int64: the first slot of each word in the batch, and the slot behind it;
        `num_words` (B,) int64: words that are read of each example."""
        starts = [self._read.word_starts(int(index)) + begin for index, begin in zip(index_B, begins_B, strict=True)]
        none = np.empty(0, np.int64)
        return {
            "word_begins": np.concatenate([none, *(one[:-1] for one in starts)]),
            "word_ends": np.concatenate([none, *(one[1:] for one in starts)]),
            "num_words": np.array([len(one) - 1 for one in starts], np.int64),
        }


def words_of(row: Row, split: str, number: int) -> list[str]:
    """The words of a row. Raises DataError where there are none."""
    found = next((row[name] for name in WORD_COLUMNS if name in row), None)
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise DataError(
            f"row {number} of {split} has no list of words in {' or '.join(WORD_COLUMNS)}: it has "
            f"{', '.join(map(str, row))}\n  mend the row; files are .conllu, .jsonl or columns with a word in each line"
        )
    return found


def index_of(row: Row, number: int) -> int:
    """The number that a row gives itself, else its place."""
    return next((int(row[name]) for name in INDEX_COLUMNS if str(row.get(name, "")).isdecimal()), number)


def strings(values: Sequence[Any]) -> list[str]:
    """Labels as texts."""
    return [str(value) for value in values]
