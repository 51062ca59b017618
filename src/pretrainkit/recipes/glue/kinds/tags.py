"""A label for each word: parts of speech, entities. Torch-free.

The label stands at the first slot of its word; other slots have none. Words that do not fit into an example count as
answered wrongly, and as no entity.

Dimensions: N examples, B examples of a batch, W words, C classes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.eval.metrics import OUTSIDE, are_entity_labels, entity_f1
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Arrays, Columns, first_of, index_of
from pretrainkit.recipes.glue.kinds.words import LabelledSentences, Sentence, WordKind, words_of
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints

TAG_COLUMNS = ("tags", "upos", "ner_tags", "pos_tags")
"""What holds the labels of the words where the config does not say; the first that a row has counts."""
_UNKNOWN = -1


class TagExamples(LabelledSentences):
    """Sentences with a label for each word."""

    def figures(self) -> dict[str, Any]:
        unknown = [tag for row in self.rows for tag in row.truth or () if tag not in self._number]
        return super().figures() | {"words_with_unknown_label": len(unknown)}

    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """Those of `word_places`, and `label` (W,) int64, -1 where there is none."""
        found = self.word_places(index_B, begins_B)
        labels = [self._label(int(i))[:num] for i, num in zip(index_B, found["num_words"].tolist(), strict=True)]
        return found | {"label": np.concatenate([np.empty(0, np.int64), *labels])}

    def _label(self, index: int) -> Ints:
        row = self.rows[index]
        if row.truth is None:
            return np.full(len(row.words), _UNKNOWN)
        return np.array([self._number.get(tag, _UNKNOWN) for tag in row.truth], np.int64)

    def said(self, index: int, outputs: Arrays) -> dict[str, Any]:
        """`label`, the likeliest class of each word that was read, its `share`, and the words' summed cross-entropy
        `loss` with `num_known`, over how many."""
        logits_WC = outputs[0].astype(np.float64)
        log_share_WC = logits_WC - np.logaddexp.reduce(logits_WC, axis=1, keepdims=True)
        answer_W, label_W = logits_WC.argmax(1), self._label(index)[: len(logits_WC)]
        known = np.flatnonzero(label_W != _UNKNOWN)
        return {
            "label": answer_W.tolist(),
            "share": np.exp(log_share_WC[np.arange(len(answer_W)), answer_W]).tolist(),
            "loss": float(-log_share_WC[known, label_W[known]].sum()),
            "num_known": len(known),
        }

    def metrics(self, rows: Ints, said: Sequence[dict[str, Any]]) -> dict[str, float]:
        """`accuracy` of words; of labels of entities also `precision`, `recall` and `f1` of entities, which then is the
        score; `cut_words`, how many were not read."""
        targets = [self.rows[row].truth for row in rows]
        answers = [self._answers(row, one) for row, one in zip(rows.tolist(), said, strict=True)]
        num_words = sum(map(len, targets))
        num_right = sum(a == b for one, other in zip(targets, answers, strict=True) for a, b in zip(one, other))
        found = {"accuracy": 100 * num_right / num_words}
        if are_entity_labels(self.classes):
            labels = [[tag or OUTSIDE for tag in one] for one in answers]
            found |= entity_f1(targets, labels)
        num_known = sum(one["num_known"] for one in said)
        return found | {
            "score": found.get("f1", found["accuracy"]),
            "loss": sum(one["loss"] for one in said) / max(1, num_known),
            "cut_words": float(self.read.num_cut()[rows].sum()),
        }

    def _answers(self, row: int, said: dict[str, Any]) -> list[str | None]:
        """A name for each word; None for those that were cut."""
        names: list[str | None] = [self.classes[number] for number in said["label"]]
        return names + [None] * (len(self.rows[row].words) - len(names))

    def line(self, row: int, said: dict[str, Any]) -> dict[str, Any]:
        """`{"index", "words", "tags", "probabilities"}`: lists with an entry for each word, null for those that were
        cut."""
        sentence, answers = self.rows[row], self._answers(row, said)
        share = [*said["share"], *[None] * (len(answers) - len(said["share"]))]
        return {"index": sentence.index, "words": sentence.words, "tags": answers, "probabilities": share}

    def show(self, row: int, said: dict[str, Any]) -> dict[str, Any]:
        sentence, answers = self.rows[row], self._answers(row, said)
        marked = [
            {"text": f"{word} {answer or '(not read)'}", "is_right": answer == truth}
            for word, answer, truth in zip(sentence.words, answers, sentence.truth, strict=True)
        ]
        return {"text": " ".join(sentence.words), "answer": marked, "truth": " ".join(sentence.truth)}


class TagKind(WordKind):
    """Sentences with a label for each word."""

    examples_class = TagExamples

    def row(self, row: Columns, split: str, number: int, task: TextTask, *, needs_label: bool) -> Sentence:
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

    def classes(self, rows: Iterable[Sentence]) -> tuple[str, ...]:
        return tuple(sorted({tag for row in rows for tag in row.truth}))

    def settings(self, config: GlueRun, task: TextTask) -> str:
        return f" tags {task.label}"
