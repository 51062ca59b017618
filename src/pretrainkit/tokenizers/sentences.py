"""Ways to cut documents into sentences: punkt (see `punkt.py`), newline, regex, none.

BERT text, where every line is a sentence already, is always cut at its lines.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.skips import Skips
from pretrainkit.corpus.sources import SourceFile
from pretrainkit.errors import DataError
from pretrainkit.tokenizers.punkt import Punkt, train_punkt

SplitterName = Literal["punkt", "newline", "regex", "none"]
Splitter = Callable[[str], list[str]]

DEFAULT_PATTERN = (
    r"""(?:(?<=[.!?…])|(?<=[.!?…]["'”’»)\]]))\s+"""  # a stop, maybe something closing, then blanks
    r"""|(?:(?<=[。！？])(?![”’」』）])|(?<=[。！？][”’」』）]))\s*"""  # no blanks in Chinese and Japanese
)
"""What lies between two sentences."""
SAMPLE_CHARACTERS = 2_000_000
_MAX_SAMPLED_FILES = 32


def make_splitter(name: SplitterName, *, punkt: Punkt | None = None, pattern: str | None = None) -> Splitter:
    """A function from a document to its sentences.

    Args:
        name: Which way.
        punkt: Parameters, for punkt.
        pattern: What lies between two sentences, for regex; None: `DEFAULT_PATTERN`.

    Raises:
        DataError: What the splitter needs is missing or wrong, or given without use.
    """
    if pattern is not None and name != "regex":
        raise DataError(f"--pattern does not apply to --splitter {name}\n  leave it out, or take --splitter regex")
    match name:
        case "punkt":
            if punkt is None:
                raise DataError("the punkt splitter needs parameters\n  train them, or take another --splitter")
            return punkt.split
        case "newline":
            return split_lines
        case "regex":
            try:
                between = re.compile(DEFAULT_PATTERN if pattern is None else pattern)
            except re.error as error:
                raise DataError(f"--pattern {pattern!r} is not a regular expression: {error}") from error
            return lambda text: _split_at(between, text)
        case "none":
            return lambda text: [text]
    raise DataError(f"--splitter is {name!r}\n  it is one of punkt, newline, regex, none")


def split_lines(text: str) -> list[str]:
    """One sentence per line; blank lines are none."""
    return [line for line in text.split("\n") if line and not line.isspace()]


def _split_at(between: re.Pattern[str], text: str) -> list[str]:
    sentences, begin = [], 0
    for match in between.finditer(text):
        sentences.append(text[begin : match.start()])
        begin = match.end()
    return [sentence for sentence in (*sentences, text[begin:]) if sentence and not sentence.isspace()]


def learn_punkt(sources: Sequence[SourceFile], *, text_key: str = "text", max_bad: int = 0) -> Punkt:
    """Punkt parameters from about `SAMPLE_CHARACTERS` of the documents, spread over the files.

    Args:
        sources: The files.
        text_key: Key or column that holds the text.
        max_bad: Pieces of bad input that may be skipped.

    Raises:
        DataError: The files hold no text.
    """
    step = -(-len(sources) // _MAX_SAMPLED_FILES)
    chosen = sources[::step]
    share = SAMPLE_CHARACTERS // len(chosen) + 1
    sample: list[str] = []
    for source in chosen:
        left = share
        for document in read_documents([source], Skips(max_bad), text_key=text_key):
            sample.append(document.text[:left])
            left -= len(sample[-1])
            if left <= 0:
                break
    if not any(text and not text.isspace() for text in sample):
        raise DataError(f"{sources[0].address} and the other files hold no text to learn sentence boundaries from")
    return train_punkt(sample)


def read_punkt(path: Path) -> Punkt:
    """Parameters that `pretrainkit tokenizer` stored as JSON.

    Raises:
        DataError: The file is missing or something else.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: {error}\n  remove it, and sentence boundaries are learned anew"
        ) from error
    return Punkt.from_dict(content, str(path))
