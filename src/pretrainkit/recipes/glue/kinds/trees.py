"""A head and a relation for each word: dependency trees. Imports no torch.

Unless the config requests trees, heads are chosen word by word, so predictions need not be trees. Words that do not fit
into an example count as wrong. Only the part of a relation before a colon is used.

Dimensions: N examples, B examples of a batch, W words, M words that may be heads (the root is number 0), R relations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import UNKNOWN, Arrays, Columns, first_of, index_of
from pretrainkit.recipes.glue.kinds.words import LabelledSentences, Sentence, words_of
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints

HEAD_COLUMNS = ("heads", "head")
RELATION_COLUMNS = ("relations", "deprel")
"""Columns for heads (0 is the root, 1 the first word) and relations; the first one in a row is used."""


@dataclass(frozen=True)
class Tree:
    """Heads and relations of a sentence."""

    heads: list[int]
    """Head of each word: 0 is the root, 1 the first word, -1 unknown."""
    relations: list[str]


class TreeExamples(LabelledSentences):
    """Sentences with a head and a relation for each word."""

    truth_names = ("head", "relation")

    @staticmethod
    def row(row: Columns, split: str, number: int, task: TextTask, *, needs_label: bool) -> Sentence:
        words = words_of(row, split, number)
        tree = _tree(row, len(words), f"row {number} of {split}")
        if tree is None and needs_label:
            raise DataError(
                f"row {number} of {split} has no {HEAD_COLUMNS[0]} and {RELATION_COLUMNS[0]}: it has "
                f"{', '.join(row)}\n  use .conllu files, or rows with lists of these names"
            )
        return Sentence(index_of(row, number), tree, words, row.get("num_skipped", 0))

    @staticmethod
    def settings(config: GlueRun, task: TextTask) -> str:
        return " tree"

    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """Add `candidates` (M,) int64, 0, 1, ...: the root and the words of the longest example."""
        targets = super().truths(index_B, begins_B)
        return targets | {"candidates": np.arange(1 + targets["num_words"].max(initial=0))}

    @staticmethod
    def names_of(truth: Tree) -> Sequence[str]:
        return truth.relations

    def numbers_of(self, index: int, num: int) -> tuple[Ints, Ints]:
        """Return heads and relations. A head that was cut is unknown, and so is the relation to an unknown head."""
        tree: Tree | None = self.rows[index].truth
        if tree is None:
            return np.full(num, UNKNOWN), np.full(num, UNKNOWN)
        head_W = np.array([head if head <= num else UNKNOWN for head in tree.heads[:num]], np.int64)
        relation_W = np.array([self._number.get(name, UNKNOWN) for name in tree.relations[:num]], np.int64)
        return head_W, np.where(head_W == UNKNOWN, UNKNOWN, relation_W)

    def predict(self, index: int, outputs: Arrays) -> dict[str, Any]:
        """Return `head` and `relation` of each word that was read, and the `losses` of heads and of relations with the
        true heads."""
        arc_WM, true_WR, answer_W, predicted_WR = outputs
        return {
            "head": answer_W.tolist(),
            "relation": predicted_WR.argmax(1).tolist(),
            **self.losses(index, (arc_WM[:, : len(arc_WM) + 1], true_WR)),
        }

    def metrics(self, rows: Ints, predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Return `uas`, the percentage of words with the right head; `las`, the percentage of words whose relation is
        right as well, which is the score; and `loss_and_cut`."""
        num_words = num_attached = num_labelled = 0
        for row, prediction in zip(rows.tolist(), predictions, strict=True):
            tree: Tree = self.rows[row].truth
            num_words += len(tree.heads)
            for truth, name, head, relation in zip(
                tree.heads, tree.relations, prediction["head"], prediction["relation"]
            ):
                num_attached += truth == head
                num_labelled += truth == head and name == self.classes[relation]
        uas, las = (100 * count / num_words for count in (num_attached, num_labelled))
        return {"uas": uas, "las": las, "score": las} | self.loss_and_cut(rows, predictions)

    def line(self, row: int, prediction: dict[str, Any]) -> dict[str, Any]:
        """Return `{"index", "words", "heads", "relations"}`: lists with an entry for each word, null for cut words."""
        sentence: Sentence = self.rows[row]
        relations = self.padded(row, [self.classes[number] for number in prediction["relation"]])
        heads = self.padded(row, prediction["head"])
        return {"index": sentence.index, "words": sentence.words, "heads": heads, "relations": relations}

    @staticmethod
    def truth_of(row: Sentence) -> str:
        arcs = zip(row.words, row.truth.heads, row.truth.relations, strict=True)
        return "; ".join(f"{word} ← {_described(row.words, *arc)}" for word, *arc in arcs)

    def show(self, row: int, prediction: dict[str, Any]) -> dict[str, Any]:
        line, tree = self.line(row, prediction), self.rows[row].truth
        words = line["words"]
        predicted_arcs = list(zip(line["heads"], line["relations"], strict=True))
        true_arcs = list(zip(tree.heads, tree.relations, strict=True))
        answer = [
            {"text": f"{word} ← {_described(words, *arc)}", "is_right": arc == truth}
            for word, arc, truth in zip(words, predicted_arcs, true_arcs, strict=True)
        ]
        return {"text": " ".join(words), "answer": answer, "truth": self.truth_of(self.rows[row])}


def _tree(row: Columns, num_words: int, place: str) -> Tree | None:
    heads, relations = first_of(row, HEAD_COLUMNS), first_of(row, RELATION_COLUMNS)
    if heads is None or relations is None:
        return None
    numbers = [int(head) if str(head).isdecimal() else UNKNOWN for head in heads]
    if len(numbers) != num_words or len(relations) != num_words or max(numbers) > num_words:
        raise DataError(
            f"{place} has {num_words} words, {len(numbers)} heads up to {max(numbers)} and {len(relations)} relations\n"
            "  fix the row: a head is 0 or the number of a word, from 1"
        )
    return Tree(numbers, [str(name).split(":")[0] for name in relations])


def _described(words: Sequence[str], head: int | None, relation: str | None) -> str:
    if head is None or head < 0:
        return "(not known)"
    return f"{relation} {words[head - 1] if head else '(root)'}"
