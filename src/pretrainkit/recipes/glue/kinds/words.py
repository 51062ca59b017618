"""Sentences with a target for every word, such as a part of speech or an entity label. Imports no torch.

The target belongs to the first slot of its word; other slots have none.

Dimensions: N examples, B examples of a batch, W words of an example or a batch, C classes.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.eval.metrics import OUTSIDE, are_entity_labels, entity_f1
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import (
    UNKNOWN,
    Arrays,
    Columns,
    Labelled,
    Row,
    cross_entropies,
    first_of,
    index_of,
)
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints, ReadWords, TextReader
from pretrainkit.tasks.row_files import open_sentences
from pretrainkit.tasks.sources import TaskSource

WORD_COLUMNS = ("words", "tokens")
"""Columns for the words; the first one in a row is used."""
TAG_COLUMNS = ("tags", "upos", "ner_tags", "pos_tags")
"""Columns for the labels of words if the config does not set one; the first one in a row is used."""


@dataclass(frozen=True)
class Sentence(Row):
    """A row with words; its truth has the targets of the words."""

    words: list[str]
    num_skipped: int
    """Number of lines of the file that are not words."""


class LabelledSentences(Labelled):
    """Sentences with one or more targets for every word.

    Names that are not among the classes are not trained on. Words that do not fit into an example count as wrong.
    """

    read: ReadWords
    truth_names: ClassVar[tuple[str, ...]]
    """Names of the targets in the batch."""

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
        """Return the class of each word."""

    @abstractmethod
    def numbers_of(self, index: int, num: int) -> tuple[Ints, ...]:
        """Return, for each of `truth_names`, the numbers of the first `num` words of an example; -1 if unknown."""

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
        """Return the targets of a batch, all int64.

        `word_begins` and `word_ends` (W,): the first slot of each word in the batch, and the slot after its last one.
        `num_words` (B,): the number of words of each example that were read. `truth_names`, (W,) each: the targets, -1
        if unknown."""
        starts = [self.read.word_starts(int(index)) + begin for index, begin in zip(index_B, begins_B, strict=True)]
        nums = [len(starts_of_one) - 1 for starts_of_one in starts]
        parts = [self.numbers_of(int(index), num) for index, num in zip(index_B, nums, strict=True)]
        none = np.empty(0, np.int64)
        return {
            "word_begins": np.concatenate([none, *(starts_of_one[:-1] for starts_of_one in starts)]),
            "word_ends": np.concatenate([none, *(starts_of_one[1:] for starts_of_one in starts)]),
            "num_words": np.array(nums, np.int64),
            **{name: np.concatenate([none, *(p[k] for p in parts)]) for k, name in enumerate(self.truth_names)},
        }

    def losses(self, index: int, scores: Sequence[np.ndarray]) -> dict[str, list[float]]:
        """Return `losses`, the summed cross-entropy for each of `truth_names`, and `num_known`, their numbers of
        words."""
        truths = self.numbers_of(index, len(scores[0]))
        losses = [cross_entropies(score, truth) for score, truth in zip(scores, truths, strict=True)]
        return {"losses": [float(loss.sum()) for loss in losses], "num_known": [len(loss) for loss in losses]}

    def loss_and_cut(self, rows: Ints, predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Return `loss`, the sum of the means of all losses, and `cut_words`, the number of words that were not
        read."""
        loss = 0.0
        for k in range(len(self.truth_names)):
            loss += sum(prediction["losses"][k] for prediction in predictions) / max(
                1, sum(prediction["num_known"][k] for prediction in predictions)
            )
        return {"loss": loss, "cut_words": float(self.read.num_cut()[rows].sum())}

    def padded(self, row: int, values: Sequence[Any]) -> list[Any]:
        """Return a value for each word of a row, None for words that were cut."""
        return [*values, *[None] * (len(self.rows[row].words) - len(values))]


class TagExamples(LabelledSentences):
    """Sentences with a label for each word."""

    truth_names = ("label",)

    @staticmethod
    def row(row: Columns, split: str, number: int, task: TextTask, *, needs_label: bool) -> Sentence:
        words, columns = words_of(row, split, number), task.label or TAG_COLUMNS
        tags = first_of(row, columns)
        if tags is None and needs_label:
            raise DataError(
                f"row {number} of {split} has no labels: searched {', '.join(columns)} in {', '.join(row)}\n"
                "  leave such rows out, or set the column: data.label=COLUMN"
            )
        if tags is not None and (not isinstance(tags, list) or len(tags) != len(words)):
            description = (
                f"{len(tags)} labels" if isinstance(tags, list) else f"{tags!r}, which is not a list of labels"
            )
            raise DataError(f"row {number} of {split} has {len(words)} words and {description}\n  fix the row")
        truth = None if tags is None else [str(tag) for tag in tags]
        return Sentence(index_of(row, number), truth, words, row.get("num_skipped", 0))

    @staticmethod
    def settings(config: GlueRun, task: TextTask) -> str:
        return f" tags {task.label}"

    @staticmethod
    def names_of(truth: list[str]) -> Sequence[str]:
        return truth

    def numbers_of(self, index: int, num: int) -> tuple[Ints]:
        truth = self.rows[index].truth or [None] * num
        return (np.array([self._number.get(tag, UNKNOWN) for tag in truth[:num]], np.int64),)

    def predict(self, index: int, outputs: Arrays) -> dict[str, Any]:
        """Return `label`, the most likely class of each word that was read, its `share`, and the `losses`."""
        logits_WC = outputs[0].astype(np.float64)
        share_W = np.exp(logits_WC.max(1) - np.logaddexp.reduce(logits_WC, axis=1))
        return {
            "label": logits_WC.argmax(1).tolist(),
            "share": share_W.tolist(),
            **self.losses(index, outputs),
        }

    def metrics(self, rows: Ints, predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Return the `accuracy` of words, and `loss_and_cut`. For entity labels also `precision`, `recall` and `f1` of
        entities; then `f1` is the score."""
        targets = [self.rows[row].truth for row in rows]
        answers = [self._answers(row, prediction) for row, prediction in zip(rows.tolist(), predictions, strict=True)]
        num_words = sum(map(len, targets))
        num_right = sum(
            a == b for tags, predicted_tags in zip(targets, answers, strict=True) for a, b in zip(tags, predicted_tags)
        )
        metrics = {"accuracy": 100 * num_right / num_words}
        if are_entity_labels(self.classes):
            labels = [[tag or OUTSIDE for tag in predicted_tags] for predicted_tags in answers]
            metrics |= entity_f1(targets, labels)
        return metrics | {"score": metrics.get("f1", metrics["accuracy"])} | self.loss_and_cut(rows, predictions)

    def _answers(self, row: int, prediction: dict[str, Any]) -> list[str | None]:
        """Return a name for each word, None for words that were cut."""
        return self.padded(row, [self.classes[number] for number in prediction["label"]])

    def line(self, row: int, prediction: dict[str, Any]) -> dict[str, Any]:
        """Return `{"index", "words", "tags", "probabilities"}`: lists with an entry for each word, null for cut
        words."""
        sentence, answers = self.rows[row], self._answers(row, prediction)
        shares = self.padded(row, prediction["share"])
        return {"index": sentence.index, "words": sentence.words, "tags": answers, "probabilities": shares}

    @staticmethod
    def truth_of(row: Sentence) -> str:
        return " ".join(row.truth)

    def show(self, row: int, prediction: dict[str, Any]) -> dict[str, Any]:
        sentence, answers = self.rows[row], self._answers(row, prediction)
        marked = [
            {"text": f"{word} {answer or '(not read)'}", "is_right": answer == truth}
            for word, answer, truth in zip(sentence.words, answers, sentence.truth, strict=True)
        ]
        return {"text": " ".join(sentence.words), "answer": marked, "truth": self.truth_of(sentence)}


def words_of(row: Columns, split: str, number: int) -> list[str]:
    """Return the words of a row. Raises DataError if there are none."""
    words = next((row[name] for name in WORD_COLUMNS if name in row), None)
    if not isinstance(words, list) or not words or not all(isinstance(item, str) for item in words):
        raise DataError(
            f"row {number} of {split} has no list of words in {' or '.join(WORD_COLUMNS)}: it has "
            f"{', '.join(map(str, row))}\n  fix the row; files are .conllu, .jsonl or columns with one word per line"
        )
    return words
