"""Random access into tar archives of image-text pairs and the like, without extracting them.

The headers of an archive are read once. The caller turns its members into a table, which is stored next to the
archive as an Arrow file and memory-mapped afterwards: opening a thousand archives again costs a thousand `mmap`s.
"""

import hashlib
import logging
import os
import re
import secrets
import tarfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from pretrainkit.errors import DataError

_FORMAT = "pretrainkit tar index 1"
_STAMP = b"pretrainkit"
_OPEN_FILES = 64
_LARGEST_PADDING = 2**20
"""Bytes of zeros after the last file. 1 kB to 10 kB are usual; more indicates a part that was never written."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_logger = logging.getLogger(__name__)
P = TypeVar("P", bound=Path | str)


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
    try:
        with _opened(path) as file:
            num_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # it holds no resource besides the file
            while (entry := archive.next()) is not None:
                if entry.isreg() and entry.offset_data + entry.size <= num_bytes:
                    yield Member(entry.name, entry.offset_data, entry.size)
                archive.members.clear()  # type: ignore[attr-defined]  # or it keeps every header in memory
            end = archive.offset
            file.seek(end)
            rest = file.read(_LARGEST_PADDING + 1)
            # The library treats a truncated header, or zeros from an incomplete download, as the end.
            if len(rest) < tarfile.BLOCKSIZE or len(rest) > _LARGEST_PADDING or rest.strip(b"\0"):
                raise tarfile.ReadError(f"it is truncated or damaged at byte {end:,} of {num_bytes:,}")
    except (tarfile.TarError, OSError, EOFError, ImportError, ValueError) as error:
        if on_break is not None and isinstance(error, tarfile.TarError):
            on_break(str(error))
            return
        raise DataError(
            f"{path} cannot be read as a tar archive: {error}\n"
            "  it must be whole and uncompressed (a .tar.gz has no random access: gunzip it); download it again"
        ) from error


def is_address(path: str) -> bool:
    """Return True for addresses that fsspec opens: s3://…, gs://…, https://…"""
    return "://" in path


def _opened(path: Path | str) -> Any:
    if not is_address(str(path)):
        return open(path, "rb")
    import fsspec

    return fsspec.open(str(path), "rb").open()


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
    """Reads pieces of many archives, on a disk or behind addresses that fsspec opens, from any number of threads. At
    most 64 files are kept open."""

    def __init__(self, paths: Sequence[Path | str]) -> None:
        self._paths = tuple(map(str, paths))
        self._open: dict[int, _Descriptor] = {}
        self._lock = threading.Lock()

    def read(self, archive: int, offset: int, num_bytes: int) -> bytes:
        """Return the bytes of a member of archive number `archive`. Raises OSError if it cannot be opened or read, or
        is too short."""
        path, end = self._paths[archive], offset + num_bytes
        if is_address(path):
            import fsspec

            files, place = fsspec.core.url_to_fs(path)
            data: bytes = files.cat_file(place, start=offset, end=end)
        else:
            descriptor = self._descriptor(archive)
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


class _Descriptor:
    """An open file, closed with its last reference, so that no thread closes a file that another thread reads."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.number)


def cached_table(path: Path | str, settings: str, make: Callable[[], pa.Table]) -> pa.Table:
    """Return `make()` for an archive, or the table stored next to it if it is current. Tables of remote archives are
    stored in the cache folder of this machine. Raises DataError if an address cannot be opened.

    Args:
        path: The archive. A stored table is current if the size and modification time are unchanged.

    Returns:
        The table, memory-mapped unless it could not be stored.
    """
    if isinstance(path, str) and is_address(path):
        version = _remote_version(path)
        name = _digest(f"{path}\n{settings}", 12)
        places = [_cache_folder() / f"{name}.index"]
    else:
        path = Path(path)
        status = path.stat()
        version = f"{status.st_size}\n{status.st_mtime_ns}"
        ending = f"{_digest(settings, 4)}.index"
        kept_name = f"{path.name}-{_digest(str(path.resolve()), 8)}.{ending}"
        places = [path.with_name(f"{path.name}.{ending}"), _cache_folder() / kept_name]
    stamp = f"{_FORMAT}\n{settings}\n{version}".encode()
    for place in places:
        if (kept := _read(place, stamp)) is not None:
            return kept
    table = make()
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


def _remote_version(address: str) -> str:
    """Return a text that changes with the archive, as far as its server reports changes."""
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(address)
        facts = files.info(path)
    except (OSError, ImportError, ValueError) as error:
        raise DataError(f"{address} cannot be read: {error}\n  check the address and your access to it") from error
    return str([facts.get(name) for name in ("size", "ETag", "etag", "md5Hash", "LastModified", "mtime", "created")])


def _digest(text: str, num_bytes: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=num_bytes).hexdigest()


def cached_tables(
    paths: Sequence[P], settings: str, make: Callable[[P], pa.Table], *, seconds_between_lines: float = 10
) -> list[pa.Table]:
    """Return `cached_table` for each archive. A slow first indexing logs its progress every `seconds_between_lines`
    seconds."""
    tables, shown = [], time.monotonic()
    for number, path in enumerate(paths):
        if time.monotonic() - shown >= seconds_between_lines:
            shown = time.monotonic()
            _logger.warning("indexing %s: %d of %d archives (once; the index is stored)", path, number + 1, len(paths))
        tables.append(cached_table(path, settings, partial(make, path)))
    return tables


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pretrainkit" / "tar-indexes"


def _read(place: Path, stamp: bytes) -> pa.Table | None:
    """Return the stored table, or None if it is missing, damaged or out of date."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(place))).read_all()
    except (OSError, pa.ArrowInvalid):
        return None
    return table if (table.schema.metadata or {}).get(_STAMP) == stamp else None


def _write(table: pa.Table, place: Path) -> None:
    """Write atomically through a temporary file with a unique name, because several ranks may write the same table."""
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        with open(aside, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)
