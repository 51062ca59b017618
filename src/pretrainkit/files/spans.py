"""Cut large files into spans, so that several workers can share one file. JSONL is cut at the ends of lines, Wikipedia
dumps at the beginning of a bz2 stream, or anywhere if they are not compressed.

Only files that can be cut without reading all of them are cut: local files, and JSONL only if it is not compressed and
has one object per line. The cuts depend only on the file, not on the workers.
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
_MOST_GROUPS = 2048
"""Maximum number of groups by default. Each task writes sorted runs, and each shard is merged from all of them."""
_TRIED_LINES = 8
_READ_BYTES = 1 << 20
STREAM_MARK = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
"""Beginning of a bz2 stream: its header with the mark of its first block, or of its end if it is empty."""
_MARK_BYTES = 10
"""Maximum length of the mark."""


def cut_large(source: SourceFile, span_bytes: int = SPAN_BYTES) -> list[SourceFile]:
    """Return the file itself, or spans of about `span_bytes` if it is at least twice as large.

    JSONL is cut only between two neighbouring lines that are complete JSON objects. Within a value of several lines,
    there would be a comma between them, so no value is ever cut. A page of a dump belongs to the span in which it
    begins, so a plain dump can be cut anywhere.
    """
    num = source.num_bytes // span_bytes
    can_cut = source.format in ("jsonl", "dump") and source.suffix not in (".zst", ".gz")
    if num < 2 or not can_cut or "://" in source.address:
        return [source]
    places = [source.num_bytes * index // num for index in range(1, num + 1)]
    possible: Iterable[int | None] = places
    with open_source(source.address) as file:
        if source.format == "jsonl":
            possible = [_line_start(file, place) for place in places[:-1]]
        elif source.suffix == ".bz2":
            possible = [_stream_start(file, place, stop) for place, stop in pairwise(places)]
    cuts = sorted({0, *(cut for cut in possible if cut is not None), source.num_bytes})
    if len(cuts) == 2:
        return [source]
    return [replace(source, num_bytes=end - begin, begin=begin) for begin, end in pairwise(cuts)]


def next_stream(file: BinaryIO, chunk: bytes, place: int, stop: int | None = None) -> tuple[bytes, int]:
    """Return the bytes from the beginning of the next bz2 stream, and its offset. The bytes are empty if no stream
    begins before `stop` (None: the end of the file). `chunk` was read at `place`; the file's position is after it."""
    while True:
        if match := STREAM_MARK.search(chunk):
            start = place + match.start()
            return (chunk[match.start() :] if stop is None or start < stop else b""), start
        # A mark may be split over two reads.
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
    sources: Sequence[SourceFile], group_bytes: int | None = None, span_bytes: int | None = None
) -> list[list[tuple[int, SourceFile]]]:
    """Return files, or spans of files, with the index of the file, in groups of neighbours of about `group_bytes`. The
    groups do not depend on the number of workers.

    The default is 64 MB, or more for input of more than 131 GB, so that there are about 2,048 groups at most. Files are
    cut into spans of the same size, but not below 64 MB by default.
    """
    if group_bytes is None:
        group_bytes = max(SPAN_BYTES, -(-sum(source.num_bytes for source in sources) // _MOST_GROUPS))
    span_bytes = span_bytes or max(SPAN_BYTES, group_bytes)
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
    """A group of files that one task of a stage reads."""

    sources: tuple[tuple[int, SourceFile], ...]
    """The files or spans, each with the index of the file in the whole input."""
    folder: Path
    """Folder for the results and the record of the finished task."""
    key: str
    """Fingerprint of everything that decides the results."""

    @property
    def num_bytes(self) -> int:
        return sum(source.num_bytes for _, source in self.sources)


def group_tasks(
    groups: Sequence[Sequence[tuple[int, SourceFile]]], work: Path, name: str, choices: Sequence[Any]
) -> list[GroupTask]:
    """Return a task for each group, in the folders `NAME-00000` … of `work`. `choices` are JSON values that, besides
    the content of the files, decide the results."""
    return [
        GroupTask(
            tuple(group),
            work / f"{name}-{number:05d}",
            fingerprint([*choices, [[index, *source.identity] for index, source in group]]),
        )
        for number, group in enumerate(groups)
    ]
