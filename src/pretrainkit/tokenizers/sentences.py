"""Text to sentences: `punkt` (learned), `newline`, `regex` or `none`, each a picklable callable.

`punkt`     for languages whose sentences end in `.`, `?` or `!`; needs parameters learned from text (`train_punkt`)
`newline`   one sentence per line that is not empty, for text that is already split
`regex`     after a stop of any script and the quotes and brackets that close; knows no abbreviations
`none`      the whole document

No text loses a character that is no space, and what surrounds a document in a file or batch never matters.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol, get_args

from pretrainkit.errors import DataError
from pretrainkit.tokenizers.punkt import PunktParameters, PunktRules, PunktSplitter, train_punkt

__all__ = ["SPLITTERS", "PunktParameters", "PunktSplitter", "Splitter", "load_splitter", "train_punkt"]

SPLITTERS: Final = ("punkt", "newline", "regex", "none")

# Stops that need a space after them, and those of scripts that are written without spaces.
_SPACED_STOPS = ".!?…؟۔।॥։።፧፨။។‼⁇⁈⁉"
_FREE_STOPS = "。！？｡"
_CLOSING = re.escape("\"'”’»›)]}」』】》〉）］｝〕")
_STOPS = _SPACED_STOPS + _FREE_STOPS
_STOP = re.compile(
    # What follows another stop begins no match, and what was matched is not given back: linear in any text.
    rf"[{_STOPS}](?<![{_STOPS}]{{2}})"
    rf"(?:(?:(?<=[{_FREE_STOPS}])|[{_SPACED_STOPS}]*+[{_FREE_STOPS}])[{_STOPS}]*+[{_CLOSING}]*+"
    rf"|[{_SPACED_STOPS}]*+[{_CLOSING}]*+(?=\s))"
)


class Splitter(Protocol):
    """What splits documents."""

    settings: dict[str, Any]
    """For manifests: the name and what else decides the result."""
    fingerprint: str
    """Equal for splitters that split all texts alike."""

    def __call__(self, text: str) -> list[str]:
        """Sentences of a document; none is empty."""
        ...

    def many(self, texts: Iterable[str]) -> list[list[str]]:
        """Sentences of each document."""
        ...


def _lines(text: str) -> list[str]:
    return text.split("\n")


def _after_stops(text: str) -> list[str]:
    ends = [match.end() for match in _STOP.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def _whole(text: str) -> list[str]:
    return [text]


_PARTS: Final = {"newline": _lines, "regex": _after_stops, "none": _whole}


class PlainSplitter:
    """`newline`, `regex` and `none`: nothing to learn."""

    def __init__(self, name: str) -> None:
        self._parts = _PARTS[name]
        self.settings: dict[str, Any] = {"name": name}
        content = json.dumps(self.settings | {"version": 1}).encode()
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()

    def __call__(self, text: str) -> list[str]:
        """Sentences without the spaces around them; none is empty."""
        return [sentence for part in self._parts(text) if (sentence := part.strip())]

    def many(self, texts: Iterable[str]) -> list[list[str]]:
        """Sentences of each document."""
        return [self(text) for text in texts]


def load_splitter(name: str, parameters: Path | None = None, *, rules: PunktRules = "default") -> Splitter:
    """A splitter by its name.

    Args:
        name: One of SPLITTERS.
        parameters: File of Punkt parameters (`punkt.json`); only for `punkt`.
        rules: Only for `punkt`: see punkt.py.

    Raises:
        DataError: There is no such splitter or rules, or the parameters are missing, broken or not wanted.
    """
    if name not in SPLITTERS:
        raise DataError(f"splitter {name!r} does not exist\n  there are: {', '.join(SPLITTERS)}")
    if rules not in get_args(PunktRules):
        raise DataError(f"Punkt rules {rules!r} do not exist\n  there are: {', '.join(get_args(PunktRules))}")
    if name == "punkt":
        if parameters is None:
            raise DataError(
                "splitter 'punkt' was given no parameters\n"
                "  learn them from the corpus (pretrainkit tokenizer train), or take newline, regex or none"
            )
        return PunktSplitter(PunktParameters.load(parameters), rules)
    if parameters is not None:
        raise DataError(f"splitter {name!r} has no parameters but was given {parameters}\n  leave them out")
    return PlainSplitter(name)
