"""Survey of raw text files, before they are processed: formats, documents, languages, unusable files."""

from __future__ import annotations

import glob
import json
import math
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.corpus.readers import read_documents, text_hash
from pretrainkit.corpus.stats import language_counts
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import (
    FORMAT_OF_SUFFIX,
    SourceFile,
    explained_table_errors,
    files_below,
    find_sources,
    open_parquet,
    plain_chunks,
    split_lines,
)
from pretrainkit.files.spans import group_sources
from pretrainkit.workers.processes import DEFAULT_MEMORY, Progress, num_processes, run_tasks

PLAIN_SUFFIXES = ("", ".txt", ".text", ".md")
"""Suffixes of plain text. A file with another suffix is read as plain text only if it is given by name."""
DUMP_SUFFIXES = (".xml", ".xml.bz2", ".xml.gz")
_TABLES = ("jsonl", "parquet", "arrow")
_KEYS = ("text", "content", "body", "article", "document", "story")
"""Usual names of the key or column with the text, most likely first."""
_FEW_BOOKS = 8
"""Fewer plain files than this are split at blank lines if that gives more documents."""
_NUM_SAMPLED = 500
_SAMPLE_CHARACTERS = 1000
_MOST_WORDS = 200_000
"""Maximum number of different words to count in a group of files. More would not change the vocabulary size."""
_ANY_NUMBER = 1 << 60


@dataclass(frozen=True)
class LeftOut:
    """Input that is not used."""

    kind: str
    """Description in the plural, such as "files with the suffix .pdf"."""
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TextSurvey:
    """Facts about the documents of some files. Arrays have one entry per document."""

    sources: tuple[SourceFile, ...]
    """Readable files with documents, in order."""
    left_out: tuple[LeftOut, ...]
    num_bad: int
    """Unreadable lines or records in files that are used."""
    text_key: str
    hashes_D: NDArray[np.uint64]
    """(D,) hash of each text. It determines whether the text is held out."""
    text_bytes_D: NDArray[np.uint64]
    """(D,) bytes of each text in UTF-8."""
    num_distinct_words: int
    """Number of different words. It is a lower bound, because each group counts at most `_MOST_WORDS`."""
    num_distinct_characters: int
    """Different characters of a sample."""
    language_or_script: str
    """Kind of the keys of `languages`: "language" or "script"."""
    languages: dict[str, int]
    """Number of documents of a sample in each language or script, most frequent first."""
    sample: tuple[str, ...]
    """Beginnings of up to 500 documents."""

    @property
    def num_documents(self) -> int:
        return len(self.hashes_D)

    @property
    def num_bytes(self) -> int:
        return int(self.text_bytes_D.sum())

    @property
    def num_duplicates(self) -> int:
        """Documents whose text occurs earlier."""
        return self.num_documents - len(np.unique(self.hashes_D))

    @property
    def formats(self) -> dict[str, int]:
        """Number of files of each format."""
        return dict(Counter(source.format for source in self.sources))

    def heldout_share(self, num_bytes: int, max_share: float = 0.2) -> tuple[float, int, int] | None:
        """Return a share for --heldout that holds out about `num_bytes` of text, the number of held-out documents, and
        their bytes. Return None if every share holds out nothing or everything.

        The hashes of the texts determine which are held out, so the numbers are exact. At least one text is held out.
        More texts are held out only if together they are at most `max_share` of all bytes.
        """
        places = np.unique(self.hashes_D / 2**64)
        if len(places) < 2:
            return None
        size_by_place = np.bincount(
            np.searchsorted(places, self.hashes_D / 2**64), self.text_bytes_D.astype(np.float64), len(places)
        )
        sums = np.cumsum(size_by_place)
        allowed = min(float(num_bytes), max_share * self.num_bytes)
        num_texts = min(max(1, int(np.searchsorted(sums, allowed, side="right"))), len(places) - 1)
        share = _between(float(places[num_texts - 1]), float(places[num_texts]))
        is_held_out = self.hashes_D / 2**64 < share
        return share, int(is_held_out.sum()), int(self.text_bytes_D[is_held_out].sum())


def _between(low: float, high: float) -> float:
    """Return the number with the fewest digits that is greater than `low` and at most `high`."""
    for digits in range(2, 17):
        number = round(math.floor(low * 10**digits + 1) / 10**digits, digits)
        if low < number <= high and number < 1:
            return number
    return high


@dataclass(frozen=True)
class _FilePart:
    """Facts about a file, or a part of it."""

    address: str
    problem: str | None
    """Reason why the file cannot be used."""
    num_bad: int
    num_skipped: int
    hashes: NDArray[np.uint64]
    text_bytes: NDArray[np.uint64]
    sample: list[tuple[int, str]]
    """Hash and beginning of the documents with the smallest hashes."""
    words: frozenset[bytes]


def survey_text(paths: Sequence[str], progress: Progress) -> TextSurvey:
    """Read every document of files, folders and globs once. Raises DataError if a path does not exist, or if no file
    contains text."""
    candidates, left_out = _candidates(paths)
    plain = [source for source in candidates if source.format == "text"]
    tables = [source for source in candidates if source.format in _TABLES]
    text_key = _text_key(tables)
    total = sum(source.num_bytes for source in candidates)
    progress.stage("reading", total, "B")
    others = _read([source for source in candidates if source not in plain], text_key, progress)
    books = _read([replace(source, format="book") for source in plain], text_key, progress)
    kind, best = "book", books
    if len(plain) < _FEW_BOOKS:
        documents = _read(plain, text_key, None)
        if sum(len(part.hashes) for part in documents) > sum(len(part.hashes) for part in books):
            kind, best = "text", documents
    parts = _by_file([*others, *best])
    used = {address: part for address, part in parts.items() if part.problem is None and len(part.hashes)}
    broken = {address: part.problem for address, part in parts.items() if part.problem is not None}
    empty = [address for address, part in parts.items() if part.problem is None and not len(part.hashes)]
    left_out += [
        LeftOut(f"broken files ({problem})", count, tuple(a for a, why in broken.items() if why == problem)[:3])
        for problem, count in Counter(broken.values()).most_common()
    ]
    left_out += [LeftOut("files without text", len(empty), tuple(empty[:3]))] if empty else []
    num_bad = sum(part.num_bad for part in used.values())
    left_out += [LeftOut("unreadable lines", num_bad, _places(used, "num_bad"))] if num_bad else []
    num_skipped = sum(part.num_skipped for part in used.values())
    left_out += [LeftOut("records without text", num_skipped, _places(used, "num_skipped"))] if num_skipped else []
    if not used:
        raise _nothing(paths, left_out)
    sources = tuple(
        replace(source, format="book") if source.format == "text" and kind == "book" else source
        for source in candidates
        if source.address in used
    )
    sample = [text for _, text in sorted(chain(*(part.sample for part in used.values())))[:_NUM_SAMPLED]]
    kind_of_language, languages = language_counts(sample)
    return TextSurvey(
        sources=sources,
        left_out=tuple(left_out),
        num_bad=num_bad,
        text_key=text_key,
        hashes_D=np.concatenate([part.hashes for part in used.values()]),
        text_bytes_D=np.concatenate([part.text_bytes for part in used.values()]),
        num_distinct_words=len(frozenset().union(*(part.words for part in used.values()))),
        num_distinct_characters=len(set(chain(*sample))),
        language_or_script=kind_of_language,
        languages=languages,
        sample=tuple(sample),
    )


def inputs_of(sources: Sequence[SourceFile], paths: Sequence[str]) -> list[str]:
    """Return command-line arguments for exactly these files: globs below `paths` where possible, else every file. All
    `sources` have the same format."""
    addresses = {source.address for source in sources}
    arguments: list[str] = []
    for path in paths:
        inside = {address for address in addresses if address == path or address.startswith(f"{path.rstrip('/')}/")}
        suffixes = sorted({_suffix(address) for address in inside})
        globs = [f"{path.rstrip('/')}/**/*{suffix}" for suffix in suffixes if suffix] if path not in inside else []
        if inside and all(suffixes) and globs and {*chain(*map(_expanded, globs))} == inside:
            arguments += globs
        else:
            arguments += sorted(inside)
    return arguments


def _expanded(pattern: str) -> list[str]:
    return [name for name in glob.glob(pattern, recursive=True) if os.path.isfile(name)]


def _suffix(address: str) -> str:
    """Return the suffix of a file, such as .txt, .jsonl.gz or .xml.bz2."""
    name = Path(address).name.lower()
    suffixes = Path(name).suffixes
    if suffixes and suffixes[-1] in (".gz", ".zst", ".bz2") and len(suffixes) > 1:
        return "".join(suffixes[-2:])
    return suffixes[-1] if suffixes else ""


def _candidates(paths: Sequence[str]) -> tuple[list[SourceFile], list[LeftOut]]:
    """Return the files that may contain text, and the files that are left out because of their suffix."""
    named = {path for path in paths if os.path.isfile(path)}
    known, unknown = list[SourceFile](), dict[str, list[str]]()
    seen = set[str]()
    for source in find_sources(paths):
        suffix = _suffix(source.address)
        is_table = suffix not in (".tsv", ".csv", ".bz2") and Path(source.address).suffix.lower() in FORMAT_OF_SUFFIX
        is_known = suffix in PLAIN_SUFFIXES or is_table or suffix in DUMP_SUFFIXES
        if source.address in seen:
            continue
        seen.add(source.address)
        if is_known or (source.address in named and source.format == "text" and suffix not in _NEVER_TEXT):
            known.append(source)
        else:
            unknown.setdefault(suffix or "no suffix", []).append(source.address)
    folders = [Path(path) for path in paths if os.path.isdir(path)]
    others = sorted({str(file) for folder in folders for file in files_below(folder)} - seen)
    unlisted = (
        [LeftOut("hidden files, manifests, README and LICENSE files", len(others), tuple(others[:3]))] if others else []
    )
    ordered = sorted(unknown.items(), key=lambda item: (-len(item[1]), item[0]))
    by_suffix = [LeftOut(f"files with the suffix {name}", len(files), tuple(files[:3])) for name, files in ordered]
    return known, by_suffix + unlisted


_NEVER_TEXT = (".pdf", ".png", ".jpg", ".jpeg", ".zip", ".tar", ".gz", ".bz2", ".ttf", ".otf", ".docx", ".bin")


def _nothing(paths: Sequence[str], left_out: Sequence[LeftOut]) -> DataError:
    unused = "".join(f"\n  {group.count:,} {group.kind}, such as {group.examples[0]}" for group in left_out)
    return DataError(
        f"{', '.join(paths)}: there is no readable text file{unused}\n"
        "  give files or folders with .txt, .md, .jsonl, .json, .parquet (also .gz, .zst) or dumps of Wikipedia (.xml, "
        ".xml.bz2)"
    )


def _places(parts: dict[str, _FilePart], name: str) -> tuple[str, ...]:
    return tuple(address for address, part in parts.items() if getattr(part, name))[:3]


def _text_key(tables: Iterable[SourceFile]) -> str:
    """Return the key or column that contains the text. It comes from the first record of the first table that has a
    text."""
    for source in tables:
        record = _first_record(source)
        names = [name for name, value in record.items() if isinstance(value, str)]
        usual = next((key for key in _KEYS if key in names), None)
        if usual or names:
            return usual or max(names, key=lambda name: len(record[name]))
    return _KEYS[0]


def _first_record(source: SourceFile) -> dict[str, Any]:
    """Return the first record of a file; empty if it cannot be read."""
    try:
        if source.format == "jsonl":
            record = json.loads(next(split_lines(plain_chunks(source), source.address)))
            return record if isinstance(record, dict) else {}
        if source.format == "parquet":
            with explained_table_errors(source.address):
                batch = next(open_parquet(source.address).iter_batches(batch_size=1), None)
                return {} if batch is None else batch.to_pylist()[0]
    except (DataError, ValueError, OSError, StopIteration, IndexError):
        pass
    return {}


def _read(sources: Sequence[SourceFile], text_key: str, progress: Progress | None) -> list[_FilePart]:
    groups = [[source for _, source in group] for group in group_sources(sources)]
    processes = num_processes(None, len(groups), sum(source.num_bytes for source in sources), DEFAULT_MEMORY)
    all_parts = []
    for parts, num_bytes in run_tasks(partial(_read_group, text_key=text_key), groups, processes, in_order=True):
        all_parts += parts
        if progress is not None:
            progress.advance(num_bytes)
    return all_parts


def _read_group(sources: Sequence[SourceFile], *, text_key: str) -> tuple[list[_FilePart], int]:
    words = set[bytes]()
    return [_read_file(source, text_key, words) for source in sources], sum(source.num_bytes for source in sources)


def _read_file(source: SourceFile, text_key: str, group_words: set[bytes]) -> _FilePart:
    hashes, text_bytes = array("Q"), array("Q")
    skips, sample, problem = Skips(_ANY_NUMBER), dict[int, str](), None
    words, highest = set[bytes](), 1 << 64
    try:
        for document in read_documents([source], skips, text_key=text_key):
            encoded = document.text.encode()
            if not encoded.strip():
                skips.leave_out("empty", source.address, f"document {document.position}")
                continue
            number = text_hash(document.text)
            hashes.append(number)
            text_bytes.append(len(encoded))
            if number < highest:
                sample[number] = document.text[:_SAMPLE_CHARACTERS]
            if len(sample) > 2 * _NUM_SAMPLED:  # rarely true, so the cost of sorting per document is low
                sample = dict(sorted(sample.items())[:_NUM_SAMPLED])
                highest = max(sample)
            if len(group_words) < _MOST_WORDS:
                new = {*encoded.split()} - group_words
                group_words |= new
                words |= new
    except DataError as error:
        problem = _reason(error)
    num_bad, num_skipped = skips.num_bad, skips.counts.total() - skips.num_bad
    if problem is None and not hashes and num_bad:
        problem = "not UTF-8" if skips.counts["invalid_utf8"] else "unreadable"
    return _FilePart(
        source.address,
        problem,
        num_bad,
        num_skipped,
        np.array(hashes, np.uint64),
        np.array(text_bytes, np.uint64),
        sorted(sample.items())[:_NUM_SAMPLED],
        frozenset(words),
    )


def _reason(error: DataError) -> str:
    """Return a short reason, the same for files that are broken in the same way."""
    text = str(error).partition("\n")[0]
    for mark in ("truncated", "no column", "cannot be opened", "or damaged"):
        if mark in text:
            return {"or damaged": "damaged"}.get(mark, mark)
    return text.rpartition(": ")[2]


def _by_file(parts: Iterable[_FilePart]) -> dict[str, _FilePart]:
    """Join the parts of each file. A file is broken if one of its parts is."""
    joined: dict[str, _FilePart] = {}
    for part in parts:
        before = joined.get(part.address)
        if before is not None:
            part = _FilePart(
                part.address,
                before.problem or part.problem,
                before.num_bad + part.num_bad,
                before.num_skipped + part.num_skipped,
                np.concatenate([before.hashes, part.hashes]),
                np.concatenate([before.text_bytes, part.text_bytes]),
                [*before.sample, *part.sample],
                before.words | part.words,
            )
        joined[part.address] = part
    return joined
