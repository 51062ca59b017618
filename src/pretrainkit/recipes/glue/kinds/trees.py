"""A head and a relation for each word: dependency trees. Torch-free.

Unless the config asks for trees, heads are chosen word by word, so that answers need not be trees. Words that do not
fit into an example count as wrongly answered. Relations lose what follows a colon.

Dimensions: N examples, B examples of a batch, W words, M words that may be heads (the root is number 0), R relations.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Arrays, Columns, first_of, index_of
from pretrainkit.recipes.glue.kinds.words import LabelledSentences, Sentence, WordKind, words_of
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints

HEAD_COLUMNS = ("heads", "head")
RELATION_COLUMNS = ("relations", "deprel")
"""What holds heads (0 is the root, 1 the first word) and relations; the first that a row has counts."""
_UNKNOWN = -1


@dataclass(frozen=True)
class Tree:
    """Of a sentence."""

    heads: list[int]
    """Of each word: 0 the root, 1 the first word; -1 where it is not known."""
    relations: list[str]


class TreeExamples(LabelledSentences):
    """Sentences with a head and a relation for each word."""

    def figures(self) -> dict[str, Any]:
        names = [name for row in self.rows for name in (row.truth.relations if row.truth else ())]
        return super().figures() | {"words_with_unknown_relation": sum(name not in self._number for name in names)}

    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """Those of `word_places`; `head` (W,) int64, -1 where it is not known or was cut; `relation` (W,)
        int64, -1 where it or the head is not known."""
        found = self.word_places(index_B, begins_B)
        parts = [self._truth(int(i), num) for i, num in zip(index_B, found["num_words"].tolist(), strict=True)]
        none = np.empty(0, np.int64)
        heads, relations = ([none, *(part[k] for part in parts)] for k in (0, 1))
        return found | {"head": np.concatenate(heads), "relation": np.concatenate(relations)}

    def _truth(self, index: int, num: int) -> tuple[Ints, Ints]:
        """Heads and relations of the first `num` words."""
        tree: Tree | None = self.rows[index].truth
        if tree is None:
            return np.full(num, _UNKNOWN), np.full(num, _UNKNOWN)
        head_W = np.array([head if head <= num else _UNKNOWN for head in tree.heads[:num]], np.int64)
        relation_W = np.array([self._number.get(name, _UNKNOWN) for name in tree.relations[:num]], np.int64)
        return head_W, np.where(head_W == _UNKNOWN, _UNKNOWN, relation_W)

    def said(self, index: int, outputs: Arrays) -> dict[str, Any]:
        """`head` and `relation` of each word that was read, and summed cross-entropies `losses` over `num_known`
        heads, and relations at the true heads."""
        arc_WM, true_WR, answer_W, said_WR = outputs
        arc_WM, true_WR = arc_WM.astype(np.float64), true_WR.astype(np.float64)
        num = len(arc_WM)
        arc_WM = arc_WM[:, : num + 1]
        head_W, relation_W = self._truth(index, num)
        losses = [_loss(arc_WM, head_W), _loss(true_WR, relation_W)]
        return {
            "head": answer_W.tolist(),
            "relation": said_WR.argmax(1).tolist(),
            "losses": losses,
            "num_known": [int((one != _UNKNOWN).sum()) for one in (head_W, relation_W)],
        }

    def metrics(self, rows: Ints, said: Sequence[dict[str, Any]]) -> dict[str, float]:
        """`uas`: words with the right head; `las`, which is the score: also with the right relation; `cut_words`, how
        many were not read."""
        num_words = num_attached = num_labelled = 0
        for row, one in zip(rows.tolist(), said, strict=True):
            tree: Tree = self.rows[row].truth
            num_words += len(tree.heads)
            for truth, name, head, relation in zip(tree.heads, tree.relations, one["head"], one["relation"]):
                num_attached += truth == head
                num_labelled += truth == head and name == self.classes[relation]
        losses = [
            sum(one["losses"][k] for one in said) / max(1, sum(one["num_known"][k] for one in said)) for k in (0, 1)
        ]
        uas, las = (100 * count / num_words for count in (num_attached, num_labelled))
        cut = float(self.read.num_cut()[rows].sum())
        return {"uas": uas, "las": las, "score": las, "loss": sum(losses), "cut_words": cut}

    def line(self, row: int, said: dict[str, Any]) -> dict[str, Any]:
        """`{"index", "words", "heads", "relations"}`: lists with an entry for each word, null for cut ones."""
        sentence: Sentence = self.rows[row]
        cut: list[Any] = [None] * (len(sentence.words) - len(said["head"]))
        relations = [*(self.classes[number] for number in said["relation"]), *cut]
        heads = [*said["head"], *cut]
        return {"index": sentence.index, "words": sentence.words, "heads": heads, "relations": relations}

    def show(self, row: int, said: dict[str, Any]) -> dict[str, Any]:
        line, tree = self.line(row, said), self.rows[row].truth
        words = line["words"]
        said_arcs = list(zip(line["heads"], line["relations"], strict=True))
        true_arcs = list(zip(tree.heads, tree.relations, strict=True))
        answer = [
            {"text": f"{word} ← {_told(words, *arc)}", "is_right": arc == truth}
            for word, arc, truth in zip(words, said_arcs, true_arcs, strict=True)
        ]
        truth = "; ".join(f"{word} ← {_told(words, *arc)}" for word, arc in zip(words, true_arcs, strict=True))
        return {"text": " ".join(words), "answer": answer, "truth": truth}


class TreeKind(WordKind):
    """Sentences with a head and a relation for each word."""

    examples_class = TreeExamples

    def row(self, row: Columns, split: str, number: int, task: TextTask, *, needs_label: bool) -> Sentence:
        words = words_of(row, split, number)
        tree = _tree(row, len(words), f"row {number} of {split}")
        if tree is None and needs_label:
            raise DataError(
                f"row {number} of {split} has no {HEAD_COLUMNS[0]} and {RELATION_COLUMNS[0]}: it has "
                f"{', '.join(row)}\n  give .conllu, or rows with lists of these names"
            )
        return Sentence(index_of(row, number), tree, words, row.get("num_skipped", 0))

    def classes(self, rows: Iterable[Sentence]) -> tuple[str, ...]:
        return tuple(sorted({name for row in rows for name in row.truth.relations}))

    def settings(self, config: GlueRun, task: TextTask) -> str:
        return " tree"


def _tree(row: Columns, num_words: int, place: str) -> Tree | None:
    heads, relations = first_of(row, HEAD_COLUMNS), first_of(row, RELATION_COLUMNS)
    if heads is None or relations is None:
        return None
    numbers = [int(head) if str(head).isdecimal() else _UNKNOWN for head in heads]
    if len(numbers) != num_words or len(relations) != num_words or max(numbers) > num_words:
        raise DataError(
            f"{place} has {num_words} words, {len(numbers)} heads up to {max(numbers)} and {len(relations)} relations\n"
            "  mend the row: a head is 0 or the number of a word, from 1"
        )
    return Tree(numbers, [str(name).split(":")[0] for name in relations])


def _loss(scores_WK: np.ndarray, truth_W: Ints) -> float:
    """Summed cross-entropy of the words of which the truth is known."""
    known = np.flatnonzero(truth_W != _UNKNOWN)
    log_total_W = np.logaddexp.reduce(scores_WK[known], axis=1)
    return float((log_total_W - scores_WK[known, truth_W[known]]).sum())


def _told(words: Sequence[str], head: int | None, relation: str | None) -> str:
    if head is None or head < 0:
        return "(not known)"
    return f"{relation} {words[head - 1] if head else '(root)'}"
