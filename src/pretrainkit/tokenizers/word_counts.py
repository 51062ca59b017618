"""Word counts as tokenizers are trained from: the TSV that `pretrainkit corpus count-words` writes."""

from collections.abc import Sequence
from pathlib import Path

from pretrainkit.errors import DataError

MAX_WORD_BYTES = 4192
"""SentencePiece leaves out longer lines (its `max_sentence_length`); so do we, for all kinds of tokenizers."""
_MAKE = "make one with: pretrainkit corpus count-words 'CORPUS/train/*' --out words.tsv"


def read_word_counts(paths: Sequence[str | Path]) -> dict[bytes, int]:
    """Word to count over all files, in the order of the words' bytes. Words beyond `MAX_WORD_BYTES` are left out.

    Raises:
        DataError: A file cannot be read, a line is not `word<TAB>count`, or there is no word at all.
    """
    counts: dict[bytes, int] = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    row = line.rstrip(b"\r\n")
                    if row:
                        word, count = _fields(row, f"{path}, line {number}")
                        counts[word] = counts.get(word, 0) + count
        except OSError as error:
            raise DataError(f"word counts {path} cannot be read: {error.strerror}\n  {_MAKE}") from error
    kept = {word: counts[word] for word in sorted(counts) if len(word) <= MAX_WORD_BYTES}
    if not kept:
        raise DataError(f"{', '.join(map(str, paths)) or 'no file'}: there is no word to learn from\n  {_MAKE}")
    return kept


def _fields(row: bytes, place: str) -> tuple[bytes, int]:
    word, tab, count = row.partition(b"\t")
    if not (tab and word and count.isdigit() and int(count) > 0):
        raise DataError(
            f"{place}: not a word, a tab and a count of at least 1: {row[:60].decode(errors='replace')!r}\n  {_MAKE}"
        )
    try:
        word.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: invalid UTF-8 at byte {error.start}\n  convert the text to UTF-8, then {_MAKE}"
        ) from error
    return word, int(count)
