"""Rows of sentences word by word, and how such examples lie in a batch. Torch-free.

Dimensions: N examples, B examples of a batch, W words of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Columns, Labelled, Row, TaskKind
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints, ReadWords, TextReader
from pretrainkit.tasks.row_files import open_sentences
from pretrainkit.tasks.sources import TaskSource

WORD_COLUMNS = ("words", "tokens")
"""What holds the words; the first that a row has counts."""


@dataclass(frozen=True)
class Sentence(Row):
    """A row; its truth is of its words."""

    words: list[str]
    num_skipped: int
    """Lines of the file that are no words."""


class WordKind(TaskKind):
    """Sentences with something true of every word."""

    examples_class: type["LabelledSentences"]

    def open(self, path: str, split: str) -> TaskSource:
        return open_sentences(path, split)

    def examples(
        self, places: Sequence[list[Sentence]], config: GlueRun, task: TextTask, reader: TextReader
    ) -> "LabelledSentences":
        words = [row.words for place in places for row in place]
        read = reader.read_words(words, config.data.max_seq_length)
        return self.examples_class(read, places, config.model.classes or ())


class LabelledSentences(Labelled):
    """Sentences with something true of every word."""

    read: ReadWords

    def __init__(self, read: ReadWords, places: Sequence[list[Sentence]], classes: tuple[str, ...]) -> None:
        """What words have that is none of the `classes` is not trained on."""
        super().__init__(read, places)
        self.classes = classes
        self._number = {name: number for number, name in enumerate(classes)}

    def figures(self) -> dict[str, Any]:
        return {
            "words": sum(len(row.words) for row in self.rows),
            "cut_words": int(self.read.num_cut().sum()),
            "lines_that_are_no_words": sum(row.num_skipped for row in self.rows),
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


def words_of(row: Columns, split: str, number: int) -> list[str]:
    """The words of a row. Raises DataError where there are none."""
    found = next((row[name] for name in WORD_COLUMNS if name in row), None)
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise DataError(
            f"row {number} of {split} has no list of words in {' or '.join(WORD_COLUMNS)}: it has "
            f"{', '.join(map(str, row))}\n  mend the row; files are .conllu, .jsonl or columns with a word in each line"
        )
    return found
