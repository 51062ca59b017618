"""Sentences word by word with labels: CoNLL-U, and columns with a word in each line. All of them are in memory.

Sources: https://universaldependencies.org/format.html; Tjong Kim Sang and De Meulder 2003,
https://aclanthology.org/W03-0419.
"""

import gzip
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import file_sha256
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.tasks.row_files import open_rows
from pretrainkit.tasks.sources import Example, TaskSource, _FileSource

_CONLLU_FIELDS = ("id", "words", "lemma", "upos", "xpos", "feats", "heads", "relations", "deps", "misc")
_KEPT = ("words", "lemma", "upos", "xpos", "heads", "relations")
_NEW_DOCUMENT = "-DOCSTART-"
_ROWS = ("jsonl", "ndjson", "parquet")
_PACKED = ("gz", "zst")


class _Sentences(_FileSource):
    """Files of sentences that blank lines part."""

    @cached_property
    def _read(self) -> dict[str, list[list[Example]]]:
        return {}

    def _files_of(self, split: str) -> list[list[Example]]:
        if split not in self._read:
            self._read[split] = [
                [self._row(lines, Path(source.address)) for lines in _paragraphs(Path(source.address))]
                for source in self._sources(split)
            ]
            self._read[split] = [[row for row in rows if row["words"]] for rows in self._read[split]]
        return self._read[split]

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return tuple(map(len, self._files_of(split)))

    def example(self, split: str, index: int) -> Example:
        for rows in self._files_of(split):
            if index < len(rows):
                return dict(rows[index])
            index -= len(rows)
        raise IndexError(f"example {index} behind the last one")

    def fingerprint(self, split: str) -> str:
        kind = type(self).__name__
        return json_fingerprint([kind, [file_sha256(source.address) for source in self._sources(split)]])

    @abstractmethod
    def _row(self, lines: list[tuple[int, str]], path: Path) -> Example:
        """Of the lines of a sentence, each with its number."""


class Conllu(_Sentences):
    """Sentences of `.conllu` files, also `.gz`: `words`, `lemma`, `upos`, `xpos`, `heads` and `relations`, a list of
    texts each; `id` where the file says it; `num_skipped`: lines that are no word of the tree (ranges such as 1-2, and
    empty nodes such as 1.1)."""

    def _row(self, lines: list[tuple[int, str]], path: Path) -> Example:
        row: Example = {name: [] for name in _KEPT} | {"num_skipped": 0}
        for number, line in lines:
            if line.startswith("#"):
                name, _, value = line[1:].partition("=")
                if name.strip() == "sent_id":
                    row["id"] = value.strip()
                continue
            fields = line.split("\t")
            if len(fields) != len(_CONLLU_FIELDS):
                raise DataError(
                    f"line {number} of {path} has {len(fields)} fields, CoNLL-U has {len(_CONLLU_FIELDS)}\n"
                    "  mend the file; columns of other kinds: give it another ending than .conllu"
                )
            if not fields[0].isdecimal():
                row["num_skipped"] += 1
                continue
            for name, field in zip(_CONLLU_FIELDS, fields, strict=True):
                if name in _KEPT:
                    row[name].append(field)
        return row


class WordColumns(_Sentences):
    """Sentences of files with a word in each line and its labels behind it, parted by spaces or tabs, as CoNLL-2003 and
    MasakhaNER have them: `words`, `tags` (the last column) and `column2`, `column3` and so on. Lines that begin with
    -DOCSTART- are left out. Also `.gz`."""

    def _row(self, lines: list[tuple[int, str]], path: Path) -> Example:
        found = [line.split() for _, line in lines if not line.startswith(_NEW_DOCUMENT)]
        width = len(found[0]) if found else 1
        if broken := [number for (number, line) in lines if len(line.split()) != width and _NEW_DOCUMENT not in line]:
            raise DataError(
                f"line {broken[0]} of {path} has another number of columns than the {width} of its sentence\n"
                "  mend the file; a word and its labels are parted by spaces"
            )
        columns = [list(column) for column in zip(*found, strict=True)] or [[]]
        row: Example = {"words": columns[0]} | {f"column{k}": column for k, column in enumerate(columns[1:], 2)}
        return row | ({"tags": columns[-1]} if width > 1 else {})


def open_sentences(path: str | Path, split: str) -> TaskSource:
    """The sentences of a file (or of what a glob finds) as the only split of a source.

    Args:
        path: .conllu, .jsonl or .parquet (rows of lists); whatever ends otherwise is columns with a word in each line.
        split: Its name.
    """
    parts = Path(path).name.lower().split(".")[1:]
    while parts and parts[-1] in _PACKED:
        parts.pop()
    kind = parts[-1] if parts else ""
    if kind in _ROWS:
        return open_rows(path, split)
    return Conllu({split: path}) if kind == "conllu" else WordColumns({split: path})


def _paragraphs(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Runs of lines that are not blank, with their numbers from 1."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}\n  give it as UTF-8, plain or .gz") from error
    found: list[tuple[int, str]] = []
    # Only these end a line: words may hold what splitlines takes for an end, such as U+0085.
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if line.strip(" \t"):
            found.append((number, line))
        elif found:
            yield found
            found = []
    if found:
        yield found
