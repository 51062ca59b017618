"""Rows of sentences word by word, and how such examples lie in a batch. Torch-free.

Dimensions: N examples, B examples of a batch, W words of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.kinds.labelled import Labelled, TaskKind
from pretrainkit.recipes.glue.tasks import INDEX_COLUMNS
from pretrainkit.recipes.text_reader import Ints, ReadWords
from pretrainkit.tasks.row_files import open_sentences
from pretrainkit.tasks.sources import TaskSource

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


class LabelledSentences(Labelled):
    """Sentences with something true of every word."""

    read: ReadWords

    def __init__(self, read: ReadWords, places: Sequence[Sentences], classes: tuple[str, ...]) -> None:
        """
        Args:
            read: Of the sentences of all places.
            places: Sentences of each place.
            classes: Names by number of what words have. What is none of them is not trained on.
        """
        self.read, self.classes = read, classes
        self.sizes = tuple(len(place.rows) for place in places)
        self._rows = [row for place in places for row in place.rows]
        self.index = np.array([row.index for row in self._rows], np.int64)
        self._num_skipped = sum(place.num_skipped for place in places)
        self._number = {name: number for number, name in enumerate(classes)}

    def figures(self) -> dict[str, Any]:
        return {
            "words": sum(len(row.words) for row in self._rows),
            "cut_words": int(self.read.num_cut().sum()),
            "lines_that_are_no_words": self._num_skipped,
        }

    def word_places(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """`word_begins` and `word_ends` (W,) int64: the first slot of each word in the batch, and the slot behind it;
        `num_words` (B,) int64: words that are read of each example."""
        starts = [self.read.word_starts(int(index)) + begin for index, begin in zip(index_B, begins_B, strict=True)]
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
