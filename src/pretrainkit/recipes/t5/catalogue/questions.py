"""Questions with a text that holds the answer, SQuAD and TriviaQA, as text; and Winograd schemas: a sentence with
`*it*`, and the noun that it stands for.

In questions and their texts punctuation of ASCII gets a space on both sides and runs of white space become one space,
so that a text that ends with a mark ends with a space.

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


def wsc_row(row: Row) -> Example:
    """A row of WSC with the keys of the hub, from one as SuperGLUE distributes it, with its spans in `target`."""
    return {**{key: value for key, value in row.items() if key != "target"}, **row.get("target", {})}


def is_right_referent(row: Row) -> bool:
    """Whether the noun of a row of WSC is the right one."""
    return row.get("label") in (True, 1)


def wsc(row: Row) -> Example:
    """The text of WSC with its pronoun between asterisks, and the noun, be it right or not, with `label`."""
    found: Example = {
        "inputs": f"{PREFIX} {_with_pronoun_marked(row['text'], row['span2_text'], int(row['span2_index']))}",
        "targets": row["span1_text"],
        "label": int(row.get("label") or 0),
    }
    return found | ({"idx": row["idx"]} if "idx" in row else {})


def definite_pronoun(row: Row) -> Example:
    """A sentence of DPR with its first such pronoun marked, and the right one of two candidates."""
    pronoun = re.escape(row["pronoun"])
    text = re.sub(rf" ({pronoun})([ .,])", r" *\1*\2", row["sentence"], count=1)
    return {"inputs": f"{PREFIX} {text}", "targets": row["candidates"][int(row["label"])]}


def wnli(row: Row) -> Example:
    """The premise of WNLI with a pronoun marked, and what stands in its place in the hypothesis, with `label`.

    The pronoun is the one whose surroundings the hypothesis repeats best. For evaluation only: made for the development
    and test sets.

    Raises:
        DataError: No pronoun of the premise is replaced in the hypothesis.
    """
    premise, hypothesis = row["sentence1"], row["sentence2"]
    said, asked = _bare_words(premise), _bare_words(hypothesis)
    matches = [_Match.of(said, asked, place) for place, word in enumerate(said) if word in _PRONOUNS]
    best = max(matches, key=lambda match: match.num_shared, default=None)
    noun = _as_written(best.candidate, hypothesis) if best is not None and best.candidate else None
    if best is None or noun is None:
        raise DataError(
            f"no pronoun of {premise!r} is replaced in {hypothesis!r}\n"
            "  glue_wnli_v002_simple_eval is made for WNLI; evaluate glue_wnli_v002 on other rows"
        )
    found: Example = {
        "inputs": f"{PREFIX} {_with_word_marked(premise, best.place)}",
        "targets": noun,
        "premise": premise,
        "hypothesis": hypothesis,
        "label": int(row.get("label", 0)),
    }
    number = row.get("idx", row.get("index"))
    return found | ({} if number is None else {"idx": int(number)})


def _with_pronoun_marked(text: str, pronoun: str, place: int) -> str:
    """`text` with word number `place` between asterisks. Where that is not the pronoun, as in two rows of WSC, it is
    the nearest word that holds it."""
    words = text.split(" ")
    if place < len(words) and words[place] == pronoun:
        return " ".join([*words[:place], f"*{pronoun}*", *words[place + 1 :]])
    alike = re.compile(rf"(\W*)({re.escape(pronoun)})(\W*)", re.IGNORECASE)
    found = [(abs(at - place), at, match) for at, word in enumerate(words) if (match := alike.fullmatch(word))]
    if not found:
        raise DataError(f"the pronoun {pronoun!r} is not in {text!r}\n  mend span2_text of this row")
    _, at, match = min(found, key=lambda one: one[:2])
    parts = (match[1], f"*{match[2]}*", match[3])
    return " ".join([*words[:at], *(part for part in parts if part), *words[at + 1 :]]).strip()


def _bare_words(text: str) -> list[str]:
    """Small words without a mark at their end."""
    bare = (word[:-1] if word[-1:] and word[-1] in _MARKS else word for word in text.strip().lower().split(" "))
    return [word for word in bare if word]


@dataclass(frozen=True)
class _Match:
    """How well a hypothesis fits a premise around one of its pronouns."""

    place: int
    num_shared: int
    """Words before and behind the pronoun that the hypothesis has, too."""
    candidate: str
    """What it has between them."""

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
        # The words before may be left out where the noun begins the hypothesis, those behind where it ends it.
        patterns = ((left, "(.+)", right), ("^(.+)", right), (left, "(.+)$"))
        tried = (re.search(" ".join(part for part in pattern if part), text) for pattern in patterns)
        match = next((one for one in tried if one), None)
        return cls(place, num_before + num_behind, match[1] if match else "")


def _num_repeated(text: Sequence[str], words: Sequence[str]) -> int:
    """The most first `words` that stand side by side in `text`."""
    whole = " ".join(text)
    return next((num for num in range(len(words)) if " ".join(words[: num + 1]) not in whole), len(words))


def _with_word_marked(text: str, place: int) -> str:
    words = text.split(" ")
    word = words[place]
    marked = f"*{word[:-1]}* {word[-1]}" if word[-1:] and word[-1] in _MARKS else f"*{word}*"
    return " ".join([*words[:place], marked, *words[place + 1 :]])


def _as_written(candidate: str, hypothesis: str) -> str | None:
    """The candidate from its last article on as the hypothesis writes it, without a possessive; None: not there."""
    words = candidate.split(" ")
    first = max((words.index(article) for article in _ARTICLES if article in words), default=0)
    pattern = " ".join(rf"{re.escape(word)}[.,?!]?" for word in words[first:])
    match = re.search(pattern, hypothesis, re.IGNORECASE)
    if match is None:
        return None
    noun = match[0][:-1] if match[0][-1:] and match[0][-1] in _MARKS else match[0]
    return noun.removesuffix("'s") if noun.endswith("'s") else noun.removesuffix("'")
