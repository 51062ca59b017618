"""Learn Punkt's parameters from running text.

Source: Kiss and Strunk 2006 (https://aclanthology.org/J06-4003), sections 3 and 4, as in NLTK 3.10, whose trainer
learns the same parameters (tests/tokenizers/test_punkt_training.py).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from pretrainkit.errors import DataError
from pretrainkit.tokenizers.punkt import (
    BEGIN_LOWER,
    BEGIN_UPPER,
    INITIAL,
    INSIDE_LOWER,
    INSIDE_UPPER,
    NUMBER_TYPE,
    UNKNOWN_LOWER,
    UNKNOWN_UPPER,
    PunktParameters,
    first_bytes,
    word_pattern,
    word_type,
    word_without_period,
)

_MIN_ABBREVIATION, _MIN_STARTER, _MIN_COLLOCATION = 0.3, 30, 7.88
"""Minimum scores; the last two are log-likelihood ratios."""
_RARE = 5
"""Words seen less often than this are judged by the text that follows them."""
_LETTER, _LETTERS, _DOTS = re.compile(r"[^\W\d]"), re.compile(r"[^\W\d]+"), re.compile(r"\.{2,}")
_HANGUL = re.compile(r"[\uac00-\ud7a3]")
_UPPER = {"begin": BEGIN_UPPER, "inside": INSIDE_UPPER, "unknown": UNKNOWN_UPPER}
_LOWER = {"begin": BEGIN_LOWER, "inside": INSIDE_LOWER, "unknown": UNKNOWN_LOWER}


class _Token(NamedTuple):
    """Properties of a token that follow from the token and the abbreviations."""

    type: str
    word: str
    """`type`, without the period if a sentence ends with it."""
    is_break: bool
    is_special: bool
    """True for a number or an initial, whose period may belong to it."""
    next_context: str
    """Context of the next token: a key of `_UPPER`."""


def train_punkt(texts: Iterable[str], *, max_bytes: int = 4 << 20, where: str = "texts") -> PunktParameters:
    """Learn the parameters from running text. This takes one CPU second and 60 MB of memory per 4 MB of text.

    The sample consists of the beginnings of the texts, in their order, until `max_bytes` of UTF-8 are reached. Each
    text contributes at most an eighth of that, so that one book does not dominate a library. If all beginnings together
    are smaller than `max_bytes`, the remainders of the first texts are added. Equal texts give equal parameters. No
    more texts are read than are needed. Raises DataError, which names `where`, if the texts have no word.
    """
    sample: list[str] = []
    rests: list[str] = []
    num_bytes = 0
    for text in texts:
        begin = first_bytes(text, min(-(-max_bytes // 8), max_bytes - num_bytes))
        sample.append(begin)
        num_bytes += len(begin.encode())
        if num_bytes >= max_bytes:
            break
        rests.append(text[len(begin) : max_bytes])
    for rest in rests:
        sample.append(first_bytes(rest, max_bytes - num_bytes))
        num_bytes += len(sample[-1].encode())
    if not any(character.isalpha() for text in sample for character in text):
        raise DataError(
            f"{where}: no words to learn Punkt parameters from in {len(sample)} documents of {num_bytes} bytes\n"
            "  give running text, or use --splitter newline, regex or none"
        )
    learned = learn("\n\n".join(sample))
    # Korean sentences end in one of a few short verbs, which always have a period and so look like abbreviations.
    return replace(learned, abbreviations=frozenset(w for w in learned.abbreviations if not _HANGUL.search(w)))


def learn(text: str) -> PunktParameters:
    """Learn the parameters of a text whose paragraphs are separated by empty lines. Equal texts give equal
    parameters."""
    split = word_pattern("nltk").findall
    lines = [split(line) for line in text.split("\n")]
    counts, num_periods = Counter[str](), 0
    for token, count in Counter(chain.from_iterable(lines)).items():
        counts[word_type(token)] += count
        num_periods += count * token.endswith(".")
    total = counts.total()
    abbreviations = {
        type_[:-1]
        for type_ in counts
        if type_[-1] == "."
        and _LETTER.search(type_)
        and _unit_score(type_, counts, num_periods / total) >= _MIN_ABBREVIATION
    }
    known: dict[str, _Token] = {}
    orthography, num_breaks = Counter[str](), 0
    after_periods = Counter[tuple[str, str]]()
    previous = "\n"
    for token, context in _in_context(lines, abbreviations, known):
        seen = known[token]
        flag = _LOWER[context] if token[0].islower() else _UPPER[context] if token[0].isupper() else 0
        orthography[seen.word] |= flag
        num_breaks += seen.is_break
        if previous[-1] == ".":
            after_periods[previous, token] += 1
        previous = token

    starters, pairs = Counter[str](), Counter[tuple[str, str]]()
    for (before, after), count in after_periods.items():
        first, second = known[before], known[after]
        if not first.is_break:
            continue
        if _is_rare_abbreviation(first.word, after, orthography[second.word], counts):
            abbreviations.add(first.word)
        if not first.is_special and _LETTERS.fullmatch(after):
            starters[second.type] += count
        if first.is_special and _LETTER.search(first.type) and _LETTER.search(second.type):
            pairs[word_without_period(before), second.word] += count

    def seen_in_all(word: str) -> int:
        return counts[word] + counts[f"{word}."]

    sentence_starters = {
        word
        for word, count in starters.items()
        if _pair_score(num_breaks, seen_in_all(word), count, total) >= _MIN_STARTER
        and total / num_breaks > seen_in_all(word) / count
    }
    collocations = {
        (first, second)
        for (first, second), count in pairs.items()
        if second not in sentence_starters
        and 1 < count <= min(seen_in_all(first), seen_in_all(second))
        and _pair_score(seen_in_all(first), seen_in_all(second), count, total) >= _MIN_COLLOCATION
        and total / seen_in_all(first) > seen_in_all(second) / count
    }
    return PunktParameters(
        abbreviations=frozenset(abbreviations),
        collocations=frozenset(collocations),
        sentence_starters=frozenset(sentence_starters),
        orthography={word: contexts for word, contexts in orthography.items() if contexts},
    )


def _in_context(lines: list[list[str]], abbreviations: set[str], known: dict[str, _Token]) -> Iterator[tuple[str, str]]:
    """Yield each token with its context, and store its properties in `known`."""
    context, is_after_empty = "inside", False
    for line in lines:
        is_first = True
        for token in line:
            if is_first:
                # An empty line ends a sentence, except after an abbreviation. Any other line break may end one.
                if is_after_empty and context != "unknown":
                    context = "begin"
                elif context == "inside":
                    context = "unknown"
                is_first = False
            seen = known.get(token)
            if seen is None:
                seen = known[token] = _seen(token, abbreviations)
            yield token, context
            context = seen.next_context
        is_after_empty = not line


def _seen(token: str, abbreviations: set[str]) -> _Token:
    type_ = word_type(token)
    is_special = type_.startswith(NUMBER_TYPE) or INITIAL.fullmatch(token) is not None
    if token[-1] not in ".?!" or (len(token) > 1 and token[-1] != "."):
        return _Token(type_, type_, False, is_special, "inside")
    before = token[:-1].lower()
    if _DOTS.fullmatch(token) or before in abbreviations or before.rpartition("-")[2] in abbreviations:
        return _Token(type_, type_, False, is_special, "unknown")
    if token.endswith(".."):
        return _Token(type_, type_, False, is_special, "inside")
    return _Token(type_, word_without_period(token), True, is_special, "unknown" if is_special else "begin")


def _unit_score(type_: str, counts: Counter[str], share_of_periods: float) -> float:
    """Score how much a word and its period are one unit (section 3). Short words with inner periods score high, and
    words that never occur without the last period."""
    word = type_[:-1]
    with_period, without = counts[type_], counts[word]
    num_others = len(word) - word.count(".")
    independent = with_period * math.log(share_of_periods + 1e-8) + without * math.log(1 - share_of_periods + 1e-8)
    dependent = with_period * math.log(0.99) + without * math.log(1 - 0.99)
    penalty = float(num_others) ** -without
    return -2 * (independent - dependent) * math.exp(-num_others) * (word.count(".") + 1) * penalty


def _is_rare_abbreviation(word: str, after: str, seen_after: int, counts: Counter[str]) -> bool:
    """True if the sentence continues after a rare word with a period: a comma or the like follows, or a lower-case word
    that has an upper-case letter only at the beginning of sentences."""
    if counts[word] + counts[word[:-1]] >= _RARE:  # NLTK also counts the word without its last letter; so do we
        return False
    return after[0] in ",:;" or (after[0].islower() and seen_after & (BEGIN_UPPER | INSIDE_UPPER) == BEGIN_UPPER)


def _pair_score(count_a: int, count_b: int, count_both: int, total: int) -> float:
    """Return Dunning's log-likelihood ratio of two words that occur together `count_both` times (section 4)."""
    if count_b < count_both:
        return 0
    alone, outside = count_b - count_both, total - count_a
    apart = _log_likelihood(count_both, count_a, count_b / total) + _log_likelihood(alone, outside, count_b / total)
    together = _log_likelihood(count_both, count_a, count_both / count_a)
    if outside:
        together += _log_likelihood(alone, outside, alone / outside)
    return -2 * (apart - together)


def _log_likelihood(num: int, num_draws: int, probability: float) -> float:
    """Return the log-likelihood of `num` successes in `num_draws` draws; 0 if the probability is 0 or 1."""
    if not 0 < probability < 1:
        return 0
    return num * math.log(probability) + (num_draws - num) * math.log(1 - probability)
