"""Text to sentences: `punkt` (learned), `newline`, `regex` or `none`, each a picklable callable.

`punkt`     knows abbreviations and the like; needs parameters learned from text (`train_punkt`)
`newline`   one sentence per line that is not empty, for text that is already split
`regex`     after a stop of any script and the quotes and brackets that close; knows no abbreviations. With a pattern of
            one's own: between what it matches
`none`      the whole document

No text loses a character that is no space (but for what a pattern of one's own matches), and what surrounds a document
in a file or batch never matters. Documents whose lines are sentences (BERT text) are cut at their lines whatever the
splitter; see shard_encoder.py.
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
"""What Punkt learns from by default: 99.6 % of boundaries in novels are as after 8 MB, in a quarter of the time."""
_SAMPLED_FILES = 32

_STOP = stop_pattern(ASCII_STOPS + ELLIPSIS + SPACED_STOPS)


class PlainSplitter:
    """`newline`, `regex` and `none`: nothing to learn. `pattern` (for `regex`) is what lies between sentences."""

    def __init__(self, name: str, pattern: str | None = None) -> None:
        self._name, self._pattern = name, re.compile(pattern) if pattern is not None else None
        self.settings: dict[str, Any] = {"name": name} | ({"pattern": pattern} if pattern is not None else {})
        """For manifests: the name and what else decides the result."""
        content = json.dumps(self.settings | {"version": 2}).encode()
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
        """Equal for splitters that split all texts alike."""

    def __call__(self, text: str) -> list[str]:
        """Sentences without the spaces around them; none is empty."""
        if self._pattern is not None:
            # `split` puts what the pattern's groups matched between the parts.
            parts = self._pattern.split(text)[:: self._pattern.groups + 1]
        elif self._name == "regex":
            parts = cut_at(_STOP, text)
        else:
            parts = text.split("\n") if self._name == "newline" else [text]
        return [sentence for part in parts if (sentence := part.strip())]


Splitter = PlainSplitter | PunktSplitter


def check_splitter(name: str, rules: str = "default", pattern: str | None = None) -> None:
    """Refuse settings that do not exist or would not be used, before anything is learned or read: a DataError."""
    if name not in SPLITTERS:
        raise DataError(f"splitter {name!r} does not exist\n  there are: {', '.join(SPLITTERS)}")
    if rules not in get_args(PunktRules):
        raise DataError(f"Punkt rules {rules!r} do not exist\n  there are: {', '.join(get_args(PunktRules))}")
    if rules != "default" and name != "punkt":
        raise DataError(f"splitter {name!r} has no rules but was given {rules!r}\n  leave them out, or take punkt")
    if pattern is None:
        return
    if name != "regex":
        raise DataError(f"splitter {name!r} has no pattern but was given {pattern!r}\n  leave it out, or take regex")
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
    """A splitter by its name. Raises DataError where there is no such splitter, or something is missing, broken or not
    wanted.

    Args:
        name: One of SPLITTERS.
        parameters: What Punkt learned, or the file of it (`punkt.json`); only for `punkt`.
        rules: Only for `punkt`: see punkt.py.
        pattern: Only for `regex`: what lies between two sentences, in place of our own.
    """
    check_splitter(name, rules, pattern)
    if name != "punkt":
        if parameters is not None:
            given = parameters if isinstance(parameters, Path) else "some"
            raise DataError(f"splitter {name!r} has no parameters but was given {given}\n  leave them out")
        return PlainSplitter(name, pattern)
    if parameters is None:
        raise DataError(
            "splitter 'punkt' was given no parameters\n"
            "  learn them from the corpus (pretrainkit tokenizer train), or take newline, regex or none"
        )
    return PunktSplitter(PunktParameters.load(parameters) if isinstance(parameters, Path) else parameters, rules)


def check_language(name: str) -> None:
    """DataError unless `name` is "auto", "none" or a language whose abbreviations are known."""
    if name not in ("auto", "none", *LANGUAGES):
        raise DataError(f"language {name!r} has no list of abbreviations\n  give auto, none, {', '.join(LANGUAGES)}")


def about_language(parameters: PunktParameters) -> str:
    """Which abbreviations were known beforehand, for a person."""
    if parameters.language is None:
        return "abbreviations are known as far as the text shows them (--language adds those of a language)"
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
    """Punkt parameters from a sample of the documents, spread over the files. Equal files give equal parameters.

    Args:
        sources: The files. Of more than 32, every n-th is read first, and others only where these hold too little.
        text_key: Key or column that holds the text.
        max_bad: Pieces of bad input that may be skipped in one file.
        max_bytes: Size of the sample in UTF-8; a file gives no more than its share.
        language: Whose common abbreviations are added: auto is that of the sample where it is known, none is none's.

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
            # Less than a character may be left over.
            if left < 4:
                break
