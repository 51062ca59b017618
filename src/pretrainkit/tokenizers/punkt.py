"""Punkt: find sentence boundaries with the abbreviations, initials and sentence starters learned from the text itself.

Source: Kiss and Strunk 2006, "Unsupervised Multilingual Sentence Boundary Detection",
https://aclanthology.org/J06-4003, with the deviations of NLTK and of the Punkt crate that Sabertooth uses.

The maintained implementation is NLTK's. Its tokenizer is slower than a subword tokenizer, so `PunktSplitter` makes the
same decisions faster: one compiled expression finds the candidates, and each decision is cached by the text that it
depends on (benchmarks/sentences.py compares NLTK and other packages). Parameters are learned from the user's own text
(punkt_training.py): PyPI has none, and learned ones fit better.

Common abbreviations of a language can be added to the learned ones (abbreviations.py); docs/tokenizers.md measures the
gain. The boundaries then differ from NLTK's, and the speed is the same.

Newlines are not boundaries: a heading without a stop is joined with the next sentence. "…" is not a boundary either.

Rules:
    default     as NLTK, except that `. . .` is an ellipsis like `...` (NLTK: three sentences; 0.8 % in 60 novels),
                no-break and other Unicode spaces separate words as ASCII spaces do, and stops of other scripts also end
                sentences (NLTK: a document in Chinese or Hindi is one sentence)
    nltk        the boundaries of NLTK 3.10: closing quotes and brackets belong to the sentence that they close
    sabertooth  as `default`, except that closing quotes and brackets begin the next sentence, curly quotes do not end a
                word, a single last word is not a separate sentence, and spaces around the text are kept
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
from pretrainkit.files.manifest import write_text
from pretrainkit.tokenizers.abbreviations import LANGUAGES
from pretrainkit.tokenizers.stops import FREE_STOPS, SPACED_STOPS, cut_at, stop_pattern

PunktRules = Literal["default", "nltk", "sabertooth"]
FORMAT: Final = "pretrainkit-punkt"
VERSION: Final = 1

# NLTK's bits for the contexts of a word: at the beginning of a sentence, inside, or unknown; upper or lower case.
BEGIN_UPPER, INSIDE_UPPER, UNKNOWN_UPPER, BEGIN_LOWER, INSIDE_LOWER, UNKNOWN_LOWER = (1 << bit for bit in range(1, 7))
ANY_UPPER = BEGIN_UPPER | INSIDE_UPPER | UNKNOWN_UPPER
ANY_LOWER = BEGIN_LOWER | INSIDE_LOWER | UNKNOWN_LOWER

_CURLY = "\u2018\u2019\u201c\u201d\xab\xbb"
_CLOSING = "\"')]}" + _CURLY
_REALIGN = re.compile(rf"[{re.escape(_CLOSING)}]+?(?:\s+|(?=--)|$)", re.MULTILINE)
_NO_WORD = r"?!)\";}\]*:@'({\["
"""Characters that end a word, as the inside of a character class."""
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
"""Maximum number of decisions cached by one splitter (about 25 MB). The cache is cleared when it is full."""
_MAX_REMEMBERED_LENGTH = 48
_ADVICE = (
    "learn the parameters again: pretrainkit tokenizer train, or pretrainkit.tokenizers.punkt_training.train_punkt"
)


@dataclass(frozen=True)
class PunktParameters:
    """Learned parameters of Punkt. Words are in lower case, numbers are `##number##`."""

    abbreviations: frozenset[str]
    """Abbreviations without their last period."""
    collocations: frozenset[tuple[str, str]]
    """Pairs of words around a period that does not end a sentence."""
    sentence_starters: frozenset[str]
    orthography: dict[str, int]
    """Word to the contexts in which it was seen: a sum of BEGIN_UPPER ... UNKNOWN_LOWER."""
    language: str | None = None
    """Language whose common abbreviations were added; None if none were."""
    titles: frozenset[str] = frozenset()
    """Abbreviations before names, which never end a sentence (rules `default`)."""
    listed: frozenset[str] = frozenset()
    """Abbreviations that end a sentence before an upper-case word only if it is a sentence starter (rules `default`).
    The orthography learned from other text says little about the names that follow them."""

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the file, sorted, so that equal parameters give equal files."""
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
        """Return a copy with more abbreviations. Their case and their last period do not matter."""
        more = {word.lower().removesuffix(".") for word in words}
        return replace(self, abbreviations=self.abbreviations | more)

    def with_language(self, code: str) -> "PunktParameters":
        """Return a copy with the abbreviations and sentence starters of a language of abbreviations.py."""
        language = LANGUAGES[code]
        before = {(word, NUMBER_TYPE) for word in language.before_numbers}
        # If the word after a number is an abbreviation, Punkt compares it with its period ("5. Feb."): add both forms.
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
        """Write as JSON. The file is complete or absent."""
        write_text(Path(path), json.dumps(self.as_dict(), ensure_ascii=False, indent=0) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PunktParameters":
        """Read a file that `save` wrote. Raises DataError if it is missing, of another version or broken."""
        try:
            raw = Path(path).read_bytes()
            content = json.loads(raw)
        except OSError as error:
            raise DataError(f"Punkt parameters {path} cannot be read: {error.strerror}\n  {_ADVICE}") from error
        except ValueError as error:
            raise DataError(f"Punkt parameters {path} are not JSON: {error}\n  {_ADVICE}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"{path} does not contain Punkt parameters: it lacks the format {FORMAT!r}\n  {_ADVICE}")
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
    """Read abbreviations from a file with one per line, such as `approx.`. Empty lines and lines that begin with # are
    skipped. Raises DataError if the file cannot be read, is not UTF-8, or a line has several words."""
    try:
        lines = Path(path).read_bytes().decode("utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"abbreviations {path} cannot be read: {error.strerror}\n  check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"abbreviations {path} are not UTF-8: {error}\n  save the file as UTF-8") from error
    words = []
    for number, line in enumerate(lines, 1):
        terms = line.split()
        if not terms or terms[0].startswith("#"):
            continue
        if len(terms) > 1 or not terms[0].rstrip("."):
            raise DataError(
                f"abbreviations {path}, line {number}: {line.strip()!r} is not one word\n"
                "  write one abbreviation per line, such as approx."
            )
        words.append(terms[0])
    return words


def first_bytes(text: str, num: int) -> str:
    """Return the beginning of a text that fits into `num` bytes of UTF-8. Lone surrogates become question marks."""
    return text[:num].encode(errors="replace")[:num].decode(errors="ignore")


class PunktSplitter:
    """Sentence splitter. Picklable; calls are independent of each other.

    Candidates are stops (`.`, `?`, `!`) before a space and another word, or before a character that ends words. Of
    several candidates in one run of non-spaces, only the last counts. The decision depends on this run and, unless a
    plain word ends it, on the text that follows; decisions are cached by these strings. The time is linear in the text.
    """

    def __init__(self, parameters: PunktParameters, rules: PunktRules = "default") -> None:
        self.parameters = parameters
        self.rules = rules
        self.settings: dict[str, Any] = {"name": "punkt", "rules": rules, "parameters": parameters.fingerprint}
        if rules == "default":
            self.settings["version"] = 2  # version 1 did not have the stops of other scripts
        self.fingerprint = _digest(self.settings)
        no_word = _no_word(rules)
        stop, space, other = r"[.?!]", r"\s", r"\S"
        if rules != "nltk":
            space, other = " ", "[^ ]"  # `_sentences` replaces all spaces by " "
            # An ellipsis with spaces is one stop, and so is a stop followed by a separate period.
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
        """Return the non-empty sentences of a document, without the spaces around them."""
        sentences = self._sentences(text)
        # `isascii` takes constant time. It avoids the search in most sentences of a text with some curly quotes.
        if self.rules != "default" or not any(_OTHER_STOPS.search(s) for s in sentences if not s.isascii()):
            return sentences
        parts = (part.strip() for sentence in sentences for part in cut_at(_OTHER_STOP, sentence))
        return [part for part in parts if part]

    def _sentences(self, text: str) -> list[str]:
        """Split at the stops `.`, `?` and `!` only."""
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
        """Yield (start of a run of non-spaces, last candidate in it) as NLTK does; all spaces in `flat` are " "."""
        run, last = 0, 0
        previous: re.Match[str] | None = None
        for candidate in self._candidates.finditer(flat):
            space = flat.rfind(" ", last, candidate.start())
            if previous is not None and (space > last or run == last):
                yield run, previous
            if space > last:
                run = space + 1
            previous, last = candidate, candidate.end() - 1
        if previous is not None:
            yield run, previous

    def _decide(self, head: str, after: str) -> bool:
        """True if a sentence ends in `head`, a run of non-spaces up to its last stop, when `after` follows; cached."""
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
        """True if a sentence ends in `head`, whatever text follows: it is not an abbreviation, initial, number or part
        of a collocation."""
        if head[-1] == "." and head[:-1].isalpha():  # Most runs are one plain word: a faster way to the same answer.
            word = head[:-1].lower()
            return len(head) > 2 and word not in self.parameters.abbreviations and word not in self._collocated
        if head.split() != [head]:
            return False  # an ellipsis with spaces, or a part of one
        tokens = self._word.findall(head)
        if self._ends_within(tokens):
            return True
        word = word_without_period(tokens[-1])
        is_special = word in self._collocated or word == NUMBER_TYPE or INITIAL.fullmatch(tokens[-1])
        return self._first_pass(tokens[-1])[0] and not is_special

    def _ends_within(self, tokens: list[str]) -> bool:
        return any(self._ends_between(first, second) for first, second in pairwise(tokens) if first[-1] in ".?!")

    def _ends_between(self, first: str, second: str) -> bool:
        """Apply both passes of Punkt: True if a sentence ends between two neighbouring tokens."""
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
        """Return (ends a sentence, is an abbreviation), decided from the token alone."""
        if token in (".", "?", "!"):
            return True, False
        if token[-1] != "." or token.endswith(("..", " .")):
            return False, False
        word, known = token[:-1].lower(), self.parameters.abbreviations
        is_abbreviation = word in known or word.rpartition("-")[2] in known
        return not is_abbreviation, is_abbreviation

    def _starts_sentence(self, token: str, word: str) -> bool | None:
        """Apply the orthographic heuristic: True if a sentence starts at `token`, None if undecided."""
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
    """Return a pattern whose matches are the tokens of a line: words with their periods, and all other characters."""
    end = rf"\s|$|[{_no_word(rules)}]|{_SEVERAL}"
    return re.compile(rf"{_SEVERAL}|[^\s(\"`{{\[:;&#*@)}}\]\-,]\S*?(?={end}|,(?:{end}))|\S")


def word_type(token: str) -> str:
    word = token.lower()
    return NUMBER_TYPE if _NUMBER.fullmatch(word) else word


def word_without_period(token: str) -> str:
    word = word_type(token)
    return word.removesuffix(".") if len(word) > 1 else word
