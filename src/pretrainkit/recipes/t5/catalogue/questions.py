"""Questions about a text, SQuAD and TriviaQA, as text-to-text examples; and Winograd schemas: a sentence with `*it*`,
and the noun that it refers to.

In questions and their texts, ASCII punctuation gets a space on both sides and runs of white space become one space.
Therefore a text that ends with a punctuation mark ends with a space.

Source: section 2.4 and appendix D.15 of Raffel et al. 2020, https://arxiv.org/abs/1910.10683, and the released `t5`.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.tasks.steps import Example, Lengths

Row = Mapping[str, Any]
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
_SPACE = re.compile(r"[\t\n\f\r ]+")
_NO_WORD = re.compile(r"\W")
PREFIX = "wsc:"
_PRONOUNS = frozenset({"he", "she", "they", "it", "her", "his", "their", "them", "him"})
_ARTICLES = ("a", "an", "the")
_MARKS = ".,?!"


def spaced(text: str) -> str:
    """Return `text` with spaces around its punctuation."""
    return _SPACE.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


@dataclass(frozen=True)
class Squad:
    """Make `question: Q context: C` and the first answer, with all answers and the spaced texts for the metrics."""

    has_context: bool = True
    """False: `squad trivia question: Q`, without the context."""

    def __call__(self, row: Row) -> Example:
        answers = [spaced(text) for text in row["answers"]["text"]]
        if not answers:
            raise DataError(f"question {row.get('id')!r} has no answer\n  use SQuAD 1.1, where every question has one")
        question, context = spaced(row["question"]), spaced(row["context"])
        inputs = (
            f"question: {question} context: {context}" if self.has_context else f"squad trivia question: {question}"
        )
        more = {"question": question, "context": context, "answers": answers}
        return {"inputs": _SPACE.sub(" ", inputs), "targets": answers[0], "id": row.get("id"), **more}


def squad_spans(row: Row) -> Iterator[Example]:
    """Yield the example of `Squad` with the first answer's span as target, `start: 3 end: 5`: the numbers of its first
    and last word in the context. A question whose answer is not made of whole words is left out."""
    example = Squad()(row)
    place = _place(_words(example["targets"]), _words(example["context"]))
    if place is not None:
        yield {**example, "targets": f"start: {place[0]} end: {place[1]}"}


def trivia_qa(row: Row) -> Iterator[Example]:
    """Yield an example for every text of TriviaQA and every answer that occurs in it."""
    contexts = [
        *row.get("entity_pages", {}).get("wiki_context", ()),
        *row.get("search_results", {}).get("search_context", ()),
    ]
    question = spaced(row["question"])
    answers = [spaced(answer) for answer in row["answer"]["normalized_aliases"]]
    for context in map(spaced, contexts):
        small = context.lower()
        inputs = _SPACE.sub(" ", f"question: {question} context: {context}")
        yield from ({"inputs": inputs, "targets": answer} for answer in answers if answer.lower() in small)


def window_with_answer(example: Mapping[str, Any], lengths: Lengths | None, rng: np.random.Generator) -> Example:
    """Cut inputs that are too long to a window that contains the targets, drawn again in every epoch.

    Inputs that do not contain the targets keep their beginning; the released code drops them.
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
    """Return the runs of letters and digits, as the metric counts them. The released code also counts the empty words
    between two marks when it makes targets, but not when it evaluates answers."""
    return _NO_WORD.sub(" ", text).split()


def _place(words: list[str], within: list[str]) -> tuple[int, int] | None:
    """Return the first and last index of `words` in `within`; None if they do not occur."""
    num = len(words)
    if not num:
        return None
    starts = (start for start in range(len(within) - num + 1) if within[start : start + num] == words)
    start = next(starts, None)
    return None if start is None else (start, start + num - 1)


def wsc_row(row: Row) -> Example:
    """Return a row of WSC with the keys of the hub, from the SuperGLUE form with spans in `target`."""
    return {**{key: value for key, value in row.items() if key != "target"}, **row.get("target", {})}


def is_right_referent(row: Row) -> bool:
    """Return True if the noun of a row of WSC is the right one."""
    return row.get("label") in (True, 1)


def wsc(row: Row) -> Example:
    """Make an example of WSC: the text with its pronoun between asterisks, and the noun, right or not, with `label`."""
    example: Example = {
        "inputs": f"{PREFIX} {_with_pronoun_marked(row['text'], row['span2_text'], int(row['span2_index']))}",
        "targets": row["span1_text"],
        "label": int(row.get("label") or 0),
    }
    return example | ({"idx": row["idx"]} if "idx" in row else {})


def definite_pronoun(row: Row) -> Example:
    """Make an example of DPR: a sentence with the pronoun's first occurrence marked, and the right one of two
    candidates."""
    pronoun = re.escape(row["pronoun"])
    text = re.sub(rf" ({pronoun})([ .,])", r" *\1*\2", row["sentence"], count=1)
    return {"inputs": f"{PREFIX} {text}", "targets": row["candidates"][int(row["label"])]}


def wnli(row: Row) -> Example:
    """Make an example of WNLI: the premise with a pronoun marked, its replacement in the hypothesis, and `label`.

    The pronoun is the one whose surrounding words agree best with the hypothesis. The method is designed for the
    development and test sets, so it is for evaluation only.

    Raises:
        DataError: The hypothesis replaces no pronoun of the premise.
    """
    premise, hypothesis = row["sentence1"], row["sentence2"]
    premise_words, hypothesis_words = _bare_words(premise), _bare_words(hypothesis)
    places = [place for place, word in enumerate(premise_words) if word in _PRONOUNS]
    matches = [_Match.of(premise_words, hypothesis_words, place) for place in places]
    best = max(matches, key=lambda match: match.num_shared, default=None)
    noun = _as_written(best.candidate, hypothesis) if best is not None and best.candidate else None
    if best is None or noun is None:
        raise DataError(
            f"no pronoun of {premise!r} is replaced in {hypothesis!r}\n"
            "  use glue_wnli_v002_simple_eval only for WNLI, and glue_wnli_v002 for other rows"
        )
    example: Example = {
        "inputs": f"{PREFIX} {_with_word_marked(premise, best.place)}",
        "targets": noun,
        "premise": premise,
        "hypothesis": hypothesis,
        "label": int(row.get("label", 0)),
    }
    number = row.get("idx", row.get("index"))
    return example | ({} if number is None else {"idx": int(number)})


def _with_pronoun_marked(text: str, pronoun: str, place: int) -> str:
    """Return `text` with word number `place` between asterisks. If that is not the pronoun, as in two rows of WSC, the
    nearest word that contains it is marked."""
    words = text.split(" ")
    if place < len(words) and words[place] == pronoun:
        return " ".join([*words[:place], f"*{pronoun}*", *words[place + 1 :]])
    alike = re.compile(rf"(\W*)({re.escape(pronoun)})(\W*)", re.IGNORECASE)
    matches = [(abs(at - place), at, match) for at, word in enumerate(words) if (match := alike.fullmatch(word))]
    if not matches:
        raise DataError(f"the pronoun {pronoun!r} is not in {text!r}\n  correct span2_text of this row")
    _, at, match = min(matches, key=lambda item: item[:2])
    parts = (match[1], f"*{match[2]}*", match[3])
    return " ".join([*words[:at], *(part for part in parts if part), *words[at + 1 :]]).strip()


def _bare_words(text: str) -> list[str]:
    """Return the words in lower case, without punctuation marks at their ends."""
    bare = (word[:-1] if word[-1:] and word[-1] in _MARKS else word for word in text.strip().lower().split(" "))
    return [word for word in bare if word]


@dataclass(frozen=True)
class _Match:
    """Agreement of a hypothesis with a premise around one of its pronouns."""

    place: int
    num_shared: int
    """Number of words next to the pronoun, before and after it, that also occur in the hypothesis."""
    candidate: str
    """Words of the hypothesis between them."""

    @classmethod
    def of(cls, premise: Sequence[str], hypothesis: Sequence[str], place: int) -> "_Match":
        before, behind = list(premise[:place]), list(premise[place + 1 :])
        text = " ".join(hypothesis)
        num_before = _num_repeated(list(hypothesis)[::-1], before[::-1])
        num_behind = _num_repeated(list(hypothesis), behind)
        if not num_before + num_behind:
            return cls(place, 0, "")
        left = re.escape(" ".join(before[-num_before:] if num_before else []))
        right = re.escape(" ".join(behind[:num_behind]))
        # The words before may be missing if the noun begins the hypothesis, those after if it ends the hypothesis.
        patterns = ((left, "(.+)", right), ("^(.+)", right), (left, "(.+)$"))
        attempts = (re.search(" ".join(part for part in pattern if part), text) for pattern in patterns)
        match = next((attempt for attempt in attempts if attempt), None)
        return cls(place, num_before + num_behind, match[1] if match else "")


def _num_repeated(text: Sequence[str], words: Sequence[str]) -> int:
    """Return the largest n for which the first n of `words` occur in `text` one after another."""
    whole = " ".join(text)
    return next((num for num in range(len(words)) if " ".join(words[: num + 1]) not in whole), len(words))


def _with_word_marked(text: str, place: int) -> str:
    words = text.split(" ")
    word = words[place]
    marked = f"*{word[:-1]}* {word[-1]}" if word[-1:] and word[-1] in _MARKS else f"*{word}*"
    return " ".join([*words[:place], marked, *words[place + 1 :]])


def _as_written(candidate: str, hypothesis: str) -> str | None:
    """Return the candidate, from its last article on, as the hypothesis writes it, without a possessive; None if
    absent."""
    words = candidate.split(" ")
    first = max((words.index(article) for article in _ARTICLES if article in words), default=0)
    pattern = " ".join(rf"{re.escape(word)}[.,?!]?" for word in words[first:])
    match = re.search(pattern, hypothesis, re.IGNORECASE)
    if match is None:
        return None
    noun = match[0][:-1] if match[0][-1:] and match[0][-1] in _MARKS else match[0]
    return noun.removesuffix("'s") if noun.endswith("'s") else noun.removesuffix("'")
