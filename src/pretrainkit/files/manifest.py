"""Files that are complete or absent, and the manifests that say what is in them: JSON, sorted keys, no clock and no
host name, so that equal input gives equal bytes."""

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
"""Error numbers of the system if the disk or a quota is full."""
_NOT_ALLOWED = (PermissionError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_NOT_ALLOWED_NUMBERS = {errno.ELOOP, errno.EROFS, errno.ENAMETOOLONG}


@contextmanager
def explained_write_errors(path: Path) -> Iterator[None]:
    """Turns the system's refusals to write at `path` into a RunError where the disk is full, else into a DataError."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise RunError(
                f"no space left to write {path}\n"
                f"  the system says: {error.strerror}\n"
                "  free some space, then run the same command again (finished files are kept), or name another folder"
            ) from error
        if isinstance(error, _NOT_ALLOWED) or error.errno in _NOT_ALLOWED_NUMBERS:
            raise DataError(
                f"cannot write {path}\n"
                f"  the system says: {error.strerror} ({error.filename or path})\n"
                "  name an output folder that this user may write to"
            ) from error
        raise


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file that appears under its name only once it is whole: written aside, synced, renamed.

    The work in progress is `.NAME.partial` in the same folder; an exception removes it, a crash leaves it to be
    overwritten by the next attempt. Missing parent folders are made. Raises RunError where the disk is full, and
    DataError where the folder cannot be written.
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
        except BaseException:  # also Ctrl-C and what the caller raises: half a file is never left; it is raised on
            partial.unlink(missing_ok=True)
            raise
        sync(path.parent)


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a folder, survive a power cut, where the system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HashingFile:
    """Passes bytes on to `file`, keeping their count and sha256."""

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
        """Hex digest of what was written so far."""
        return self._sha256.hexdigest()


def file_sha256(path: str | Path) -> str:
    """Hex sha256 of a local file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def matches_entry(path: Path, entry: Mapping[str, Any]) -> bool:
    """True where a file has the `num_bytes` and `sha256` of its entry in a manifest."""
    return path.is_file() and path.stat().st_size == entry["num_bytes"] and file_sha256(path) == entry["sha256"]


def fingerprint(content: Any) -> str:
    """128 bits in hex that change whenever the JSON form of `content` does: how a stage notices changed input."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def manifest_path(output: str | Path) -> Path:
    """`OUTPUT/manifest.json` for a folder, `OUTPUT.manifest.json` beside a file."""
    output = Path(output)
    return output / MANIFEST_NAME if output.is_dir() else output.with_name(f"{output.name}.{MANIFEST_NAME}")


def write_manifest(output: str | Path, content: Mapping[str, Any]) -> Path:
    """Writes the manifest of an existing folder or file, atomically. Returns where."""
    path = manifest_path(output)
    with atomic_file(path) as file:
        file.write(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return path


def read_manifest(output: str | Path) -> dict[str, Any]:
    """The manifest of a folder or file. Raises DataError where there is none, or it is not a JSON object."""
    path = manifest_path(output)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(
            f"{output} has no {MANIFEST_NAME}\n"
            "  either this is not an output of pretrainkit, or the command that writes it did not finish: run it again"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: {error}\n  restore it from a copy, or remove the output and create it again"
        ) from error
    if not isinstance(content, dict):
        raise DataError(
            f"{path} contains a {type(content).__name__}, not an object\n  remove the output and create it again"
        )
    return content


def verify(output: str | Path, *, checksums: bool = True) -> dict[str, Any]:
    """Checks every file that the manifest of a folder or file lists under `shards` (name, num_bytes, sha256) and
    returns the manifest. `checksums`: read the files too (about 0.7 s per GB), not only their sizes. Raises
    DataError where files are missing or differ; all of them are named."""
    content, folder = read_manifest(output), manifest_path(output).parent
    problems = []
    for shard in content.get("shards", []):
        path = folder / shard["name"]
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif (num_bytes := path.stat().st_size) != shard["num_bytes"]:
            problems.append(f"{path} has {num_bytes} bytes, the manifest says {shard['num_bytes']}")
        elif checksums and (digest := file_sha256(path)) != shard["sha256"]:
            problems.append(f"{path} has sha256 {digest}, the manifest says {shard['sha256']}")
    if problems:
        raise DataError(
            f"{output} does not match its manifest\n  "
            + "\n  ".join(problems)
            + "\n  restore the files from a copy, or remove the output and create it again"
        )
    return content


def made_by() -> str:
    """Package name and version, for manifests."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"pretrainkit {version('pretrainkit')}"
    except PackageNotFoundError:
        return "pretrainkit (not installed)"
