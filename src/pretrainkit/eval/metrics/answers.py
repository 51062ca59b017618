"""Metrics of short answers to questions, in percent: SQuAD's and TriviaQA's, those of answers that belong together,
and of the Winograd schemas as text.

Where examples belong together (answers to one question, or copies of one question), targets are mappings with a
`value`, which the metric of single examples takes, and a `group`, which is equal; predictions are mappings with a
`value`.

Sources: Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250; Rajpurkar et al. 2018,
https://arxiv.org/abs/1806.03822; Joshi et al. 2017, https://arxiv.org/abs/1705.03551.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from pretrainkit.eval.metrics.classes import accuracy, check_pairs, f1_invalid_wrong

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_WORD = re.compile(r"\W")
_TRIVIA_PUNCTUATION = string.punctuation + "‘’´`_"
NO_ANSWER = -1
"""What an empty answer is: no class, so that it is never right."""
_DETERMINER = re.compile(
    "a|an|few|her|his|each|every|many|much|my|our|some|that|the|their|these|this|those|which|whose|your"
)

Grouped = Mapping[str, Any]


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

    Targets are for each question all answers that are right (one text stands for itself).
    """
    return _best_of(targets, predictions, normalize_squad)


def squad_v2(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """`em` and `f1` as SQuAD 2.0 has them, where a question may have no answer: then only an empty text is right.

    Targets are for each question all answers that are right; none: it has no answer.
    """
    check_pairs(targets, predictions)
    scores = [v2_scores(answers, said) for answers, said in zip(targets, predictions, strict=True)]
    return {
        "em": 100 * sum(equal for equal, _ in scores) / len(scores),
        "f1": 100 * sum(f1 for _, f1 in scores) / len(scores),
    }


def best_null_threshold(
    targets: Sequence[Sequence[str]], predictions: Sequence[str], null_odds: Sequence[float]
) -> tuple[float, float]:
    """With which threshold the F1 of SQuAD 2.0 is highest, chosen on the very questions it is for.

    Args:
        targets: As for `squad_v2`.
        predictions: What is answered where an answer is given.
        null_odds: Of each question, how much better no answer is than that.

    Returns:
        (threshold, f1 in percent): questions with odds above it are answered with nothing. Of equal ones the lowest.
    """
    check_pairs(targets, predictions)
    order = sorted(range(len(targets)), key=null_odds.__getitem__)
    total = float(sum(not _real(answers) for answers in targets))
    best, threshold = total, float(min(null_odds)) - 1.0
    for place, number in enumerate(order):
        total += v2_scores(targets[number], predictions[number])[1] - (not _real(targets[number]))
        is_last_of_its_odds = place + 1 == len(order) or null_odds[order[place + 1]] > null_odds[number]
        if total > best and is_last_of_its_odds:
            best, threshold = total, float(null_odds[number])
    return threshold, 100 * best / len(targets)


def v2_scores(answers: Sequence[str], said: str) -> tuple[bool, float]:
    """(equal to one of the answers, the highest F1 with one of them), by the rules of SQuAD 2.0."""
    given = normalize_squad(said)
    right = _real(answers) or [""]
    return given in right, max(
        _word_f1(answer, given) if answer and given else float(answer == given) for answer in right
    )


def _real(answers: Sequence[str]) -> list[str]:
    """Normalised; those that are empty are none."""
    return [text for answer in answers if (text := normalize_squad(answer))]


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


def multirc_f1_and_exact_match(targets: Sequence[Grouped], predictions: Sequence[Grouped]) -> dict[str, float]:
    """`f1` over all answers of all questions (see `f1_invalid_wrong`), and `exact_match`: the questions of which every
    answer was judged rightly. In percent.

    Source: Khashabi et al. 2018, https://aclanthology.org/N18-1023.
    """
    check_pairs(targets, predictions)
    is_right: dict[Hashable, bool] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        group = target["group"]
        is_right[group] = is_right.get(group, True) and target["value"] == prediction["value"]
    found = f1_invalid_wrong([one["value"] for one in targets], [one["value"] for one in predictions])
    return found | {"exact_match": 100 * sum(is_right.values()) / len(is_right)}


def deduplicated_squad(targets: Sequence[Grouped], predictions: Sequence[Grouped]) -> dict[str, float]:
    """`squad` of the first example of each group: for ReCoRD, where every right answer makes an example of its own."""
    check_pairs(targets, predictions)
    first: dict[Hashable, tuple[Any, Any]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        first.setdefault(target["group"], (target["value"], prediction["value"]))
    answers, said = zip(*first.values(), strict=True)
    return squad(answers, said)


def wsc_accuracy(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """`accuracy` of classes that `same_referent` made of the answers: a target is 1 where the noun in the data is the
    right one, so an answer must differ from a wrong noun."""
    return accuracy(targets, predictions)


def same_referent(answer: str, noun: str) -> int:
    """1 where an answer means `noun`, 0 where it means something else, `NO_ANSWER` where it is empty.

    Small and capital letters and determiners do not count. The words of one must all be words of the other, so "bunny"
    means "the fuzzy bunny"; but not if only one of them has an apostrophe ("Mark's" is not "Mark").

    Source: Raffel et al. 2020, section 2.4, https://arxiv.org/abs/1910.10683.
    """
    said, wanted = _words(answer), _words(noun)
    if not said:
        return NO_ANSWER
    if any("'" in word for word in said) != any("'" in word for word in wanted):
        return 0
    return int(said <= wanted or wanted <= said)


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


def _words(text: str) -> set[str]:
    return {word for word in text.lower().split() if not _DETERMINER.fullmatch(word)}
