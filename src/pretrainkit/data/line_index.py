"""Random access to the lines of text files and the records of TFRecord files: one pass finds where each begins and
ends, and the file's hash.

What was found is kept in a cache folder and used as long as the file has its size and modification time. Compressed
and remote files are copied there once, as plain text.

Dimensions: N lines of a file.
"""

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.files.sources import SourceFile, plain_chunks
from pretrainkit.formats.tfrecord import record_places

_NEWLINE = 10
_WORTH_KEEPING_BYTES = 1 << 24
"""Smaller files are read again in less time than it takes to care for one more file."""
_FORMAT = 1
_logger = logging.getLogger(__name__)
Scan = Callable[[Iterator[bytes]], NDArray[np.int64]]
"""Of a file's bytes: (2, N) begins and ends."""


@dataclass(frozen=True)
class LineIndex:
    """Where the lines, or records, of a plain file lie."""

    path: Path
    begins: NDArray[np.int64]
    """(N,) offset of each one's first byte."""
    ends: NDArray[np.int64]
    """(N,) offset behind each one's last byte; the end of a line is left out."""
    sha256: str
    """Of the whole plain file."""

    def __len__(self) -> int:
        return len(self.begins)


def cache_folder() -> Path:
    """Where indexes and plain copies are kept: `PRETRAINKIT_CACHE`, else the user's cache folder."""
    given = os.environ.get("PRETRAINKIT_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pretrainkit" / "tasks"


def index_lines(source: SourceFile) -> LineIndex:
    """The lines of a file, compressed or not, from the cache folder where they are known. Raises DataError where the
    file cannot be read."""
    return _indexed(source, _scan, "")


def index_records(source: SourceFile) -> LineIndex:
    """The same for the records of a TFRecord file, whose checksums are looked at in that pass. Raises DataError where
    the file cannot be read, or is damaged."""
    return _indexed(source, lambda chunks: np.stack(record_places(chunks)), "records")


def _indexed(source: SourceFile, scan: Scan, kind: str) -> LineIndex:
    is_local = "://" not in source.address
    is_plain = is_local and not source.address.endswith((".zst", ".gz"))
    address = str(Path(source.address).absolute()) if is_local else source.address
    identity = [_FORMAT, address, source.num_bytes, source.stamp, *([kind] if kind else [])]
    kept = cache_folder() / hashlib.blake2b(json.dumps(identity).encode(), digest_size=12).hexdigest()
    path = Path(source.address) if is_plain else kept.with_suffix(".plain")
    array_path, facts_path = kept.with_suffix(".lines.npy"), kept.with_suffix(".json")
    if facts_path.is_file() and array_path.is_file() and path.is_file():
        facts = json.loads(facts_path.read_bytes())
        table = np.load(array_path, mmap_mode="r")
        return LineIndex(path, table[0], table[1], facts["sha256"])
    if not is_plain:
        with _kept_file(path) as file:
            for chunk in plain_chunks(source):
                file.write(chunk)
    digest = hashlib.sha256()
    try:
        table = scan(_digested_chunks(path, digest))
    except ValueError as error:
        raise DataError(f"{source.address} is damaged: {error}\n  fetch or make it again") from error
    sha256 = digest.hexdigest()
    if is_plain and path.stat().st_size < _WORTH_KEEPING_BYTES:
        return LineIndex(path, table[0], table[1], sha256)
    try:
        with _kept_file(array_path) as file:
            np.save(file, table)
        with _kept_file(facts_path) as file:
            file.write(json.dumps({"sha256": sha256, "address": source.address}).encode())
    except DataError as error:
        _logger.warning("the index of %s is not kept: %s", source.address, error)
    return LineIndex(path, table[0], table[1], sha256)


@contextmanager
def _kept_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears whole; several processes, such as ranks, may make it at once, and the last one stays."""
    aside = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    with atomic_file(aside) as file:
        yield file
    os.replace(aside, path)


def _digested_chunks(path: Path, digest: Any) -> Iterator[bytes]:
    """The bytes of a file, which go into a hash on the way."""
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
    """(2, N) begins and ends of lines. A carriage return before the end of line belongs to it."""
    found, size = [], 0
    returns: list[NDArray[np.bool_]] = []
    last = b"\n"
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8)
        newlines = np.flatnonzero(data == _NEWLINE)
        before = np.concatenate([np.frombuffer(last, np.uint8), data[:-1]])
        returns.append(before[newlines] == ord("\r"))
        found.append(newlines + size)
        size += len(chunk)
        last = chunk[-1:]
    ends = np.concatenate([np.empty(0, np.int64), *found]).astype(np.int64)
    has_return = np.concatenate([np.empty(0, np.bool_), *returns])
    begins = np.concatenate([[0], ends + 1]).astype(np.int64)
    if begins[-1] < size:  # a last line without an end
        ends, has_return = np.append(ends, size), np.append(has_return, False)
    else:
        begins = begins[:-1]
    return np.stack([begins, ends - has_return])
