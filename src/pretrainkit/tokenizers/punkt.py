"""Punkt: sentence boundaries from what a text itself shows about its abbreviations, initials and sentence starters.

Source: Kiss and Strunk 2006, "Unsupervised Multilingual Sentence Boundary Detection", https://aclanthology.org/J06-4003,
with the deviations of NLTK and of the Punkt crate that Sabertooth uses.

The maintained implementation is NLTK's. Its tokenizer is slower than a subword tokenizer, so `PunktSplitter` makes its
decisions: candidates by one compiled expression, and each decision remembered by the text it depends on
(benchmarks/sentences.py compares them, and other packages). Parameters are learned from one's own text
(punkt_training.py): PyPI carries none, and these fit better.

Common abbreviations of a language can be added to what was learned (abbreviations.py); docs/tokenizers.md says what
that is worth. Boundaries are then no longer NLTK's, and the speed is the same.

Newlines are no boundaries: a heading without a stop goes with the sentence behind it. "…" is none either.

Rules:
    default     those of NLTK, but `. . .` is an ellipsis as `...` is (NLTK: three sentences; 0.8 % in 60 novels),
                no-break and other Unicode spaces stand between words as ASCII ones do, and stops of other scripts end
                sentences, too (NLTK: a document in Chinese or Hindi is one sentence)
    nltk        the boundaries of NLTK 3.10: closing quotes and brackets belong to the sentence that they close
    sabertooth  as `default`, but closing quotes and brackets open the next sentence, curly quotes end no word, a single
                last word is no sentence of its own, and spaces around the text are kept
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.tokenizers.abbreviations import LANGUAGES
from pretrainkit.tokenizers.stops import FREE_STOPS, SPACED_STOPS, cut_at, stop_pattern

PunktRules = Literal["default", "nltk", "sabertooth"]
FORMAT: Final = "pretrainkit-punkt"
VERSION: Final = 1

# Where a word was seen, as NLTK's bits: at the beginning of a sentence, inside one, or unknown; upper or lower case.
BEGIN_UPPER, INSIDE_UPPER, UNKNOWN_UPPER, BEGIN_LOWER, INSIDE_LOWER, UNKNOWN_LOWER = (1 << bit for bit in range(1, 7))
ANY_UPPER = BEGIN_UPPER | INSIDE_UPPER | UNKNOWN_UPPER
ANY_LOWER = BEGIN_LOWER | INSIDE_LOWER | UNKNOWN_LOWER

_CURLY = "\u2018\u2019\u201c\u201d\xab\xbb"
_CLOSING = "\"')]}" + _CURLY
_REALIGN = re.compile(rf"[{re.escape(_CLOSING)}]+?(?:\s+|(?=--)|$)", re.MULTILINE)
_NO_WORD = r"?!)\";}\]*:@'({\["
"""What ends a word, as the inside of a character class."""
_SEVERAL = r"-{2,}|\.{2,}|\.(?:\s\.){2,}"
NUMBER_TYPE = "##number##"
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
INITIAL = re.compile(r"[^\W\d]\.")
_ELLIPSIS = re.compile(r"\.(?:\s?\.)+")
_ASCII_SPACES = "\n\t\r\v\f"
_SPACES = (
    _ASCII_SPACES
    + "\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    + "".join(map(chr, range(0x2000, 0x200B)))
)

_OTHER_STOPS = re.compile(f"[{SPACED_STOPS}{FREE_STOPS}]")
_OTHER_STOP = stop_pattern(SPACED_STOPS)

_MAX_REMEMBERED = 200_000
"""Decisions kept by one splitter (about 25 MB); then it starts afresh."""
_MAX_REMEMBERED_LENGTH = 48
_ADVICE = (
    "learn the parameters again: pretrainkit tokenizer train, or pretrainkit.tokenizers.punkt_training.train_punkt"
)


@dataclass(frozen=True)
class PunktParameters:
    """What Punkt knows about a language. Words are lower case, numbers are `##number##`."""

    abbreviations: frozenset[str]
    """Without their last period."""
    collocations: frozenset[tuple[str, str]]
    """Words around a period that does not end a sentence."""
    sentence_starters: frozenset[str]
    orthography: dict[str, int]
    """Word to the contexts it was seen in: a sum of BEGIN_UPPER ... UNKNOWN_LOWER."""
    language: str | None = None
    """Whose common abbreviations were added; None: none."""
    titles: frozenset[str] = frozenset()
    """Of the abbreviations, those that stand before names and end no sentence (rules `default`)."""
    listed: frozenset[str] = frozenset()
    """Of the abbreviations, those that end a sentence before a capital only if it begins a sentence starter (rules
    `default`): what was learned from other text says little about the names that follow them."""

    def as_dict(self) -> dict[str, Any]:
        """As it is written: sorted, so that equal parameters give equal files."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "abbreviations": sorted(self.abbreviations),
            "collocations": sorted(list(pair) for pair in self.collocations),
            "sentence_starters": sorted(self.sentence_starters),
            "orthography": dict(sorted(self.orthography.items())),
        } | (
            {"language": self.language, "titles": sorted(self.titles), "listed": sorted(self.listed)}
            if self.language
            else {}
        )

    @property
    def fingerprint(self) -> str:
        return _digest(self.as_dict())

    def with_abbreviations(self, words: Iterable[str]) -> "PunktParameters":
        """These, and words that end with a period but no sentence. Their case and last period do not count."""
        more = {word.lower().removesuffix(".") for word in words}
        return replace(self, abbreviations=self.abbreviations | more)

    def with_language(self, code: str) -> "PunktParameters":
        """These, and the common abbreviations of a language of abbreviations.py, and what follows them."""
        language = LANGUAGES[code]
        before = {(word, NUMBER_TYPE) for word in language.before_numbers}
        # An abbreviation keeps its period where Punkt looks at the word after a number: "5. Feb."
        after = {(NUMBER_TYPE, form) for word in language.after_numbers for form in (word, f"{word}.")}
        return replace(
            self,
            abbreviations=self.abbreviations | language.titles | language.others,
            collocations=self.collocations | before | after,
            sentence_starters=self.sentence_starters | language.starters,
            language=code,
            titles=language.titles,
            listed=language.others,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, whole or not at all."""
        with atomic_file(Path(path)) as file:
            file.write(json.dumps(self.as_dict(), ensure_ascii=False, indent=0).encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PunktParameters":
        """Read what `save` wrote. Raises DataError where the file is missing, of another version or broken."""
        try:
            raw = Path(path).read_bytes()
            content = json.loads(raw)
        except OSError as error:
            raise DataError(f"Punkt parameters {path} cannot be read: {error.strerror}\n  {_ADVICE}") from error
        except ValueError as error:
            raise DataError(f"Punkt parameters {path} are no JSON: {error}\n  {_ADVICE}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"{path} holds no Punkt parameters (no format {FORMAT!r})\n  {_ADVICE}")
        if content.get("version") != VERSION:
            given = content.get("version")
            raise DataError(f"Punkt parameters {path} have version {given}; this release reads {VERSION}\n  {_ADVICE}")
        try:
            return TypeAdapter(cls).validate_json(raw, strict=True)
        except ValidationError as error:
            broken = ", ".join(dict.fromkeys(str(problem["loc"][0]) for problem in error.errors()))
            raise DataError(f"Punkt parameters {path} are broken in {broken}\n  {_ADVICE}") from error


def _digest(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def read_abbreviations(path: str | os.PathLike[str]) -> list[str]:
    """Abbreviations from a file: one in each line, such as `approx.`; empty lines and lines with # do not count. Raises
    DataError where it cannot be read, is not UTF-8, or a line holds several words."""
    try:
        lines = Path(path).read_bytes().decode().splitlines()
    except OSError as error:
        raise DataError(f"abbreviations {path} cannot be read: {error.strerror}\n  check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"abbreviations {path} are not UTF-8: {error}\n  save the file as UTF-8") from error
    words = []
    for number, line in enumerate(lines, 1):
        found = line.split()
        if not found or found[0].startswith("#"):
            continue
        if len(found) > 1 or not found[0].rstrip("."):
            raise DataError(
                f"abbreviations {path}, line {number}: {line.strip()!r} is not one word\n"
                "  write one abbreviation per line, such as approx."
            )
        words.append(found[0])
    return words


def first_bytes(text: str, num: int) -> str:
    """The beginning of a text, as much as fits into `num` bytes of UTF-8; lone surrogates become question marks."""
    return text[:num].encode(errors="replace")[:num].decode(errors="ignore")


class PunktSplitter:
    """Text to sentences. Picklable; calls are independent of each other.

    Candidates are stops (`.`, `?`, `!`) before a space and another word, or before a character that ends words. Several
    in one run of non-spaces count as one, at the last. Whether a sentence ends there depends on this run and, unless a
    plain word ends it, on what follows; decisions are remembered by these. The time is linear in the text.
    """

    def __init__(self, parameters: PunktParameters, rules: PunktRules = "default") -> None:
        self.parameters = parameters
        self.rules = rules
        self.settings: dict[str, Any] = {"name": "punkt", "rules": rules, "parameters": parameters.fingerprint}
        if rules == "default":
            self.settings["version"] = 2  # 1 did not know the stops of other scripts
        self.fingerprint = _digest(self.settings)
        no_word = _no_word(rules)
        stop, space, other = r"[.?!]", r"\s", r"\S"
        if rules != "nltk":
            space, other = " ", "[^ ]"  # `_sentences` made all spaces so
            # An ellipsis with spaces is one stop, and so is a stop before a lone period.
            stop += r"(?:(?! \.(?: |$))|(?<=\.)(?<!\. \.)(?: \.){2,}+)"
        next_word = rf"({other}++)(?={space})" if rules == "sabertooth" else rf"({other}++)"
        self._candidates = re.compile(rf"{stop}(?=([{no_word}]|{space}++{next_word}))")
        self._word = word_pattern(rules)
        self._titles = parameters.titles if rules == "default" else frozenset[str]()
        self._listed = parameters.listed if rules == "default" else frozenset[str]()
        self._collocated = frozenset(first for first, _ in parameters.collocations)
        self._certain: set[str] = set()
        self._uncertain: dict[str, bool] = {}

    def __reduce__(self) -> tuple[type["PunktSplitter"], tuple[PunktParameters, PunktRules]]:
        return PunktSplitter, (self.parameters, self.rules)

    def __call__(self, text: str) -> list[str]:
        """Sentences of a document, without the spaces around them; none is empty."""
        sentences = self._sentences(text)
        # Of a sentence it is known whether it is ASCII: no search in most sentences of a text with some curly quotes.
        if self.rules != "default" or not any(_OTHER_STOPS.search(s) for s in sentences if not s.isascii()):
            return sentences
        parts = (part.strip() for sentence in sentences for part in cut_at(_OTHER_STOP, sentence))
        return [part for part in parts if part]

    def _sentences(self, text: str) -> list[str]:
        """By the stops that Punkt knows."""
        flat = text
        for space in _ASCII_SPACES if self.rules == "nltk" else _SPACES:
            flat = flat.replace(space, " ")
        realigns = self.rules != "sabertooth"
        start, end = (len(text) - len(text.lstrip()), len(text.rstrip())) if realigns else (0, len(text))
        sentences = []
        for run, candidate in self._runs(flat):
            stop, next_start = candidate.end(), candidate.start(2)
            head = flat[run:stop]
            if head not in self._certain and not self._decide(head, flat[stop : candidate.end(1)]):
                continue
            if next_start < 0:
                next_start = stop
            if realigns and text[next_start] in _CLOSING and (closing := _REALIGN.match(text, next_start, end)):
                stop, next_start = next_start + len(closing.group().rstrip()), closing.end()
            sentences.append(text[start:stop])
            start = next_start
        if start < end and not text[start:end].isspace():
            sentences.append(text[start:end])
        return sentences

    def _runs(self, flat: str) -> Iterator[tuple[int, re.Match[str]]]:
        """(Start of a run of non-spaces, last candidate in it), as NLTK finds them; spaces in `flat` are " "."""
        run, last = 0, 0
        found: re.Match[str] | None = None
        for candidate in self._candidates.finditer(flat):
            space = flat.rfind(" ", last, candidate.start())
            if found is not None and (space > last or run == last):
                yield run, found
            if space > last:
                run = space + 1
            found, last = candidate, candidate.end() - 1
        if found is not None:
            yield run, found

    def _decide(self, head: str, after: str) -> bool:
        """True if a sentence ends in a run of non-spaces up to its last stop, with what follows; remembered."""
        context = head + after
        known = self._uncertain.get(context)
        if known is not None:
            return known
        if len(self._certain) + len(self._uncertain) >= _MAX_REMEMBERED:
            self._certain.clear()
            self._uncertain.clear()
        if self._is_certain(head):
            if len(head) <= _MAX_REMEMBERED_LENGTH:
                self._certain.add(head)
            return True
        ends_here = self._ends_within(self._word.findall(context))
        if len(context) <= _MAX_REMEMBERED_LENGTH:
            self._uncertain[context] = ends_here
        return ends_here

    def _is_certain(self, head: str) -> bool:
        """Whether a sentence ends in it whatever follows: it is no abbreviation, initial, number or part of a pair."""
        if head[-1] == "." and head[:-1].isalpha():  # Most are one plain word: the same answer as below, at once.
            word = head[:-1].lower()
            return len(head) > 2 and word not in self.parameters.abbreviations and word not in self._collocated
        if head.split() != [head]:
            return False  # An ellipsis with spaces, or a part of one.
        tokens = self._word.findall(head)
        if self._ends_within(tokens):
            return True
        word = word_without_period(tokens[-1])
        is_special = word in self._collocated or word == NUMBER_TYPE or INITIAL.fullmatch(tokens[-1])
        return self._first_pass(tokens[-1])[0] and not is_special

    def _ends_within(self, tokens: list[str]) -> bool:
        return any(self._ends_between(first, second) for first, second in pairwise(tokens) if first[-1] in ".?!")

    def _ends_between(self, first: str, second: str) -> bool:
        """Whether a sentence ends after `first` when `second` follows: both passes over two neighbouring tokens."""
        is_break, is_abbreviation = self._first_pass(first)
        if first[-1] != ".":
            return is_break
        word = word_without_period(first)
        next_word = word_without_period(second) if self._first_pass(second)[0] else word_type(second)
        if (word, next_word) in self.parameters.collocations:
            return False
        if is_abbreviation or len(word) == 1:
            last = word.rpartition("-")[2]
            if word in self._titles or last in self._titles:
                return False
            if second[0].isupper() and (word in self._listed or last in self._listed):
                return next_word in self.parameters.sentence_starters
        is_initial = INITIAL.fullmatch(first) is not None
        starts = self._starts_sentence(second, next_word)
        if not is_initial and (is_abbreviation or _ELLIPSIS.fullmatch(first)):
            is_starter = second[0].isupper() and next_word in self.parameters.sentence_starters
            return starts is True or is_starter
        if is_initial or word == NUMBER_TYPE:
            is_seen_lower = self.parameters.orthography.get(next_word, 0) & ANY_LOWER
            is_name = is_initial and starts is None and second[0].isupper() and not is_seen_lower
            if starts is False or is_name:
                return False
        return is_break

    def _first_pass(self, token: str) -> tuple[bool, bool]:
        """(ends a sentence, is an abbreviation), as far as the token itself tells."""
        if token in (".", "?", "!"):
            return True, False
        if token[-1] != "." or token.endswith(("..", " .")):
            return False, False
        word, known = token[:-1].lower(), self.parameters.abbreviations
        is_abbreviation = word in known or word.rpartition("-")[2] in known
        return not is_abbreviation, is_abbreviation

    def _starts_sentence(self, token: str, word: str) -> bool | None:
        """The orthographic heuristic; None: undecided."""
        if token in (";", ":", ",", ".", "!", "?"):
            return False
        seen = self.parameters.orthography.get(word, 0)
        if token[0].isupper() and seen & ANY_LOWER and not seen & INSIDE_UPPER:
            return True
        if token[0].islower() and (seen & ANY_UPPER or not seen & BEGIN_LOWER):
            return False
        return None


def _no_word(rules: PunktRules) -> str:
    return _NO_WORD if rules == "sabertooth" else _NO_WORD + _CURLY


def word_pattern(rules: PunktRules) -> re.Pattern[str]:
    """Finds the words of a line, with their periods, and everything else."""
    end = rf"\s|$|[{_no_word(rules)}]|{_SEVERAL}"
    return re.compile(rf"{_SEVERAL}|[^\s(\"`{{\[:;&#*@)}}\]\-,]\S*?(?={end}|,(?:{end}))|\S")


def word_type(token: str) -> str:
    word = token.lower()
    return NUMBER_TYPE if _NUMBER.fullmatch(word) else word


def word_without_period(token: str) -> str:
    word = word_type(token)
    return word.removesuffix(".") if len(word) > 1 else word
