"""Answers to questions that are spans of a context. Imports no torch.

A context that is too long is split into windows, which are the examples. The target of a window without the answer is
its slot for no answer. Scores of different windows are compared directly.

Dimensions: R questions, N windows, B windows of a batch, S slots of a window, K candidates.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.eval.metrics import best_null_threshold, squad, squad_v2
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import UNKNOWN, Arrays, Columns, Labelled, Row
from pretrainkit.recipes.glue.tasks import TextTask
from pretrainkit.recipes.text_reader import Ints, ReadPassages, TextReader
from pretrainkit.tasks.row_files import SquadJson, open_rows
from pretrainkit.tasks.sources import TaskSource

_WORD = re.compile(r"[^\W_]+(?:[.,:][^\W_]+|['’](?!s\b)[^\W_]+)*")
"""Letters and digits, also with a punctuation mark between them, as in 1,000 and don't."""
_WITHOUT_SPACES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Characters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which put no spaces between words."""
_LONGEST = 60
"""Number of characters before and after a span in which the rest of a word is searched."""


@dataclass(frozen=True)
class Question(Row):
    """A question. `truth` has each right answer with its first character in the context; empty: there is no answer."""

    truth: tuple[tuple[str, int], ...] | None
    id: str
    question: str
    context: str

    @property
    def texts(self) -> list[str]:
        """Right answers."""
        return [text for text, _ in self.truth or ()]

    @property
    def place(self) -> tuple[int, int] | None:
        """(begin, end) in characters of the first answer without surrounding white space; None: it is not in the
        context."""
        text, begin = (self.truth or (("", -1),))[0]
        if not text.strip() or self.context[begin : begin + len(text)] != text or begin < 0:
            return None
        begin += len(text) - len(text.lstrip())
        return begin, begin + len(text.strip())


@dataclass(frozen=True)
class Candidate:
    """A possible answer."""

    score: float
    begin: int
    """Index of its first character in the context."""
    end: int


class SpanExamples(Labelled):
    """Questions with the windows of their contexts."""

    read: ReadPassages

    def __init__(
        self, places: Sequence[Sequence[Question]], config: GlueRun, task: TextTask, reader: TextReader
    ) -> None:
        super().__init__(places, config, task, reader)
        data, self._settings = config.data, config.data.spans
        pairs = [(row.question.strip(), row.context) for row in self.rows]
        self.read = reader.read_passages(
            pairs, data.max_seq_length, self._settings.stride, self._settings.max_question_length
        )
        self._owner = self.read.example_of()
        # Windows are sorted by question: those of row r are _ends[r] to _ends[r + 1] - 1.
        self._ends = np.searchsorted(self._owner, np.arange(len(self.rows) + 1))
        self._is_cut = self.read.has_cut_question()[self._ends[:-1]]
        self.sizes = tuple(np.diff(self._ends[np.cumsum([0, *self.sizes])]).tolist())

    @staticmethod
    def open(path: str, split: str) -> TaskSource:
        parts = Path(path).name.lower().split(".")[1:]
        return SquadJson({split: path}) if "json" in parts else open_rows(path, split)

    @staticmethod
    def row(row: Columns, split: str, number: int, task: TextTask, *, needs_label: bool) -> Question:
        if not all(isinstance(row.get(name), str) for name in ("question", "context")):
            raise DataError(
                f"row {number} of {split} lacks the text of a question or context: it has {', '.join(map(str, row))}\n"
                "  fix the row; files are JSON in SQuAD's format, or .jsonl with its columns"
            )
        answers = row.get("answers")
        if answers is None and needs_label:
            raise DataError(
                f"row {number} of {split} has no answers\n"
                '  write them as {"text": [TEXT], "answer_start": [CHARACTERS]}, empty if there is none'
            )
        pairs = None if answers is None else tuple(zip(answers["text"], answers["answer_start"], strict=True))
        return Question(number, pairs, str(row.get("id", number)), row["question"], row["context"])

    @staticmethod
    def bound(config: GlueRun, rows: Callable[[], Sequence[Question]]) -> GlueRun:
        """Allow "no answer" if the training data has unanswerable questions."""
        if config.data.spans.null_threshold is not None or not config.has_training_data:
            return config
        if not any(row.truth == () for row in rows()):
            return config
        return config.changed(data={"spans": {"null_threshold": 0.0}})

    @staticmethod
    def settings(config: GlueRun, task: TextTask) -> str:
        spans = config.data.spans
        return f" spans {spans.stride} {spans.max_question_length}"

    def examples_of(self, rows: Ints) -> Ints:
        windows = [np.arange(self._ends[row], self._ends[row + 1]) for row in rows]
        return np.concatenate([np.empty(0, np.int64), *windows])

    def figures(self) -> dict[str, Any]:
        known = [row for row in self.rows if row.truth]
        return {
            "questions": len(self.rows),
            "questions_without_answer": sum(row.truth == () for row in self.rows),
            "misplaced_answers": sum(row.place is None for row in known),
            "cut_questions": int(self._is_cut.sum()),
        }

    def truths(self, index_B: Ints, begins_B: Ints) -> dict[str, np.ndarray]:
        """Return `first_slot` and `last_slot` (B,) int64 of the answer in the window. Both are the slot for no answer
        if the answer is not in the window, and -1 if it is unknown."""
        places = np.array([self._place(int(window)) for window in index_B], np.int64).reshape(-1, 2)
        return {"first_slot": places[:, 0].copy(), "last_slot": places[:, 1].copy()}

    def _place(self, window: int) -> tuple[int, int]:
        row = self.rows[self._owner[window]]
        if row.truth is None or (row.truth and row.place is None):
            return UNKNOWN, UNKNOWN
        nowhere = self.read.no_answer_slot(window)
        if row.place is None:
            return nowhere, nowhere
        return slots_of(self.read.offsets(window), row.place) or (nowhere, nowhere)

    def predict(self, index: int, outputs: Arrays) -> dict[str, Any]:
        """Return `candidates`, [score, begin, end] of the most likely answers; `null`, the score of no answer; and
        `loss` if the answer is known."""
        scores_S2, settings = outputs[0].astype(np.float64), self._settings
        nowhere = self.read.no_answer_slot(index)
        log_share_S2 = scores_S2 - np.logaddexp.reduce(scores_S2, axis=0, keepdims=True)
        first, last = self._place(index)
        best = candidates(scores_S2, self.read.offsets(index), settings.num_best, settings.max_answer_length)
        return {
            "candidates": [[candidate.score, candidate.begin, candidate.end] for candidate in best],
            "null": float(scores_S2[nowhere].sum()),
            "loss": None if first == UNKNOWN else float(-(log_share_S2[first, 0] + log_share_S2[last, 1]) / 2),
        }

    def metrics(self, rows: Ints, predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Return `em` and `f1` of SQuAD; the score is `f1`. With unanswerable questions, the rules of SQuAD 2.0 apply,
        and the result with the best threshold is added (`best_f1` at `best_null_threshold`). `cut_questions` is the
        number of questions that lost their end."""
        questions = [self.rows[row] for row in rows]
        targets = [row.texts for row in questions]
        by_row = list(self.by_row(rows, predictions))
        losses = [prediction["loss"] for prediction in predictions if prediction["loss"] is not None]
        answers = [
            self._answer(row, *candidates_and_null) for row, candidates_and_null in zip(questions, by_row, strict=True)
        ]
        metrics = (squad if all(targets) else squad_v2)(targets, answers)
        if not all(targets):
            best = [self._text(row, best_of_row) for row, (best_of_row, _) in zip(questions, by_row, strict=True)]
            odds = [_odds(*candidates_and_null) for candidates_and_null in by_row]
            metrics["best_null_threshold"], metrics["best_f1"] = best_null_threshold(targets, best, odds)
        cut = float(self._is_cut[rows].sum())
        return metrics | {"score": metrics["f1"], "loss": sum(losses) / max(1, len(losses)), "cut_questions": cut}

    def line(self, row: int, candidates_and_null: tuple[list[Candidate], float]) -> dict[str, Any]:
        """Return `{"index", "id", "answer", "begin", "end", "no_answer_odds", "candidates"}`.

        The answer has its place in the context in characters (null for no answer). `no_answer_odds` is the score of no
        answer minus that of the best candidate. The most likely candidates have their share of the probability among
        them."""
        (best, null), question = candidates_and_null, self.rows[row]
        answer = self._answer(question, best, null)
        # The softmax is over these candidates only.
        weights = np.exp(np.array([candidate.score for candidate in best]) - (best[0].score if best else 0.0))
        spans = [self._span(question.context, candidate) for candidate in best]
        return {
            "index": question.index,
            "id": question.id,
            "answer": answer,
            "begin": spans[0][0] if answer else None,
            "end": spans[0][1] if answer else None,
            "no_answer_odds": _odds(best, null),
            "candidates": [
                {"text": question.context[begin:end], "begin": begin, "end": end, "share": float(weight)}
                for (begin, end), weight in zip(spans, weights / max(1e-300, weights.sum()), strict=True)
            ],
        }

    @staticmethod
    def truth_of(row: Question) -> str:
        return " | ".join(dict.fromkeys(row.texts)) or "(no answer)"

    def show(self, row: int, candidates_and_null: tuple[list[Candidate], float]) -> dict[str, Any]:
        question = self.rows[row]
        answer = self._answer(question, *candidates_and_null)
        is_right = squad_v2([question.texts], [answer])["em"] == 100
        shown = [{"text": answer or "(no answer)", "is_right": is_right}]
        texts = {"question": question.question, "context": question.context}
        return texts | {"answer": shown, "truth": self.truth_of(question)}

    def _span(self, context: str, candidate: Candidate) -> tuple[int, int]:
        """Return (begin, end) without surrounding white space. If slots hold parts of several words, round to whole
        words."""
        begin, end = candidate.begin, candidate.end
        if self.read.cuts_words:
            begin, end = whole_words(context, begin, end)
        text = context[begin:end]
        begin += len(text) - len(text.lstrip())
        return begin, begin + len(text.strip())

    def _text(self, row: Question, best: list[Candidate]) -> str:
        if not best:
            return ""
        begin, end = self._span(row.context, best[0])
        return row.context[begin:end]

    def by_row(self, rows: Ints, predictions: Sequence[dict[str, Any]]) -> Iterator[tuple[list[Candidate], float]]:
        """Yield the most likely candidates over all windows of each row, and its score of no answer. That is the lowest
        score of its windows, because a question has no answer only if no window has one."""
        begin = 0
        for row in rows.tolist():
            own = predictions[begin : (begin := begin + int(self._ends[row + 1] - self._ends[row]))]
            all_found = [Candidate(*values) for prediction in own for values in prediction["candidates"]]
            best = sorted(all_found, key=lambda candidate: (-candidate.score, candidate.begin, candidate.end))[
                : self._settings.num_best
            ]
            yield best, min(prediction["null"] for prediction in own)

    def _answer(self, row: Question, best: list[Candidate], null: float) -> str:
        threshold = self._settings.null_threshold
        return "" if threshold is not None and _odds(best, null) > threshold else self._text(row, best)


def slots_of(offsets_S2: Ints, place: tuple[int, int]) -> tuple[int, int] | None:
    """Return the slots in which a span of the context, (begin, end) in characters, begins and ends; None if a part of
    it is not in the window. Right-to-left text ends in a slot before the one in which it begins. Offsets are those of
    `ReadPassages.offsets`."""
    begin, end = place
    shown = np.flatnonzero(offsets_S2[:, 0] >= 0)
    shown = shown[np.argsort(offsets_S2[shown, 0], kind="stable")]  # in reading order
    touched = shown[(offsets_S2[shown, 0] < end) & (offsets_S2[shown, 1] > begin)]
    if not len(touched):
        return None
    first, last = int(touched[0]), int(touched[-1])
    # A part of the answer can be missing only at the edge of a window.
    is_cut = (first == shown[0] and offsets_S2[first, 0] > begin) or (last == shown[-1] and offsets_S2[last, 1] < end)
    return None if is_cut else (first, last)


def candidates(scores_S2: np.ndarray, offsets_S2: Ints, num_best: int, max_length: int) -> list[Candidate]:
    """Return the most likely spans, best first. Their first and last slots are among the `num_best` most likely ones,
    and they have at most `max_length` slots."""
    shown = np.flatnonzero(offsets_S2[:, 0] >= 0)
    first_K, last_K = (shown[np.argsort(-scores_S2[shown, side], kind="stable")[:num_best]] for side in (0, 1))
    score_KK = scores_S2[first_K, 0][:, None] + scores_S2[last_K, 1][None]
    # Either order is allowed: right-to-left text ends in a slot before the one in which it begins.
    length_KK = abs(last_K[None] - first_K[:, None]) + 1
    begin_KK, end_KK = np.broadcast_arrays(offsets_S2[first_K, 0][:, None], offsets_S2[last_K, 1][None])
    fits_KK = (length_KK <= max_length) & (end_KK > begin_KK)
    order = np.argsort(-score_KK[fits_KK], kind="stable")[:num_best]
    values = (values_KK[fits_KK][order].tolist() for values_KK in (score_KK, begin_KK, end_KK))
    return [Candidate(*values_of_one) for values_of_one in zip(*values, strict=True)]


def _odds(best: list[Candidate], null: float) -> float:
    """Return the score of no answer minus that of the best candidate."""
    return null - best[0].score if best else 1e9


def whole_words(text: str, begin: int, end: int) -> tuple[int, int]:
    """Extend or shrink a span of characters to whole words: to those of which it covers more than half, otherwise to
    the one that it covers most. It is unchanged if it has no word, and in scripts without spaces."""
    if _WITHOUT_SPACES.search(text, begin, end):
        return begin, end
    words = [word.span() for word in _WORD.finditer(text, max(0, begin - _LONGEST), end + _LONGEST)]
    shared = [min(end, after) - max(begin, first) for first, after in words]
    kept = [span for span, num in zip(words, shared, strict=True) if 2 * num > span[1] - span[0]]
    if not kept and max(shared, default=0) > 0:
        kept = [words[shared.index(max(shared))]]
    return (kept[0][0], kept[-1][1]) if kept else (begin, end)
