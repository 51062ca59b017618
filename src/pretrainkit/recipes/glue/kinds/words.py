"""Rows of sentences word by word, and how such examples lie in a batch. Torch-free.

Dimensions: N examples, B examples of a batch, W words of a batch.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Labelled, TaskKind
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints, ReadWords, TextReader
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

    def __len__(self) -> int:
        return len(self.rows)


class WordKind(TaskKind):
    """Sentences with something true of every word."""

    examples_class: type["LabelledSentences"]

    def open(self, path: str, split: str) -> TaskSource:
        return open_sentences(path, split)

    def rows(self, source: TaskSource, split: str, task: TextTask, *, needs_label: bool) -> Sentences:
        found, num_skipped = [], 0
        for number in range(source.num_examples(split)):
            row = source.example(split, number)
            found.append(self.sentence(row, split, number, task, needs_label=needs_label))
            num_skipped += row.get("num_skipped", 0)
        return Sentences(found, num_skipped)

    @abstractmethod
    def sentence(self, row: Row, split: str, number: int, task: TextTask, *, needs_label: bool) -> Sentence:
        """A row. Raises DataError where it lacks what it needs."""

    def without_labels(self, rows: Sentences) -> Sentences:
        return Sentences([replace(row, truth=None) for row in rows.rows], rows.num_skipped)

    def examples(
        self, places: Sequence[Sentences], config: GlueRun, task: TextTask, reader: TextReader
    ) -> "LabelledSentences":
        words = [row.words for place in places for row in place.rows]
        read = reader.read_words(words, config.data.max_seq_length)
        return self.examples_class(read, places, config.model.classes or ())


class LabelledSentences(Labelled):
    """Sentences with something true of every word."""

    read: ReadWords

    def __init__(self, read: ReadWords, places: Sequence[Sentences], classes: tuple[str, ...]) -> None:
        """`read` is of the sentences of all places, `places` has those of each. What words have that is none of the
        `classes` is not trained on."""
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
