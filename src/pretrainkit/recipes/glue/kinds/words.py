"""Rows of sentences word by word, and how such examples lie in a batch. Torch-free.

Dimensions: N examples, B examples of a batch, W words of a batch.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Columns, Labelled, Row, cross_entropies
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


class LabelledSentences(Labelled):
    """Sentences with something true of every word.

    Names that are none of the classes are not trained on. Words that do not fit into an example count as wrong."""

    read: ReadWords
    truth_names: ClassVar[tuple[str, ...]]
    """What the batch calls the things that are true of each word."""

    def __init__(
        self, places: Sequence[Sequence[Sentence]], config: GlueRun, task: TextTask, reader: TextReader
    ) -> None:
        super().__init__(places, config, task, reader)
        self.read = reader.read_words([row.words for row in self.rows], config.data.max_seq_length)
        self._number = {name: number for number, name in enumerate(self.classes)}

    @staticmethod
    def open(path: str, split: str) -> TaskSource:
        return open_sentences(path, split)

    @staticmethod
    @abstractmethod
    def names_of(truth: Any) -> Sequence[str]:
        """The class of each word."""

    @abstractmethod
    def numbers_of(self, index: int, num: int) -> tuple[Ints, ...]:
        """For each of `truth_names` the numbers of the first `num` words of an example, -1 where nothing is known."""

    @classmethod
    def classes_in(cls, rows: Iterable[Sentence]) -> tuple[str, ...]:
        return tuple(sorted({name for row in rows for name in cls.names_of(row.truth)}))

    def figures(self) -> dict[str, Any]:
        names = (name for row in self.rows if row.truth is not None for name in self.names_of(row.truth))
        return {
            "words": sum(len(row.words) for row in self.rows),
            "cut_words": int(self.read.num_cut().sum()),
            "lines_that_are_no_words": sum(row.num_skipped for row in self.rows),
            f"words_with_unknown_{self.truth_names[-1]}": sum(name not in self._number for name in names),
        }

    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """`word_begins` and `word_ends` (W,) int64: the first slot of each word in the batch, and the slot behind it;
        `num_words` (B,) int64: words that are read of each example; `truth_names`, (W,) int64 each, -1 where nothing is
        known."""
        starts = [self.read.word_starts(int(index)) + begin for index, begin in zip(index_B, begins_B, strict=True)]
        nums = [len(one) - 1 for one in starts]
        parts = [self.numbers_of(int(index), num) for index, num in zip(index_B, nums, strict=True)]
        none = np.empty(0, np.int64)
        return {
            "word_begins": np.concatenate([none, *(one[:-1] for one in starts)]),
            "word_ends": np.concatenate([none, *(one[1:] for one in starts)]),
            "num_words": np.array(nums, np.int64),
            **{name: np.concatenate([none, *(p[k] for p in parts)]) for k, name in enumerate(self.truth_names)},
        }

    def losses(self, index: int, scores: Sequence[np.ndarray]) -> dict[str, list[float]]:
        """Summed cross-entropies `losses` for each of `truth_names`, and over how many words: `num_known`."""
        truths = self.numbers_of(index, len(scores[0]))
        found = [cross_entropies(one, truth) for one, truth in zip(scores, truths, strict=True)]
        return {"losses": [float(one.sum()) for one in found], "num_known": [len(one) for one in found]}

    def loss_and_cut(self, rows: Ints, said: Sequence[dict[str, Any]]) -> dict[str, float]:
        """`loss`, the means of what `losses` gave added up, and `cut_words`, how many words were not read."""
        loss = 0.0
        for k in range(len(self.truth_names)):
            loss += sum(one["losses"][k] for one in said) / max(1, sum(one["num_known"][k] for one in said))
        return {"loss": loss, "cut_words": float(self.read.num_cut()[rows].sum())}

    def padded(self, row: int, values: Sequence[Any]) -> list[Any]:
        """A value for each word of a row, None for those that were cut."""
        return [*values, *[None] * (len(self.rows[row].words) - len(values))]


def words_of(row: Columns, split: str, number: int) -> list[str]:
    """The words of a row. Raises DataError where there are none."""
    found = next((row[name] for name in WORD_COLUMNS if name in row), None)
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise DataError(
            f"row {number} of {split} has no list of words in {' or '.join(WORD_COLUMNS)}: it has "
            f"{', '.join(map(str, row))}\n  mend the row; files are .conllu, .jsonl or columns with a word in each line"
        )
    return found
