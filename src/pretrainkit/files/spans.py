"""Cuts large files into stretches, so that several workers can share one file: JSONL at whole lines, dumps of Wikipedia
where a bz2 stream begins, or anywhere if they are plain.

Only files that can be cut without reading them whole: local; JSONL not compressed, one object per line. Where cuts lie
follows from the file alone, never from the workers.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from pretrainkit.files.manifest import fingerprint
from pretrainkit.files.sources import SourceFile, open_source

SPAN_BYTES = 64_000_000
_TRIED_LINES = 8
_READ_BYTES = 1 << 20
STREAM_MARK = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
"""Start of a bz2 stream with its first block, or with its end if it is empty."""
_MARK_BYTES = 10
"""Maximum length of the mark."""


def cut_large(source: SourceFile, span_bytes: int = SPAN_BYTES) -> list[SourceFile]:
    """Return the file itself, or stretches of about `span_bytes` if it is at least twice as large.

    A cut of JSONL needs two neighbouring lines that are a whole JSON object each. Inside a value that spans lines a
    comma would stand between them, so no value is ever cut. A page of a dump belongs to the stretch in which it begins,
    so a plain dump can be cut anywhere.
    """
    num = source.num_bytes // span_bytes
    can_cut = source.format in ("jsonl", "dump") and not source.address.endswith((".zst", ".gz"))
    if num < 2 or not can_cut or "://" in source.address:
        return [source]
    places = [source.num_bytes * index // num for index in range(1, num + 1)]
    found: Iterable[int | None] = places
    with open_source(source.address) as file:
        if source.format == "jsonl":
            found = [_line_start(file, place) for place in places[:-1]]
        elif source.address.endswith(".bz2"):
            found = [_stream_start(file, place, stop) for place, stop in pairwise(places)]
    cuts = sorted({0, *(cut for cut in found if cut is not None), source.num_bytes})
    if len(cuts) == 2:
        return [source]
    return [replace(source, num_bytes=end - begin, begin=begin) for begin, end in pairwise(cuts)]


def next_stream(file: BinaryIO, chunk: bytes, place: int, stop: int | None = None) -> tuple[bytes, int]:
    """Bytes from where the next bz2 stream begins, and that place; no bytes: none begins before `stop` (None: the end
    of the file). `chunk` was read at `place`, and the file stands behind it."""
    while True:
        if found := STREAM_MARK.search(chunk):
            start = place + found.start()
            return (chunk[found.start() :] if stop is None or start < stop else b""), start
        # A mark may lie across two reads.
        kept = chunk[-_MARK_BYTES:]
        place += len(chunk) - len(kept)
        more = file.read(_READ_BYTES) if stop is None or place < stop else b""
        if not more:
            return b"", place + len(kept)
        chunk = kept + more


def _stream_start(file: BinaryIO, place: int, stop: int) -> int | None:
    file.seek(place)
    stream, start = next_stream(file, b"", place, stop)
    return start if stream else None


def _line_start(file: BinaryIO, place: int) -> int | None:
    """Return the start of the next line that is an object and follows an object; None if there is none nearby."""
    file.seek(place)
    file.readline()
    was_object = False
    for _ in range(_TRIED_LINES):
        start = file.tell()
        is_object = _is_object(file.readline())
        if was_object and is_object:
            return start
        was_object = is_object
    return None


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def group_sources(
    sources: Sequence[SourceFile], group_bytes: int = SPAN_BYTES, span_bytes: int = SPAN_BYTES
) -> list[list[tuple[int, SourceFile]]]:
    """Return files, or stretches of files, with the index of the file, in groups of neighbours of about `group_bytes`.
    The groups do not depend on the number of workers."""
    groups: list[list[tuple[int, SourceFile]]] = []
    size = group_bytes
    for index, source in enumerate(sources):
        for part in cut_large(source, span_bytes):
            if size >= group_bytes:
                groups.append([])
                size = 0
            groups[-1].append((index, part))
            size += part.num_bytes
    return groups


@dataclass(frozen=True)
class GroupTask:
    """A group of files to be read by one task of a stage."""

    sources: tuple[tuple[int, SourceFile], ...]
    """With the index of each file in the whole input."""
    folder: Path
    """For what comes of them, and the record that it is finished."""
    key: str
    """Fingerprint of everything that decides what comes of them."""

    @property
    def num_bytes(self) -> int:
        return sum(source.num_bytes for _, source in self.sources)


def group_tasks(
    groups: Sequence[Sequence[tuple[int, SourceFile]]], work: Path, name: str, choices: Sequence[Any]
) -> list[GroupTask]:
    """A task for each of these groups, in the folders `NAME-00000` … of `work`; `choices` are JSON that decides what
    comes of the files, besides their content."""
    return [
        GroupTask(
            tuple(group),
            work / f"{name}-{number:05d}",
            fingerprint([*choices, [[index, *source.identity] for index, source in group]]),
        )
        for number, group in enumerate(groups)
    ]
