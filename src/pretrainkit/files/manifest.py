"""Write files that are complete or absent, and manifests of their contents. Manifests are JSON with sorted keys and
without times and host names, so that equal input gives equal bytes."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from pretrainkit.errors import DataError, RunError

MANIFEST_NAME = "manifest.json"
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of the operating system for a full disk or quota."""
DEVICE_FAILED = {
    number
    for name in ("EIO", "ESTALE", "ENODEV", "ENXIO", "ENOTCONN", "ETIMEDOUT", "EREMOTEIO", "EHOSTDOWN", "EHOSTUNREACH")
    if (number := getattr(errno, name, None)) is not None
}
"""Error numbers of the operating system for a disk or network file system that fails or has vanished."""
_NOT_ALLOWED = (PermissionError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_NOT_ALLOWED_NUMBERS = {errno.ELOOP, errno.EROFS, errno.ENAMETOOLONG}
UNUSABLE = {*NO_SPACE, *DEVICE_FAILED, *_NOT_ALLOWED_NUMBERS, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE}
"""Error numbers of problems outside of our code: a full or failing disk, and files that vanish or may not be used."""


@contextmanager
def explained_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of writing `path` into a RunError if the disk is full or fails, or a DataError if writing is
    forbidden."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise RunError(
                f"there is no space left to write {path}\n"
                f"  the system reports: {error.strerror}\n"
                "  free some space, then run the same command again (finished files are kept), or name another folder"
            ) from error
        if isinstance(error, _NOT_ALLOWED) or error.errno in _NOT_ALLOWED_NUMBERS:
            raise DataError(
                f"cannot write {path}\n"
                f"  the system reports: {error.strerror} ({error.filename or path})\n"
                "  name an output folder that this user may write to"
            ) from error
        if error.errno in DEVICE_FAILED:
            raise failed_disk(error, f"cannot write {path}") from error
        raise


def failed_disk(error: OSError, problem: str) -> RunError:
    """Return the error to raise if the system, not the data, is the reason that a file cannot be read or written."""
    why = ": the disk or the network file system fails" if error.errno in DEVICE_FAILED else ""
    return RunError(
        f"{problem}{why}\n"
        f"  the system reports: {error.strerror}{f' ({error.filename})' if error.filename else ''}\n"
        "  check it, then run the same command again; finished files are kept"
    )


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary file that appears under its name only when it is complete: it is written under another name,
    synced and renamed.

    The unfinished file is `.NAME.partial` in the same folder. An exception removes it; after a crash, the next attempt
    overwrites it. Missing parent folders are created. Raises RunError if the disk is full or fails, and DataError if
    the folder cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    with explained_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:  # also Ctrl-C and errors of the caller: an incomplete file never remains
            partial.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write a file that is complete or absent, see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(text.encode())


def sync(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to disk, so that they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HashingFile:
    """Writes bytes to `file`, and computes their number and sha256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._sha256.update(data)
        self.num_bytes += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        """Hex digest of the bytes written so far."""
        return self._sha256.hexdigest()


def file_sha256(path: str | Path) -> str:
    """Return the sha256 of a local file in hex. The file is read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def matches_entry(path: Path, entry: Mapping[str, Any]) -> bool:
    """True if a file has the `num_bytes` and `sha256` of its entry in a manifest."""
    return path.is_file() and path.stat().st_size == entry["num_bytes"] and file_sha256(path) == entry["sha256"]


def fingerprint(content: Any) -> str:
    """Return a 128-bit hash in hex of the JSON form of `content`. Stages use it to detect changed input."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def manifest_path(output: str | Path) -> Path:
    """Return `OUTPUT/manifest.json` for a folder, or `OUTPUT.manifest.json` for a file."""
    output = Path(output)
    return output / MANIFEST_NAME if output.is_dir() else output.with_name(f"{output.name}.{MANIFEST_NAME}")


def write_manifest(output: str | Path, content: Mapping[str, Any]) -> Path:
    """Write the manifest of an existing folder or file atomically. Return its path."""
    path = manifest_path(output)
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    return path


def read_object(path: Path, fix: str = "restore it from a copy") -> dict[str, Any]:
    """Return the JSON object in a file. Raises DataError, with the advice `fix`, if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}\n  {fix}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} contains a {type(content).__name__}, not an object\n  {fix}")
    return content


def read_manifest(output: str | Path) -> dict[str, Any]:
    """Read the manifest of a folder or file. Raises DataError if there is none, or it is not a JSON object."""
    path = manifest_path(output)
    if not path.exists():
        raise DataError(
            f"{output} has no {MANIFEST_NAME}\n"
            "  either this is not an output of pretrainkit, or the command that writes it did not finish: run it again"
        )
    return read_object(path, "restore it from a copy, or remove the output and create it again")


@contextmanager
def expected_form(path: str | Path, fix: str = "restore it from a copy, or create it again") -> Iterator[None]:
    """Turn errors about the form of the content of `path`, such as a missing key or a value of another type, into a
    DataError. The block should only take values out of the content, so that no mistake in the code is hidden."""
    try:
        yield
    except (
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError,
        SyntaxError,  # NumPy raises it for names of dtypes such as 01i
    ) as error:  # fmt: skip
        reason = f"it has no entry {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DataError(f"{path} is damaged, or was written by another program: {reason[:300]}\n  {fix}") from error


def path_inside(folder: Path, name: str, origin: Path) -> Path:
    """Return the path of a file that `origin` names. Raises DataError if it would be outside of `folder`."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(
            f"{origin} names the file {name!r}, which is outside of its folder\n  do not use it: it may be an attack"
        )
    return folder / name


def verify(output: str | Path, *, checksums: bool = True) -> dict[str, Any]:
    """Check every file that the manifest of a folder or file lists under `shards`, and return the manifest.

    `checksums`: also read the files to compare their sha256 (about 0.7 s per GB), not only their sizes. Raises
    DataError, which names all missing and different files.
    """
    content, path = read_manifest(output), manifest_path(output)
    problems = []
    with expected_form(path):
        for shard in content.get("shards", []):
            file = path_inside(path.parent, shard["name"], path)
            if not os.path.isfile(file):  # False also for names that no file can have
                problems.append(f"{file} is missing")
            elif (num_bytes := file.stat().st_size) != shard["num_bytes"]:
                problems.append(f"{file} has {num_bytes} bytes instead of {shard['num_bytes']}")
            elif checksums and (digest := file_sha256(file)) != shard["sha256"]:
                problems.append(f"{file} has sha256 {digest} instead of {shard['sha256']}")
    if problems:
        raise DataError(
            f"{output} does not match its manifest\n  "
            + "\n  ".join(problems)
            + "\n  restore the files from a copy, or remove the output and create it again"
        )
    return content


def made_by() -> str:
    """Return the package name and version, for manifests."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"pretrainkit {version('pretrainkit')}"
    except PackageNotFoundError:
        return "pretrainkit (not installed)"
