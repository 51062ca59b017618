"""Sentence splitters: `punkt` (learned), `newline`, `regex` or `none`, each a picklable callable.

`punkt`     knows abbreviations and the like; needs parameters learned from text (`train_punkt`)
`newline`   one sentence per non-empty line, for text that is already split
`regex`     splits after a stop of any script and the closing quotes and brackets; knows no abbreviations. If the user
            gives a pattern, it splits at the matches and drops them
`none`      the whole document

A splitter removes only spaces, and the matches of a user's pattern. The result never depends on the other documents of
a file or batch. Documents whose lines are sentences (BERT text) are cut at their lines by any splitter; see
shard_encoder.py.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pretrainkit.corpus.readers import read_documents
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import SourceFile
from pretrainkit.tokenizers.abbreviations import LANGUAGES, language_of
from pretrainkit.tokenizers.punkt import PunktParameters, PunktRules, PunktSplitter, first_bytes
from pretrainkit.tokenizers.punkt_training import train_punkt
from pretrainkit.tokenizers.stops import ASCII_STOPS, ELLIPSIS, SPACED_STOPS, cut_at, stop_pattern

SplitterName = Literal["punkt", "newline", "regex", "none"]
SPLITTERS: Final = get_args(SplitterName)
SAMPLE_BYTES: Final = 2 << 20
"""Default size of the text that Punkt learns from: in novels 99.6 % of the boundaries are the same as with 8 MB, in a
quarter of the time."""
_SAMPLED_FILES = 32

_STOP = stop_pattern(ASCII_STOPS + ELLIPSIS + SPACED_STOPS)


class PlainSplitter:
    """The splitters `newline`, `regex` and `none`, which learn nothing. `pattern` (for `regex`) matches between
    sentences."""

    def __init__(self, name: str, pattern: str | None = None) -> None:
        self._name, self._pattern = name, re.compile(pattern) if pattern is not None else None
        self.settings: dict[str, Any] = {"name": name} | ({"pattern": pattern} if pattern is not None else {})
        """For manifests: the name, and the pattern if one is given."""
        content = json.dumps(self.settings | {"version": 2}).encode()
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
        """Hash that is equal for splitters that split all texts alike."""

    def __call__(self, text: str) -> list[str]:
        """Return the non-empty sentences, without the spaces around them."""
        if self._pattern is not None:
            # `split` returns the matches of the pattern's groups between the parts.
            parts = self._pattern.split(text)[:: self._pattern.groups + 1]
        elif self._name == "regex":
            parts = cut_at(_STOP, text)
        else:
            parts = text.split("\n") if self._name == "newline" else [text]
        return [sentence for part in parts if (sentence := part.strip())]


Splitter = PlainSplitter | PunktSplitter


def check_splitter(name: str, rules: str = "default", pattern: str | None = None) -> None:
    """Raise DataError for settings that do not exist or would be ignored, before anything is learned or read."""
    if name not in SPLITTERS:
        raise DataError(f"there is no splitter {name!r}\n  use one of: {', '.join(SPLITTERS)}")
    if rules not in get_args(PunktRules):
        raise DataError(f"there are no Punkt rules {rules!r}\n  use one of: {', '.join(get_args(PunktRules))}")
    if rules != "default" and name != "punkt":
        raise DataError(f"splitter {name!r} has no rules but was given {rules!r}\n  leave them out, or use punkt")
    if pattern is None:
        return
    if name != "regex":
        raise DataError(f"splitter {name!r} has no pattern but was given {pattern!r}\n  leave it out, or use regex")
    try:
        re.compile(pattern)
    except re.error as error:
        raise DataError(f"pattern {pattern!r} is not a regular expression: {error}\n  correct it") from error


def load_splitter(
    name: str,
    parameters: PunktParameters | Path | None = None,
    *,
    rules: PunktRules = "default",
    pattern: str | None = None,
) -> Splitter:
    """Return the splitter `name`.

    Args:
        name: One of SPLITTERS.
        parameters: Only for `punkt`: the learned parameters, or their file (`punkt.json`).
        rules: Only for `punkt`: see punkt.py.
        pattern: Only for `regex`: matches between two sentences; replaces the default pattern.

    Raises:
        DataError: There is no such splitter, or an argument is missing, broken or does not apply to it.
    """
    check_splitter(name, rules, pattern)
    if name != "punkt":
        if parameters is not None:
            given = parameters if isinstance(parameters, Path) else "some"
            raise DataError(f"splitter {name!r} takes no parameters but was given {given}\n  leave them out")
        return PlainSplitter(name, pattern)
    if parameters is None:
        raise DataError(
            "splitter 'punkt' was given no parameters\n"
            "  learn them from the corpus (pretrainkit tokenizer train), or use newline, regex or none"
        )
    return PunktSplitter(PunktParameters.load(parameters) if isinstance(parameters, Path) else parameters, rules)


def check_language(name: str) -> None:
    """Raise DataError unless `name` is "auto", "none" or a language whose abbreviations are known."""
    if name not in ("auto", "none", *LANGUAGES):
        known = ", ".join(LANGUAGES)
        raise DataError(f"there is no list of abbreviations for language {name!r}\n  use one of: auto, none, {known}")


def about_language(parameters: PunktParameters) -> str:
    """Return a message about the abbreviations that were known before learning."""
    if parameters.language is None:
        return "abbreviations were learned from the text alone (--language adds the common ones of a language)"
    num = len(parameters.titles | parameters.listed)
    return f"{num} common abbreviations of language {parameters.language} are added (--language none leaves them out)"


def learn_punkt(
    sources: Sequence[SourceFile],
    *,
    text_key: str = "text",
    max_bad: int = 0,
    max_bytes: int = SAMPLE_BYTES,
    language: str = "auto",
) -> PunktParameters:
    """Learn Punkt parameters from a sample of the documents of all files. Equal files give equal parameters.

    Args:
        sources: The files. If there are more than 32, every n-th is read first, and others only if text is missing.
        text_key: Key or column that holds the text.
        max_bad: Number of bad records that may be skipped in one file.
        max_bytes: Size of the sample in UTF-8; a file contributes at most its share.
        language: The language whose common abbreviations are added. auto: the language of the sample, if it is known.
            none: no language.

    Raises:
        DataError: The files hold no word, or there is no such language.
    """
    check_language(language)
    where = sources[0].address if len(sources) == 1 else f"{sources[0].address} and {len(sources) - 1} more files"
    sample = list(_sample(sources, text_key, max_bad, max_bytes))
    parameters = train_punkt(sample, max_bytes=max_bytes, where=where)
    code = language_of(sample) if language == "auto" else language
    return parameters if code in (None, "none") else parameters.with_language(code)


def _sample(sources: Sequence[SourceFile], text_key: str, max_bad: int, max_bytes: int) -> Iterator[str]:
    step = -(-len(sources) // _SAMPLED_FILES)
    share = -(-max_bytes // len(sources[::step]))
    for source in (source for first in range(step) for source in sources[first::step]):
        left = share
        for document in read_documents([source], Skips(max_bad), text_key=text_key):
            text = first_bytes(document.text, left)
            yield text
            left -= len(text.encode())
            # A remainder of fewer than 4 bytes may be too small for the next character.
            if left < 4:
                break
