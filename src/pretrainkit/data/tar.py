"""Random access into tar archives of image-text pairs and the like, without extracting them.

The headers of an archive are read once. The caller turns its members into a table, which is stored next to the
archive as an Arrow file and memory-mapped afterwards: opening a thousand archives again costs a thousand `mmap`s.
"""

import hashlib
import logging
import os
import re
import tarfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import pyarrow as pa
from filelock import FileLock

from pretrainkit.data.line_index import cache_folder
from pretrainkit.errors import DataError
from pretrainkit.files.outputs import replacing_file
from pretrainkit.files.sources import explained_read_errors

_FORMAT = "pretrainkit tar index 2"
_STAMP = b"pretrainkit"
_INDEXES = "tar-indexes"
_OPEN_FILES = 64
_LARGEST_PADDING = 2**20
"""Maximum number of zero bytes after the last file. 1 kB to 10 kB are usual; more shows that a part was not written."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BLOCK_BYTES = 1 << 22
"""Bytes of an indexed remote archive that one request fetches."""
_NUM_BLOCKS = 4
"""Number of blocks of a remote archive that are kept in memory while it is indexed. Several are needed, because the
caption of a sample is read after the next header."""
_NUM_CONNECTIONS = 16
"""Remote archives that are indexed, or asked for their version, at the same time."""
_RETRY_SECONDS = (0.5, 2.0, 8.0, 30.0)
"""Pauses after failed requests. Drivers have retries of their own, but not all of them do."""
_FINAL = (FileNotFoundError, PermissionError, ImportError, ValueError, tarfile.TarError, DataError)
"""Errors after which it is useless to try again."""
_logger = logging.getLogger(__name__)
P = TypeVar("P", bound=Path | str)
T = TypeVar("T")


class Member(NamedTuple):
    """A regular file inside an archive."""

    name: str
    offset: int
    """Offset of its first byte in the archive."""
    num_bytes: int


def members(path: Path | str, on_break: Callable[[str], None] | None = None) -> Iterator[Member]:
    """Yield the regular files of an uncompressed archive in stored order, without reading their contents. Raises
    DataError if the archive cannot be read, is truncated or compressed, or is not a tar archive.

    Args:
        path: A local path, or an address that fsspec opens.
        on_break: Called with the reason if the archive cannot be read to its end, after the complete files. None:
            raise DataError.
    """
    with opened_archive(path) as file:
        yield from members_of(file, path, on_break)


@contextmanager
def opened_archive(path: Path | str) -> Iterator[BinaryIO]:
    """Open an archive to read it once from its start, with short jumps back. Raises DataError if it cannot be opened,
    or if it is at an address and cannot be read."""
    if is_address(str(path)):
        import fsspec

        with explained_read_errors(str(path)):
            files, place = fsspec.core.url_to_fs(str(path))
            options = {"cache_type": "blockcache", "cache_options": {"maxblocks": _NUM_BLOCKS}}
            with files.open(place, "rb", block_size=_BLOCK_BYTES, **options) as file:
                yield file
        return
    try:
        local = open(path, "rb")  # noqa: SIM115  # closed below; only opening is explained here
    except OSError as error:
        raise _unreadable(path, error) from error
    with local:
        yield local


def members_of(file: BinaryIO, path: Path | str, on_break: Callable[[str], None] | None = None) -> Iterator[Member]:
    """Yield the members of an open archive, as `members` does. The caller may move the position of `file` between two
    members."""
    try:
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        # The archive holds no resource besides the file. Tables of names need text, so wrong UTF-8 is escaped.
        archive = tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        while (entry := archive.next()) is not None:
            if entry.isreg() and entry.offset_data + entry.size <= num_bytes:
                yield Member(entry.name, entry.offset_data, entry.size)
            archive.members.clear()  # type: ignore[attr-defined]  # else it keeps every header in memory
        end = archive.offset
        file.seek(end)
        rest = file.read(_LARGEST_PADDING + 1)
        # The library treats a truncated header, or zeros from an incomplete download, as the end.
        if len(rest) < tarfile.BLOCKSIZE or len(rest) > _LARGEST_PADDING or rest.strip(b"\0"):
            raise tarfile.ReadError(f"it is truncated or damaged at byte {end:,} of {num_bytes:,}")
    except (tarfile.TarError, MemoryError) as error:
        reason = error if str(error) else tarfile.ReadError("a header declares a name that does not fit into memory")
        if on_break is None:
            raise _unreadable(path, reason) from error
        on_break(str(reason))
    except ValueError as error:
        if not is_address(str(path)):
            raise _unreadable(path, error) from error
        raise DataError(
            f"{path} cannot be read in parts: {error}\n"
            "  its server must support parts of files (HTTP range requests); otherwise copy the archives to a disk"
        ) from error
    except (OSError, EOFError) as error:
        if is_address(str(path)):
            raise  # explained where the archive was opened
        raise _unreadable(path, error) from error


def _unreadable(path: Path | str, error: Exception) -> DataError:
    return DataError(
        f"{path} cannot be read as a tar archive: {error}\n"
        "  it must be complete and uncompressed (a .tar.gz has no random access: gunzip it); download it again"
    )


def is_address(path: str) -> bool:
    """True if fsspec opens the path: s3://…, gs://…, https://…"""
    return "://" in path


def expand_braces(pattern: str) -> list[str]:
    """Expand `a-{00..02}.tar` or `a-{x,y}.tar`, in order; several braces give all combinations."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    numbers = _RANGE.fullmatch(match[1])
    if numbers is None:
        choices = match[1].split(",")
    else:
        width = len(numbers[1]) if numbers[1].startswith("0") else 0
        choices = [f"{number:0{width}d}" for number in range(int(numbers[1]), int(numbers[2]) + 1)]
    return [
        whole
        for choice in choices
        for whole in expand_braces(pattern[: match.start()] + choice + pattern[match.end() :])
    ]


class TarReader:
    """Reads pieces of many archives, on a disk or at addresses that fsspec opens, from any number of threads. At
    most 64 files are kept open."""

    def __init__(self, paths: Sequence[Path | str]) -> None:
        self._paths = tuple(map(str, paths))
        self._open: dict[int, _Descriptor] = {}
        self._lock = threading.Lock()

    def read(self, archive: int, offset: int, num_bytes: int) -> bytes:
        """Return the bytes of a member of archive number `archive`. Raises OSError if it cannot be opened or read, or
        is too short; DataError if it is at an address and cannot be read after several attempts."""
        path, end = self._paths[archive], offset + num_bytes
        if is_address(path):
            return _retried(path, lambda: _fetch(path, offset, end))
        descriptor = self._descriptor(archive)
        if not 0 <= offset <= end <= descriptor.num_bytes:  # a damaged index could request more than the memory
            raise OSError(f"{path} ends before byte {end}")
        data = more = os.pread(descriptor.number, num_bytes, offset)
        while more and len(data) < num_bytes:
            more = os.pread(descriptor.number, num_bytes - len(data), offset + len(data))
            data += more
        if len(data) < num_bytes:
            raise OSError(f"{path} ends before byte {end}")
        return data

    def _descriptor(self, archive: int) -> "_Descriptor":
        with self._lock:
            descriptor = self._open.pop(archive, None) or _Descriptor(self._paths[archive])
            self._open[archive] = descriptor
            if len(self._open) > _OPEN_FILES:
                del self._open[next(iter(self._open))]  # closed when the last reader releases it
            return descriptor


def _fetch(address: str, start: int, end: int) -> bytes:
    import fsspec

    files, place = fsspec.core.url_to_fs(address)
    data: bytes = files.cat_file(place, start=start, end=end)
    if len(data) != end - start:
        raise DataError(
            f"{address}: bytes {start:,} to {end:,} were requested, but {len(data):,} bytes were received\n"
            "  the archive has changed (start again), or its server does not support parts of files: copy it to a disk"
        )
    return data


def _retried(address: str, action: Callable[[], T]) -> T:
    """Return `action()`, tried again after errors that may be temporary. Raises DataError."""
    with explained_read_errors(address):
        for seconds in _RETRY_SECONDS:
            try:
                return action()
            except _FINAL:
                raise
            except Exception as error:  # every driver raises types of its own
                _logger.warning("%s: %s: %s; trying again", address, type(error).__name__, error)
                time.sleep(seconds)
        return action()


class _Descriptor:
    """An open file, closed with its last reference, so that no thread closes a file that another thread reads."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)
        self.num_bytes = os.fstat(self.number).st_size
        weakref.finalize(self, os.close, self.number)


def cached_table(path: Path | str, settings: str, make: Callable[[], pa.Table]) -> pa.Table:
    """Return the table of an archive on a disk: the stored one if the archive's size and modification time are
    unchanged, else `make()`. It is stored next to the archive, or in the cache folder of this machine. The table is
    memory-mapped unless it could not be stored."""
    path = Path(path)
    status = path.stat()
    ending = f"{_digest(settings, 4)}.index"
    kept_name = f"{path.name}-{_digest(str(path.resolve()), 8)}.{ending}"
    places = [path.with_name(f"{path.name}.{ending}"), cache_folder() / _INDEXES / kept_name]
    stamp = _stamp(settings, f"{status.st_size}\n{status.st_mtime_ns}")
    for place in places:
        if (kept := _read(place, stamp)) is not None:
            return kept
    return _stored(path, places, stamp, make())


def _remote_table(address: str, settings: str, version: str, make: Callable[[], pa.Table]) -> pa.Table:
    """Do the same as `cached_table` for an archive at an address; the table is stored in this machine's cache folder.
    Raises DataError if the archive cannot be read."""
    place = cache_folder() / _INDEXES / f"{_digest('|'.join([address, settings]), 12)}.index"
    stamp = _stamp(settings, version)
    if (kept := _read(place, stamp)) is not None:
        return kept
    with _one_at_a_time(place):  # the ranks of a machine share the work
        kept = _read(place, stamp)
        return _stored(address, [place], stamp, _retried(address, make)) if kept is None else kept


def _stamp(settings: str, version: str) -> bytes:
    return f"{_FORMAT}\n{settings}\n{version}".encode()


def _stored(path: Path | str, places: Sequence[Path], stamp: bytes, table: pa.Table) -> pa.Table:
    """Store a table in the first of `places` where that is possible, and return it."""
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _STAMP: stamp})
    failures = []
    for place in places:
        try:
            _write(table, place)
        except OSError as error:
            failures.append(f"{place.parent}: {error.strerror or error}")
            continue
        kept = _read(place, stamp)
        return table if kept is None else kept
    _logger.warning(
        "the index of %s could not be stored and will be created again at the next start (%s)",
        path,
        "; ".join(failures),
    )
    return table


@contextmanager
def _one_at_a_time(place: Path) -> Iterator[None]:
    """Hold the lock of a stored table, if its folder can be written to."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place.with_suffix(".lock"))
        lock.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _remote_version(address: str) -> str | None:
    """Return a text that changes with the archive, as far as its server reports changes; None if there is no archive.
    Raises DataError if the server does not answer."""
    import fsspec

    def ask() -> str | None:
        files, path = fsspec.core.url_to_fs(address)
        try:
            facts = files.info(path)
        except FileNotFoundError:
            return None
        names = ("size", "ETag", "etag", "md5Hash", "LastModified", "Last-Modified", "mtime", "created")
        return str([facts.get(name) for name in names])

    return _retried(address, ask)


def _digest(text: str, num_bytes: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=num_bytes).hexdigest()


def cached_tables(
    paths: Sequence[P], settings: str, make: Callable[[P], pa.Table], *, seconds_between_lines: float = 10
) -> list[pa.Table]:
    """Return the table of each archive: a stored one if the archive is unchanged, else `make(path)`. Archives at
    addresses are read several at a time, and their tables stored in the cache folder of this machine. A slow first
    indexing logs its progress every `seconds_between_lines` seconds. Raises DataError if archives at addresses are
    missing or cannot be read."""
    if not any(is_address(str(path)) for path in paths):
        return _with_progress(
            paths, (cached_table(p, settings, partial(make, p)) for p in paths), seconds_between_lines
        )
    pool = ThreadPoolExecutor(_NUM_CONNECTIONS)
    try:
        versions = list(pool.map(_remote_version, map(str, paths)))
        if missing := [path for path, version in zip(paths, versions) if version is None]:
            raise DataError(
                f"{len(missing):,} of {len(paths):,} archives are missing or cannot be reached, such as {missing[0]}\n"
                "  check the address and your access to it; {00..09} matches numbers"
            )
        work = zip(paths, map(str, versions))
        futures = [pool.submit(_remote_table, str(p), settings, version, partial(make, p)) for p, version in work]
        return _with_progress(paths, (future.result() for future in futures), seconds_between_lines)
    finally:
        pool.shutdown(cancel_futures=True)


def _with_progress(paths: Sequence[P], tables: Iterable[pa.Table], seconds_between_lines: float) -> list[pa.Table]:
    """Return `tables` as a list, and log the progress."""
    listed, shown = [], time.monotonic()
    for number, (path, table) in enumerate(zip(paths, tables), 1):
        if time.monotonic() - shown >= seconds_between_lines:
            shown = time.monotonic()
            _logger.warning("indexed %s: %d of %d archives (once; the index is stored)", path, number, len(paths))
        listed.append(table)
    return listed


def _read(place: Path, stamp: bytes) -> pa.Table | None:
    """Return the stored table, or None if it is missing, damaged or out of date."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(place))).read_all()
        table.validate(full=True)  # invalid offsets of values would crash the process
    except (OSError, pa.ArrowException, ValueError, MemoryError):
        return None
    if len(set(table.column_names)) < table.num_columns:
        return None
    places = [table.column(name) for name in ("offset", "num_bytes") if name in table.column_names]
    if any(column.null_count or not pa.types.is_integer(column.type) for column in places):
        return None
    return table if (table.schema.metadata or {}).get(_STAMP) == stamp else None


def _write(table: pa.Table, place: Path) -> None:
    with replacing_file(place) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
