"""Readers of row files by file extension, among them tables with commas; of sentences with labels for each word
(CoNLL-U, and columns with a word per line), and of questions in SQuAD's JSON.

Sources: https://universaldependencies.org/format.html; Tjong Kim Sang and De Meulder 2003,
https://aclanthology.org/W03-0419; Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250.
"""

import csv
import io
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import dropwhile, groupby
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.sources import delimiter_of, utf8_text
from pretrainkit.tasks.record_sources import TextRecords
from pretrainkit.tasks.sources import (
    Example,
    Files,
    FilesInMemory,
    JsonLines,
    Parquet,
    TaskSource,
    TextLines,
    Tsv,
    different_names,
)

_RECORDS = "tfrecord"
_PACKED = ("gz", "zst")
_CONLLU_FIELDS = ("id", "words", "lemma", "upos", "xpos", "feats", "heads", "relations", "deps", "misc")
_KEPT = ("words", "lemma", "upos", "xpos", "heads", "relations")
_NEW_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile(r"#\s+id\s|#\s*\w+\s*=")
"""Begin of a line about a sentence, before its words: `# id 5 domain=train` in MultiCoNER, `# sent_id = 5`. Other lines
may begin with the word #."""


class Csv(FilesInMemory):
    """Rows of tables with commas between the columns and the names of columns first, as in RFC 4180: fields in
    quotation marks may have commas and line ends. If the names have no commas between them, the columns are separated
    by semicolons or tabs. All values are strings."""

    def _read(self, content: bytes, path: str) -> list[Example]:
        rows: list[Example] = []
        try:
            text = io.StringIO(utf8_text(content), newline="")
            delimiter = delimiter_of(text)
            text.seek(0)
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            lines = filter(None, reader)  # without empty ones
            names = different_names(next(lines, []), path)
            for fields in lines:
                if len(fields) != len(names):
                    raise DataError(
                        f"line {reader.line_num} of {path} has {len(fields)} fields instead of {len(names)}\n"
                        f"  put fields with {delimiter!r} in quotation marks, or write the rows as .jsonl"
                    )
                rows.append(dict(zip(names, fields, strict=True)))
        except (ValueError, csv.Error) as error:
            raise DataError(
                f"{path} cannot be read as CSV: {error}\n  write it as UTF-8 with commas, or as .jsonl"
            ) from error
        return rows


_KINDS: dict[str, Callable[[Files], TaskSource]] = {
    **dict.fromkeys(("jsonl", "ndjson", "json"), JsonLines),
    "txt": TextLines,
    "tsv": Tsv,
    "csv": Csv,
    "parquet": Parquet,
}


def open_rows(path: str | Path, split: str) -> TaskSource:
    """Return the rows of a file (or of the files of a glob) as the only split of a source: .jsonl (an object per line),
    .tsv and .csv (names of columns first), .parquet, .txt (a line is a row with the key `text`); all but parquet also
    as .gz and .zst; .tfrecord (texts of `tf.train.Example`, also .tfrecord-00000-of-00008). Raises DataError for
    others."""
    kind = _KINDS.get(_ending(path))
    if _ending(path).startswith(_RECORDS):
        kind = TextRecords
    if kind is None:
        raise DataError(
            f"{path}: a file of rows must end in {', '.join(f'.{name}' for name in (*_KINDS, _RECORDS))}, "
            "optionally followed by .gz or .zst\n  rename it, or write it in one of these formats"
        )
    return kind({split: path})


def open_sentences(path: str | Path, split: str) -> TaskSource:
    """Return the sentences of a file (or of the files of a glob) as the only split of a source: .conllu, .jsonl or
    .parquet (rows of lists); other files have columns with a word per line."""
    kind = _ending(path)
    if kind in ("jsonl", "ndjson", "parquet"):
        return open_rows(path, split)
    return Conllu({split: path}) if kind == "conllu" else WordColumns({split: path})


def _ending(path: str | Path) -> str:
    """Return the extension of a file name without a compression suffix; empty without extension."""
    parts = Path(path).name.lower().split(".")[1:]
    while parts and parts[-1] in _PACKED:
        parts.pop()
    return parts[-1] if parts else ""


class SquadJson(FilesInMemory):
    """Every question of `.json` files of SQuAD 1.1 and 2.0 or XQuAD, also `.gz` and `.zst`, with the columns of the
    hub's `squad`.

    A question of SQuAD 2.0 without an answer has an empty list of answers; plausible answers are ignored."""

    kind = "squad json"

    def _read(self, content: bytes, path: str) -> list[Example]:
        try:
            return [
                _question(article.get("title", ""), paragraph["context"], question)
                for article in json.loads(content)["data"]
                for paragraph in article["paragraphs"]
                for question in paragraph["qas"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path} is not SQuAD's JSON: {reason}\n  use SQuAD 1.1 or XQuAD") from error


def _question(title: str, context: str, question: dict[str, Any]) -> Example:
    answers = question.get("answers", ())  # absent in questions for a leaderboard
    return {
        "id": question["id"],
        "title": title,
        "context": context,
        "question": question["question"],
        "answers": {
            "text": [answer["text"] for answer in answers],
            "answer_start": [answer["answer_start"] for answer in answers],
        },
    }


class _Sentences(FilesInMemory):
    """Files of sentences that are separated by blank lines."""

    def _read(self, content: bytes, path: str) -> list[Example]:
        rows = (self._row(lines, path) for lines in _paragraphs(content, path))
        return [row for row in rows if row["words"]]

    @abstractmethod
    def _row(self, lines: list[tuple[int, str]], path: str) -> Example:
        """Return the row of a sentence from its numbered lines."""


class Conllu(_Sentences):
    """Sentences of `.conllu` files, also `.gz`: `words`, `lemma`, `upos`, `xpos`, `heads` and `relations`, a list of
    texts each; `id` if the file has it; `num_skipped`: number of lines that are not words of the tree (ranges such as
    1-2, and empty nodes such as 1.1)."""

    def _row(self, lines: list[tuple[int, str]], path: str) -> Example:
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
                    f"line {number} of {path} has {len(fields)} fields, but CoNLL-U has {len(_CONLLU_FIELDS)}\n"
                    "  correct the file; for other columns use another extension than .conllu"
                )
            if not fields[0].isdecimal():
                row["num_skipped"] += 1
                continue
            for name, field in zip(_CONLLU_FIELDS, fields, strict=True):
                if name in _KEPT:
                    row[name].append(field)
        return row


class WordColumns(_Sentences):
    """Sentences of files with a word and its labels per line, separated by spaces or tabs, as in CoNLL-2003 and
    MasakhaNER: `words`, `tags` (the last column) and `column2`, `column3` and so on. Lines that begin with -DOCSTART-,
    and comments before the words of a sentence, are ignored. Also `.gz`."""

    def _row(self, lines: list[tuple[int, str]], path: str) -> Example:
        lines = list(dropwhile(lambda line: _COMMENT.match(line[1]), lines))
        numbered = [(number, line.split()) for number, line in lines if not line.startswith(_NEW_DOCUMENT)]
        fields = [words for _, words in numbered]
        width = len(fields[0]) if fields else 1
        if broken := [number for number, words in numbered if len(words) != width]:
            raise DataError(
                f"line {broken[0]} of {path} has another number of columns than the {width} of its sentence\n"
                "  correct the file; a word and its labels are separated by spaces"
            )
        columns = [list(column) for column in zip(*fields, strict=True)] or [[]]
        row: Example = {"words": columns[0]} | {f"column{k}": column for k, column in enumerate(columns[1:], 2)}
        return row | ({"tags": columns[-1]} if width > 1 else {})


def _paragraphs(content: bytes, path: str) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of lines that are not blank, with their numbers from 1."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read as text: {error}\n  convert it to UTF-8, plain or .gz") from error
    # Only these end a line, because words may contain other characters at which splitlines splits, such as U+0085.
    lines = enumerate(text.replace("\r\n", "\n").split("\n"), 1)
    for has_text, run in groupby(lines, key=lambda line: bool(line[1].strip(" \t"))):
        if has_text:
            yield list(run)
