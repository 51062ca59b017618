"""Questions with a text that holds the answer: SQuAD and TriviaQA as text.

Punctuation of ASCII gets a space on both sides and runs of white space become one space, so that a text that ends with
a mark ends with a space.

Source: appendix D.15 of Raffel et al. 2020, https://arxiv.org/abs/1910.10683, and the released `t5`.
"""

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.tasks.steps import Example, Lengths

Row = Mapping[str, Any]
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
_SPACE = re.compile(r"[\t\n\f\r ]+")
_NO_WORD = re.compile(r"\W")


def spaced(text: str) -> str:
    """`text` with spaces around its punctuation."""
    return _SPACE.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


@dataclass(frozen=True)
class Squad:
    """`question: Q context: C` and the first answer, with all answers and the spaced texts for the metrics."""

    has_context: bool = True
    """False: `squad trivia question: Q`, to be answered from memory."""

    def __call__(self, row: Row) -> Example:
        answers = [spaced(text) for text in row["answers"]["text"]]
        if not answers:
            raise DataError(f"question {row.get('id')!r} has no answer\n  give SQuAD 1.1, where all of them have one")
        question, context = spaced(row["question"]), spaced(row["context"])
        asked = f"question: {question} context: {context}" if self.has_context else f"squad trivia question: {question}"
        more = {"question": question, "context": context, "answers": answers}
        return {"inputs": _SPACE.sub(" ", asked), "targets": answers[0], "id": row.get("id"), **more}


def squad_spans(row: Row) -> Iterator[Example]:
    """As `Squad`, with the place of the first answer as target, `start: 3 end: 5`: numbers of its first and last word
    in the context. A question whose answer is not made of whole words is left out."""
    found = Squad()(row)
    place = _place(_words(found["targets"]), _words(found["context"]))
    if place is not None:
        yield {**found, "targets": f"start: {place[0]} end: {place[1]}"}


def trivia_qa(row: Row) -> Iterator[Example]:
    """An example for every text of TriviaQA and every answer that it holds."""
    contexts = [
        *row.get("entity_pages", {}).get("wiki_context", ()),
        *row.get("search_results", {}).get("search_context", ()),
    ]
    question = spaced(row["question"])
    answers = [spaced(answer) for answer in row["answer"]["normalized_aliases"]]
    for context in map(spaced, contexts):
        small = context.lower()
        asked = _SPACE.sub(" ", f"question: {question} context: {context}")
        yield from ({"inputs": asked, "targets": answer} for answer in answers if answer.lower() in small)


def window_with_answer(example: Mapping[str, Any], lengths: Lengths | None, rng: np.random.Generator) -> Example:
    """Cuts inputs that are too long to a stretch, drawn anew in every epoch, in which the targets stand.

    Inputs in which no such tokens stand keep their beginning; the released code drops them.
    """
    inputs, answer = np.asarray(example["inputs"]), np.asarray(example["targets"])
    most = None if lengths is None else lengths.get("inputs")
    if most is None or len(inputs) <= most or not len(answer) or len(answer) > most:
        return dict(example)
    windows = np.lib.stride_tricks.sliding_window_view(inputs, len(answer))
    places = np.flatnonzero((windows == answer).all(axis=1))
    if not len(places):
        return dict(example)
    first = max(0, int(places[0]) - (most - len(answer)))
    last = min(int(places[0]), len(inputs) - most)
    start = int(rng.integers(first, last + 1))
    return {**example, "inputs": inputs[start : start + most]}


def _words(text: str) -> list[str]:
    """What lies between characters that are no letters or digits, as the metric counts them. The released code counts
    the empty words between two marks when it makes targets, but not when it judges answers."""
    return _NO_WORD.sub(" ", text).split()


def _place(words: list[str], within: list[str]) -> tuple[int, int] | None:
    """First and last number of `words` in `within`."""
    num = len(words)
    if not num:
        return None
    found = (start for start in range(len(within) - num + 1) if within[start : start + num] == words)
    start = next(found, None)
    return None if start is None else (start, start + num - 1)
