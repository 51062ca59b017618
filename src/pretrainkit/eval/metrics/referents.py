"""The Winograd schemas as text: does an answer name the noun that a pronoun stands for?"""

import re
from collections.abc import Sequence

from pretrainkit.eval.metrics.classes import accuracy

NO_ANSWER = -1
"""What an empty answer is: no class, so that it is never right."""
_DETERMINER = re.compile(
    "a|an|few|her|his|each|every|many|much|my|our|some|that|the|their|these|this|those|which|whose|your"
)


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


def _words(text: str) -> set[str]:
    return {word for word in text.lower().split() if not _DETERMINER.fullmatch(word)}
