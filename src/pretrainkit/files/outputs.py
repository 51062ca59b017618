"""Output folders and files that are complete or absent.

They are written in a folder `.OUT-xxxxxxxx` beside OUT. The process that writes holds a lock on that folder, so that
the next process that writes to OUT can remove what a killed process left.
"""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pretrainkit.errors import InputError, RunError
from pretrainkit.files.manifest import NO_SPACE, sync
from pretrainkit.files.work import lock as lock_file


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Create a temporary folder beside `out` to fill. At the end it is flushed to disk and renamed to `out`; after an
    error it is removed. Raises InputError if `out` exists and is not an empty folder, or cannot be written; RunError if
    the disk is full."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not an empty folder\n  choose another --out, or remove it first")
    with _aside(out) as folder:
        mode = stat.S_IMODE(folder.stat().st_mode)
        yield folder
        for path in [*folder.rglob("*"), folder]:
            _follow_umask(path, mode)
            sync(path)
        if out.exists():
            out.rmdir()
        folder.rename(out)
        sync(out.parent)


def require_writable(out: Path) -> None:
    """Raise InputError if no folder `out` can be created."""
    with _aside(out):
        pass


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """Yield a temporary path with the suffix of `out` to write to. At the end flush the file to disk and rename it to
    `out`. Raises InputError if `out` exists or cannot be written, and RunError if the disk is full."""
    if out.exists():
        raise InputError(f"{out} exists\n  choose another --out, or remove it first")
    with _aside(out) as folder:
        file = folder / out.name
        yield file
        _follow_umask(file, stat.S_IMODE(folder.stat().st_mode))
        sync(file)
        file.rename(out)
        sync(out.parent)


@contextmanager
def folder_beside(out: Path) -> Iterator[Path]:
    """Create a temporary folder beside `out`, and remove it at the end, also after Ctrl-C and exceptions. Raises
    InputError if it cannot be written, and RunError if the disk is full."""
    try:
        folder, lock = _locked_folder(out)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise _unwritable(out, error) from None
        raise InputError(
            f"cannot write to {out.parent}: {error.strerror}\n  choose a folder that you can write to"
        ) from None
    try:
        yield folder
    finally:
        _end(folder, lock)


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write. At the end it is flushed to disk and replaces `path`; of several processes that do this at
    once, the last one wins. Raises OSError."""
    folder, lock = _locked_folder(path)
    try:
        with open(folder / path.name, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(folder / path.name, path)
    finally:
        _end(folder, lock)


def _end(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """Create a temporary folder like `folder_beside`. Errors name `out` instead of it."""
    with folder_beside(out) as folder:
        try:
            yield folder
        except OSError as error:
            raise _unwritable(out, error) from None
        except (InputError, RunError) as error:
            error.args = (str(error).replace(str(folder), str(out)),)  # folders that were created in the temporary one
            raise


def _unwritable(out: Path, error: OSError) -> InputError | RunError:
    """Return the error to raise after `out` could not be written; a partial result is already removed."""
    number, reason = error.errno, error.strerror or str(error)
    if isinstance(error, shutil.Error):  # lists several files: use the message of the first
        reason = error.args[0][0][2]
        number = next((code for code in NO_SPACE if os.strerror(code) in reason), None)
    message = (
        f"cannot write {out}: {reason}\n  free some disk space, or choose another --out; no partial output is left"
    )
    return RunError(message) if number in NO_SPACE else InputError(message)


def _locked_folder(out: Path) -> tuple[Path, int]:
    """Create a locked folder with a random name beside `out`, with the mode that the umask sets. Return it and the
    descriptor that holds its lock. Remove such folders of killed processes. Raises OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    # A temporary folder can itself be the `out` of another export: also remove the temporary folders of those.
    name, suffix = re.escape(out.name), "-[0-9a-f]{8}"
    for left in os.listdir(out.parent):
        if left.startswith(".") and re.fullmatch(rf"\.{name}{suffix}|\.\.{name}{suffix}{suffix}", left):
            _remove_unlocked(out.with_name(left))
    while True:
        aside = out.with_name(f".{out.name}-{secrets.token_hex(4)}")
        aside.mkdir()
        try:
            lock = os.open(aside, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it as abandoned
            continue
        if lock_file(lock) is not False and aside.exists():
            return aside, lock
        os.close(lock)


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder that no process has locked. Without support for locks, it is kept."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # already removed, a file or a link, or owned by another user
        return
    try:
        if lock_file(lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _follow_umask(path: Path, folder_mode: int) -> None:
    """Set the mode of a file or folder as the umask requires: safetensors creates private files, and copies keep the
    mode of their source."""
    path.chmod(folder_mode if path.is_dir() else folder_mode & 0o666)
