"""Metrics of short answers to questions, in percent: SQuAD's and TriviaQA's.

Sources: Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250; Joshi et al. 2017, https://arxiv.org/abs/1705.03551.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretrainkit.eval.metrics.pairs import check_pairs

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_WORD = re.compile(r"\W")
_TRIVIA_PUNCTUATION = string.punctuation + "‘’´`_"


def normalize_squad(answer: str) -> str:
    """Small letters, no punctuation, no articles, single spaces."""
    return _without_articles(answer.lower().translate(str.maketrans("", "", string.punctuation)))


def normalize_trivia_qa(answer: str) -> str:
    """As `normalize_squad`, but punctuation, curly and accent quotes too, becomes a space."""
    return _without_articles(
        answer.lower().translate(str.maketrans(_TRIVIA_PUNCTUATION, " " * len(_TRIVIA_PUNCTUATION)))
    )


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """`em` and `f1`: equal to one of the answers, and words shared with the one with which most are, averaged.

    Args:
        targets: For each question all answers that are right (one text stands for itself).
        predictions: One text each.
    """
    return _best_of(targets, predictions, normalize_squad)


def trivia_qa(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """As `squad`, with TriviaQA's idea of equal texts."""
    return _best_of(targets, predictions, normalize_trivia_qa)


def span_squad(targets: Sequence[Mapping[str, Any]], predictions: Sequence[str]) -> dict[str, float]:
    """As `squad`, of answers that are given as places in the text: "start: 3 end: 5".

    Args:
        targets: `answers` and `context`. Words are what lies between characters that are no letters or digits; the
            first is number 0, and the word at `end` belongs to the answer.
        predictions: What is no such place is an empty answer.
    """
    check_pairs(targets, predictions)
    said = [span_text(target["context"], text) for target, text in zip(targets, predictions, strict=True)]
    return squad([target["answers"] for target in targets], said)


def span_text(context: str, span: str) -> str:
    """The words of `context` at "start: 3 end: 5"; empty where that is no place in it."""
    words = _NO_WORD.sub(" ", span).split()
    if len(words) < 4 or not (words[1].isdecimal() and words[3].isdecimal()):
        return ""
    return " ".join(_NO_WORD.sub(" ", context).split()[int(words[1]) : int(words[3]) + 1])


def _best_of(
    targets: Sequence[Sequence[str]], predictions: Sequence[str], normalize: Callable[[str], str]
) -> dict[str, float]:
    check_pairs(targets, predictions)
    num_equal, shared = 0, 0.0
    for answers, prediction in zip(targets, predictions, strict=True):
        said = normalize(prediction)
        right = [normalize(answer) for answer in ([answers] if isinstance(answers, str) else answers)]
        num_equal += said in right
        shared += max((_word_f1(answer, said) for answer in right), default=0.0)
    return {"em": 100 * num_equal / len(targets), "f1": 100 * shared / len(targets)}


def _word_f1(answer: str, said: str) -> float:
    answer_words, said_words = Counter(answer.split()), Counter(said.split())
    num_shared = (answer_words & said_words).total()
    return 2 * num_shared / (answer_words.total() + said_words.total()) if num_shared else 0.0


def _without_articles(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text).split())
