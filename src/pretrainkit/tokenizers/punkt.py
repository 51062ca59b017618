"""Punkt: sentence boundaries from abbreviations, collocations and the case of words, learned without supervision.

Source: Kiss and Strunk 2006, "Unsupervised Multilingual Sentence Boundary Detection",
https://aclanthology.org/J06-4003. NLTK has the maintained implementation. We train with it, on the user's own text,
because no package index carries its English parameters; but we split by ourselves: the same rules, looked up for
a candidate's two neighbours instead of tokenising them again, at equal output (tests compare whole documents and random
text). On English novels NLTK's splitter handles 2.8 MB per CPU-second, this one 24 in the same run (8.7 times as much),
and no import of NLTK (1.4 CPU-seconds) is needed to encode.

Others, on 0.3 MB of a novel, in MB per CPU-second and agreement of boundaries with Punkt (F1): this one 52, sentencex
1.0.32 85 (0.89), blingfire 0.1.8 31 (returns altered text), segtok 1.5.11 1.6 (0.98), pysbd 0.3.4 0.3 (0.33). Only
sentencex is faster, but it has fixed rules per language, ends sentences at blank lines, and cannot learn from the text.

What follows for users: newlines are no boundaries, so a heading without a full stop merges with the sentence behind
it; quotes and brackets that close behind a full stop stay with their sentence; "…", "。" and the like are no endings.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from pretrainkit.errors import DataError

_CANNOT_BE_INSIDE = r"""[)";}\]*:@'({\[‘’“”«»?!]"""
_RUNS = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"
_WORD = re.compile(
    rf"""{_RUNS}|(?=[^("`{{\[:;&#*@)}}\]\-,])\S+?(?=\s|$|{_CANNOT_BE_INSIDE}|{_RUNS}|,(?=$|\s|{_CANNOT_BE_INSIDE}|{_RUNS}))|\S"""
)
_CANDIDATE = re.compile(rf"[.?!](?={_CANNOT_BE_INSIDE}|\s+(\S+))")
_CLOSING = frozenset("\"')]}‘’“”«»")
_REALIGN = re.compile(r"""["')\]}‘’“”«»]+?(?:\s+|(?=--)|$)""", re.MULTILINE)
_ASCII_BLANKS = " \t\n\r\x0b\x0c"
_BLANKS = re.compile(f"[{_ASCII_BLANKS}]")
_NUMERIC = re.compile(r"^-?[.,]?\d[\d,.\-]*\.?$")
_INITIAL = re.compile(r"[^\W\d]\.$")
_ELLIPSIS = re.compile(r"\.\.+$")
_PUNCTUATION = frozenset(";:,.!?")
_NUMBER = "##number##"
_BEGINS_LOWER = 1 << 4
_INSIDE_UPPER = 1 << 2
_UPPER = 1 << 1 | 1 << 2 | 1 << 3
_LOWER = 1 << 4 | 1 << 5 | 1 << 6
_MAX_REMEMBERED = 1 << 18
FORMAT = "pretrainkit punkt 1"


@dataclass(frozen=True)
class Punkt:
    """Parameters of a language and a kind of text, and the splitting by them."""

    abbreviations: frozenset[str]
    """Lower case, without the final period."""
    collocations: frozenset[tuple[str, str]]
    """Pairs of types around a period that does not end a sentence."""
    starters: frozenset[str]
    """Types that often begin a sentence."""
    orthography: Mapping[str, int]
    """Type to bits: in which places it was seen in upper and lower case."""
    _decisions: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    def split(self, text: str) -> list[str]:
        """The sentences of `text` in order, without the white space between them."""
        return [text[begin:end] for begin, end in self.spans(text)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """(begin, end) of each sentence. Empty ones are left out."""
        cuts = self._cuts(text)
        cuts.append((len(text.rstrip()), len(text)))
        spans, begin = [], 0
        realigned = 0
        for index, (end, following) in enumerate(cuts):
            start, begin = begin + realigned, following
            realigned = 0
            closing = None
            if index + 1 < len(cuts) and text[following : following + 1] in _CLOSING:
                # Quotes and brackets that close behind the full stop move from the next sentence to this one.
                closing = _REALIGN.match(text, following, max(following, cuts[index + 1][0]))
            if closing:
                spans.append((start, following + len(closing[0].rstrip())))
                realigned = closing.end() - following
            elif start < end:
                spans.append((start, end))
        return spans

    def _cuts(self, text: str) -> list[tuple[int, int]]:
        """(end of a sentence, begin of the next) for every boundary."""
        cuts: list[tuple[int, int]] = []
        find_blank, uncertain = text.rfind, self._uncertain
        searched = chunk_begin = 0  # the chunk: from the last blank before a candidate to the candidate
        waiting: tuple[int, int, str] | None = None
        for match in _CANDIDATE.finditer(text):
            place = match.start()
            begin = find_blank(" ", searched, place) + 1
            word = text[begin:place]
            if not begin or not word.isalpha():
                begin, word = _chunk(text, searched, place, chunk_begin)
            if waiting is not None:
                # A candidate within the same chunk takes the place of the one before.
                if waiting[0] <= begin and self._is_boundary(waiting[2]):
                    cuts.append((waiting[0] + 1, waiting[1]))
                waiting = None
            searched, chunk_begin = place, begin
            following = match.start(1)
            if following < 0:
                waiting = (place, place + 1, text[begin : place + 2])
            elif text[place + 1] not in _ASCII_BLANKS:
                waiting = (place, following, text[begin : match.end(1)])
            elif (text[place] != "." or (word.isalpha() and word.lower() not in uncertain and len(word) > 1)) or (
                self._is_boundary(text[begin : match.end(1)])
            ):
                cuts.append((place + 1, following))
        if waiting is not None and self._is_boundary(waiting[2]):
            cuts.append((waiting[0] + 1, waiting[1]))
        return cuts

    @cached_property
    def _uncertain(self) -> frozenset[str]:
        """Words behind which a period needs a closer look."""
        return self.abbreviations | {first for first, _ in self.collocations}

    def _is_boundary(self, context: str) -> bool:
        """Whether a sentence ends inside `context`: the chunk with the candidate, and what follows it."""
        decision = self._decisions.get(context)
        if decision is None:
            if len(self._decisions) >= _MAX_REMEMBERED:
                self._decisions.clear()
            decision = self._decisions[context] = self._decide(context)
        return decision

    def _decide(self, context: str) -> bool:
        words = [word for line in context.split("\n") for word in _WORD.findall(line)]
        return any(self._ends_sentence(word, following) for word, following in pairwise(words))

    def _ends_sentence(self, word: str, following: str) -> bool:
        is_ellipsis = bool(_ELLIPSIS.match(word))
        is_break, is_abbreviation = self._first_pass(word)
        if not word.endswith("."):
            return is_break
        kind = _without_period(_type(word))
        next_kind = _type(following)
        if self._first_pass(following)[0]:
            next_kind = _without_period(next_kind)
        is_initial = bool(_INITIAL.match(word))
        if (kind, next_kind) in self.collocations:
            return False
        if (is_abbreviation or is_ellipsis) and not is_initial:
            if self._starts_sentence(following, next_kind):
                return True
            if following[0].isupper() and next_kind in self.starters:
                return True
        if is_initial or kind == _NUMBER:
            starts = self._starts_sentence(following, next_kind)
            is_always_upper = following[0].isupper() and not self.orthography.get(next_kind, 0) & _LOWER
            if starts is False or (starts is None and is_initial and is_always_upper):
                return False
        return is_break

    def _first_pass(self, word: str) -> tuple[bool, bool]:
        """(ends a sentence, is an abbreviation), by the word alone."""
        if word in (".", "?", "!"):
            return True, False
        if not word.endswith(".") or word.endswith(".."):
            return False, False
        bare = word[:-1].lower()
        is_abbreviation = bare in self.abbreviations or bare.rsplit("-", 1)[-1] in self.abbreviations
        return not is_abbreviation, is_abbreviation

    def _starts_sentence(self, word: str, kind: str) -> bool | None:
        """By the case in which the word was seen elsewhere; None: undecided."""
        if word in _PUNCTUATION:
            return False
        seen = self.orthography.get(kind, 0)
        if word[0].isupper() and seen & _LOWER and not seen & _INSIDE_UPPER:
            return True
        if word[0].islower() and (seen & _UPPER or not seen & _BEGINS_LOWER):
            return False
        return None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; equal parameters give equal text."""
        return {
            "format": FORMAT,
            "abbreviations": sorted(self.abbreviations),
            "collocations": [list(pair) for pair in sorted(self.collocations)],
            "starters": sorted(self.starters),
            "orthography": dict(sorted(self.orthography.items())),
        }

    @classmethod
    def from_dict(cls, content: Any, where: str) -> "Punkt":
        """From `as_dict`.

        Raises:
            DataError: It is something else; `where` names the file.
        """
        try:
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}")
            orthography = {str(key): int(value) for key, value in content["orthography"].items()}
            pairs = frozenset((str(first), str(second)) for first, second in content["collocations"])
            return cls(frozenset(content["abbreviations"]), pairs, frozenset(content["starters"]), orthography)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{where} does not hold parameters of a sentence splitter: {error!r}\n"
                "  remove it, and they will be learned from the text that is encoded"
            ) from error


def train_punkt(texts: Iterable[str]) -> Punkt:
    """Learns parameters from documents. Takes about 2.5 CPU-seconds per MB; a few MB are enough."""
    from nltk.tokenize.punkt import PunktTrainer

    trainer = PunktTrainer()
    trainer.train("\n\n".join(texts), finalize=True)
    found = trainer.get_params()
    return Punkt(
        frozenset(found.abbrev_types),
        frozenset((str(first), str(second)) for first, second in found.collocations),
        frozenset(found.sent_starters),
        {kind: bits for kind, bits in found.ortho_context.items() if bits},
    )


def _chunk(text: str, searched: int, place: int, begin: int) -> tuple[int, str]:
    """Where the chunk that ends at `place` begins, and its text. Without a blank, the chunk `begin` goes on."""
    chunk = text[searched:place]
    blanks = [match.end() for match in _BLANKS.finditer(chunk)]
    if blanks and blanks[-1] > 1:
        begin = searched + blanks[-1]
    return begin, text[begin:place]


def _type(word: str) -> str:
    return _NUMERIC.sub(_NUMBER, word.lower())


def _without_period(kind: str) -> str:
    return kind[:-1] if len(kind) > 1 and kind[-1] == "." else kind
