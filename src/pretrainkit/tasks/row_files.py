"""Files of rows of no task, by what their names end in; sentences word by word with labels (CoNLL-U, and columns with a
word in each line), and questions in the JSON of SQuAD.

Sources: https://universaldependencies.org/format.html; Tjong Kim Sang and De Meulder 2003,
https://aclanthology.org/W03-0419; Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.tasks.sources import Example, FilesInMemory, JsonLines, Parquet, TaskSource, TextLines, Tsv

_KINDS = {"jsonl": JsonLines, "ndjson": JsonLines, "json": JsonLines, "txt": TextLines, "tsv": Tsv, "parquet": Parquet}
_PACKED = ("gz", "zst")
_CONLLU_FIELDS = ("id", "words", "lemma", "upos", "xpos", "feats", "heads", "relations", "deps", "misc")
_KEPT = ("words", "lemma", "upos", "xpos", "heads", "relations")
_NEW_DOCUMENT = "-DOCSTART-"


def open_rows(path: str | Path, split: str) -> TaskSource:
    """The rows of a file (or of what a glob finds) as the only split of a source: .jsonl (an object per line), .tsv
    (names of columns first), .parquet, .txt (a line is a row, its key `text`); all but parquet also as .gz and .zst.
    Raises DataError for others."""
    kind = _KINDS.get(_ending(path))
    if kind is None:
        raise DataError(
            f"{path}: a file of rows ends in {', '.join(f'.{name}' for name in _KINDS)}, maybe with .gz or .zst\n"
            "  rename it, or write it in one of these formats"
        )
    return kind({split: path})


def open_sentences(path: str | Path, split: str) -> TaskSource:
    """The sentences of a file (or of what a glob finds) as the only split of a source: .conllu, .jsonl or .parquet
    (rows of lists); whatever ends otherwise is columns with a word in each line."""
    kind = _ending(path)
    if kind in ("jsonl", "ndjson", "parquet"):
        return open_rows(path, split)
    return Conllu({split: path}) if kind == "conllu" else WordColumns({split: path})


def _ending(path: str | Path) -> str:
    """The last part of a name behind a dot that is not of packing; empty where there is none."""
    parts = Path(path).name.lower().split(".")[1:]
    while parts and parts[-1] in _PACKED:
        parts.pop()
    return parts[-1] if parts else ""


class SquadJson(FilesInMemory):
    """Every question of `.json` files of SQuAD 1.1 and 2.0, which XQuAD has too, also `.gz` and `.zst`, with the
    columns of the hub's `squad`.

    A question of SQuAD 2.0 that has no answer has an empty list of them; plausible ones are not read."""

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
            raise DataError(f"{path} is not JSON as SQuAD has it: {reason}\n  give SQuAD 1.1 or XQuAD") from error


def _question(title: str, context: str, question: dict[str, Any]) -> Example:
    answers = question.get("answers", ())  # of questions for a leaderboard they are not told
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
    """Files of sentences that blank lines part."""

    def _read(self, content: bytes, path: str) -> list[Example]:
        rows = (self._row(lines, path) for lines in _paragraphs(content, path))
        return [row for row in rows if row["words"]]

    @abstractmethod
    def _row(self, lines: list[tuple[int, str]], path: str) -> Example:
        """Of the lines of a sentence, each with its number."""


class Conllu(_Sentences):
    """Sentences of `.conllu` files, also `.gz`: `words`, `lemma`, `upos`, `xpos`, `heads` and `relations`, a list of
    texts each; `id` where the file says it; `num_skipped`: lines that are no word of the tree (ranges such as 1-2, and
    empty nodes such as 1.1)."""

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

    def _row(self, lines: list[tuple[int, str]], path: str) -> Example:
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


def _paragraphs(content: bytes, path: str) -> Iterator[list[tuple[int, str]]]:
    """Runs of lines that are not blank, with their numbers from 1."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
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
