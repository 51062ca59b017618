"""Output folders and files that are complete or absent.

They are written in `.OUT-xxxxxxxx` beside them. Whoever writes there holds a lock on that folder, so that the next one
who writes to OUT can remove what a process that was killed left.
"""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pretrainkit.errors import InputError, RunError
from pretrainkit.files.manifest import NO_SPACE, sync
from pretrainkit.files.work import lock as lock_file


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill beside `out`; at the end it is flushed to disk and becomes `out`, after an error it is removed.
    Raises InputError where `out` exists and is not an empty folder, or cannot be written, RunError where the disk is
    full."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not an empty folder\n  give another place, or remove it first")
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


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """A path with the suffix of `out` to write to; at the end it is flushed to disk and becomes `out`. Raises
    InputError where `out` exists or cannot be written, RunError where the disk is full."""
    if out.exists():
        raise InputError(f"{out} exists\n  give another place, or remove it first")
    with _aside(out) as folder:
        file = folder / out.name
        yield file
        _follow_umask(file, stat.S_IMODE(folder.stat().st_mode))
        sync(file)
        file.rename(out)
        sync(out.parent)


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, of which nothing is left in the end, also after Ctrl-C and what the caller raises."""
    folder, lock = _folder_beside(out)
    try:
        yield folder
    except OSError as error:
        raise _unwritable(out, error) from None
    except (InputError, RunError) as error:
        error.args = (str(error).replace(str(folder), str(out)),)  # of folders made in this one
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _unwritable(out: Path, error: OSError) -> InputError | RunError:
    """What to say of a folder or file that is absent now."""
    number, reason = error.errno, error.strerror or str(error)
    if isinstance(error, shutil.Error):  # of several files: what was said of the first
        reason = error.args[0][0][2]
        number = next((one for one in NO_SPACE if os.strerror(one) in reason), None)
    message = f"cannot write {out}: {reason}\n  make room, or give another place; nothing was left behind"
    return RunError(message) if number in NO_SPACE else InputError(message)


def _folder_beside(out: Path) -> tuple[Path, int]:
    """A new folder of a name of its own in that of `out`, with the mode that the umask gives to folders, and the
    descriptor that holds the lock on it. Those that killed processes left are removed."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for left in os.listdir(out.parent):
            if re.fullmatch(rf"\.{re.escape(out.name)}-[0-9a-f]{{8}}", left):
                _remove_unlocked(out.with_name(left))
        while True:
            aside = out.with_name(f".{out.name}-{secrets.token_hex(4)}")
            aside.mkdir()
            try:
                lock = os.open(aside, os.O_RDONLY)
            except FileNotFoundError:  # another process took it for one that was left
                continue
            if lock_file(lock) is not False and aside.exists():
                return aside, lock
            os.close(lock)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise _unwritable(out, error) from None
        raise InputError(
            f"cannot write to {out.parent}: {error.strerror}\n  give a folder that can be written"
        ) from None


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder that no process holds the lock of; where there are no locks, nobody knows, and it stays."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, a file or a link, or of another user
        return
    try:
        if lock_file(lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _follow_umask(path: Path, folder_mode: int) -> None:
    """Give a file or folder the mode that the umask says, whatever wrote it: safetensors makes private files, and
    copies may be as private as their origin."""
    path.chmod(folder_mode if path.is_dir() else folder_mode & 0o666)
