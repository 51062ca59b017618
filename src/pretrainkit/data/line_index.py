"""Random access to the lines of text files and the records of TFRecord files: one pass computes the start and end of
each, and the file's hash.

This index is stored in a cache folder and used until the size or modification time of the file changes. Compressed
and remote files are copied there once, as plain text.

Dimensions: N lines of a file.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import explained_write_errors
from pretrainkit.files.outputs import replacing_file
from pretrainkit.files.sources import SourceFile, text_chunks, unpacked_chunks
from pretrainkit.formats.tfrecord import record_places

_NEWLINE = 10
_WORTH_KEEPING_BYTES = 1 << 24
"""Smaller files are indexed again each time, because a stored index would not save time."""
_FORMAT = 1
_logger = logging.getLogger(__name__)
Scan = Callable[[Iterator[bytes]], NDArray[np.int64]]
"""Function from the chunks of a file to (2, N) starts and ends."""


@dataclass(frozen=True)
class LineIndex:
    """Positions of the lines, or records, of an uncompressed file."""

    path: Path
    begins: NDArray[np.int64]
    """(N,) offset of the first byte of each line."""
    ends: NDArray[np.int64]
    """(N,) offset after the last byte of each line, without its line ending."""
    sha256: str
    """SHA-256 of the whole uncompressed file."""

    def __len__(self) -> int:
        return len(self.begins)


def cache_folder() -> Path:
    """Return the folder of indexes, copies and the like: `PRETRAINKIT_CACHE`, or `pretrainkit` in the user's cache."""
    configured = os.environ.get("PRETRAINKIT_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pretrainkit"


def index_lines(source: SourceFile) -> LineIndex:
    """Index the lines of a file, compressed or not, or load the cached index. Raises DataError if the file cannot be
    read, or is UTF-16."""
    return _indexed(source, lambda chunks: _scan(text_chunks(chunks, source.address)), "")


def index_records(source: SourceFile) -> LineIndex:
    """Index the records of a TFRecord file and verify their checksums. Raises DataError if the file cannot be read, or
    is damaged."""
    return _indexed(source, lambda chunks: np.stack(record_places(chunks)), "records")


def _indexed(source: SourceFile, scan: Scan, kind: str) -> LineIndex:
    is_local = "://" not in source.address
    is_plain = is_local and source.suffix not in (".zst", ".gz")
    address = str(Path(source.address).absolute()) if is_local else source.address
    identity = [_FORMAT, address, source.num_bytes, source.stamp, *([kind] if kind else [])]
    kept = cache_folder() / "tasks" / hashlib.blake2b(json.dumps(identity).encode(), digest_size=12).hexdigest()
    path = Path(source.address) if is_plain else kept.with_suffix(".plain")
    array_path, facts_path = kept.with_suffix(".lines.npy"), kept.with_suffix(".json")
    if facts_path.is_file() and array_path.is_file() and path.is_file():
        facts = json.loads(facts_path.read_bytes())
        table = np.load(array_path, mmap_mode="r")
        return LineIndex(path, table[0], table[1], facts["sha256"])
    if not is_plain:
        with _kept_file(path) as file:
            for chunk in unpacked_chunks(source):
                file.write(chunk)
    digest = hashlib.sha256()
    try:
        table = scan(_digested_chunks(path, digest))
    except ValueError as error:
        raise DataError(f"{source.address} is damaged: {error}\n  download it again or create it again") from error
    sha256 = digest.hexdigest()
    if is_plain and path.stat().st_size < _WORTH_KEEPING_BYTES:
        return LineIndex(path, table[0], table[1], sha256)
    try:
        with _kept_file(array_path) as file:
            np.save(file, table)
        with _kept_file(facts_path) as file:
            file.write(json.dumps({"sha256": sha256, "address": source.address}).encode())
    except DataError as error:
        _logger.warning("the index of %s could not be stored: %s", source.address, error)
    return LineIndex(path, table[0], table[1], sha256)


@contextmanager
def _kept_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is written atomically. If several ranks write it at once, the last one replaces the others."""
    with explained_write_errors(path), replacing_file(path) as file:
        yield file


def _digested_chunks(path: Path, digest: Any) -> Iterator[bytes]:
    """Yield the bytes of a file and update a hash with them."""
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
                yield chunk
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}\n  check that it is a file and that you may read it"
        ) from error


def _scan(chunks: Iterator[bytes]) -> NDArray[np.int64]:
    """Return (2, N) starts and ends of lines. A carriage return before a newline is part of the line ending."""
    newline_offsets, size = [], 0
    returns: list[NDArray[np.bool_]] = []
    last = b"\n"
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8)
        newlines = np.flatnonzero(data == _NEWLINE)
        before = np.concatenate([np.frombuffer(last, np.uint8), data[:-1]])
        returns.append(before[newlines] == ord("\r"))
        newline_offsets.append(newlines + size)
        size += len(chunk)
        last = chunk[-1:]
    ends = np.concatenate([np.empty(0, np.int64), *newline_offsets]).astype(np.int64)
    has_return = np.concatenate([np.empty(0, np.bool_), *returns])
    begins = np.concatenate([[0], ends + 1]).astype(np.int64)
    if begins[-1] < size:  # a last line without an end
        ends, has_return = np.append(ends, size), np.append(has_return, False)
    else:
        begins = begins[:-1]
    return np.stack([begins, ends - has_return])
