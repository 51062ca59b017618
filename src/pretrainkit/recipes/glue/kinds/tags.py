"""A label for each word: parts of speech, entities. Torch-free.

The label stands at the first slot of its word; other slots have none. Words that do not fit into an example count as
answered wrongly, and as no entity.

Dimensions: N examples, B examples of a batch, W words, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.eval.metrics import OUTSIDE, are_entity_labels, entity_f1
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import UNKNOWN, Arrays, Columns, first_of, index_of
from pretrainkit.recipes.glue.kinds.words import LabelledSentences, Sentence, words_of
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints

TAG_COLUMNS = ("tags", "upos", "ner_tags", "pos_tags")
"""What holds the labels of the words where the config does not say; the first that a row has counts."""


class TagExamples(LabelledSentences):
    """Sentences with a label for each word."""

    truth_names = ("label",)

    @staticmethod
    def row(row: Columns, split: str, number: int, task: TextTask, *, needs_label: bool) -> Sentence:
        words, columns = words_of(row, split, number), task.label or TAG_COLUMNS
        tags = first_of(row, columns)
        if tags is None and needs_label:
            raise DataError(
                f"row {number} of {split} has no labels: looked for {', '.join(columns)} in {', '.join(row)}\n"
                "  leave such rows out, or name the column: data.label=COLUMN"
            )
        if tags is not None and (not isinstance(tags, list) or len(tags) != len(words)):
            given = f"{len(tags)} labels" if isinstance(tags, list) else f"{tags!r}, no list of labels"
            raise DataError(f"row {number} of {split} has {len(words)} words and {given}\n  mend the row")
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

    def said(self, index: int, outputs: Arrays) -> dict[str, Any]:
        """`label`, the likeliest class of each word that was read, its `share`, and the `losses`."""
        logits_WC = outputs[0].astype(np.float64)
        share_W = np.exp(logits_WC.max(1) - np.logaddexp.reduce(logits_WC, axis=1))
        return {
            "label": logits_WC.argmax(1).tolist(),
            "share": share_W.tolist(),
            **self.losses(index, outputs),
        }

    def metrics(self, rows: Ints, said: Sequence[dict[str, Any]]) -> dict[str, float]:
        """`accuracy` of words; of labels of entities also `precision`, `recall` and `f1` of entities, which then is the
        score; and `loss_and_cut`."""
        targets = [self.rows[row].truth for row in rows]
        answers = [self._answers(row, one) for row, one in zip(rows.tolist(), said, strict=True)]
        num_words = sum(map(len, targets))
        num_right = sum(a == b for one, other in zip(targets, answers, strict=True) for a, b in zip(one, other))
        found = {"accuracy": 100 * num_right / num_words}
        if are_entity_labels(self.classes):
            labels = [[tag or OUTSIDE for tag in one] for one in answers]
            found |= entity_f1(targets, labels)
        return found | {"score": found.get("f1", found["accuracy"])} | self.loss_and_cut(rows, said)

    def _answers(self, row: int, said: dict[str, Any]) -> list[str | None]:
        """A name for each word; None for those that were cut."""
        return self.padded(row, [self.classes[number] for number in said["label"]])

    def line(self, row: int, said: dict[str, Any]) -> dict[str, Any]:
        """`{"index", "words", "tags", "probabilities"}`: lists with an entry for each word, null for those that were
        cut."""
        sentence, answers = self.rows[row], self._answers(row, said)
        shares = self.padded(row, said["share"])
        return {"index": sentence.index, "words": sentence.words, "tags": answers, "probabilities": shares}

    def show(self, row: int, said: dict[str, Any]) -> dict[str, Any]:
        sentence, answers = self.rows[row], self._answers(row, said)
        marked = [
            {"text": f"{word} {answer or '(not read)'}", "is_right": answer == truth}
            for word, answer, truth in zip(sentence.words, answers, sentence.truth, strict=True)
        ]
        return {"text": " ".join(sentence.words), "answer": marked, "truth": " ".join(sentence.truth)}
