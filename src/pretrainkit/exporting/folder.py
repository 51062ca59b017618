"""Output folders and files that are complete or absent."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pretrainkit.errors import InputError, RunError
from pretrainkit.files.manifest import NO_SPACE, sync


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill beside `out`; at the end it is flushed to disk and becomes `out`, after an error it is removed.

    Raises:
        InputError: `out` exists and is not an empty folder, or cannot be written.
        RunError: The disk is full.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not an empty folder\n  give another place, or remove it first")
    aside = _folder_beside(out)
    try:
        mode = stat.S_IMODE(aside.stat().st_mode)
        yield aside
        for path in [*aside.rglob("*"), aside]:
            _follow_umask(path, mode)
            sync(path)
        if out.exists():
            out.rmdir()
        aside.rename(out)
        sync(out.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise _unwritable(out, error) from None
    except (InputError, RunError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        error.args = (str(error).replace(str(aside), str(out)),)  # of folders made in this one
        raise
    except BaseException:  # also Ctrl-C and what the caller raises: half a folder is never left; it is raised on
        shutil.rmtree(aside, ignore_errors=True)
        raise


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """A path with the suffix of `out` to write to; at the end it is flushed to disk and becomes `out`.

    Raises:
        InputError: `out` exists or cannot be written.
        RunError: The disk is full.
    """
    if out.exists():
        raise InputError(f"{out} exists\n  give another place, or remove it first")
    aside = _folder_beside(out)
    try:
        yield aside / out.name
        _follow_umask(aside / out.name, stat.S_IMODE(aside.stat().st_mode))
        sync(aside / out.name)
        (aside / out.name).rename(out)
        sync(out.parent)
    except OSError as error:
        raise _unwritable(out, error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _unwritable(out: Path, error: OSError) -> InputError | RunError:
    """What to say of a folder or file that is absent now."""
    number, reason = error.errno, error.strerror or str(error)
    if isinstance(error, shutil.Error):  # of several files: what was said of the first
        reason = error.args[0][0][2]
        number = next((one for one in NO_SPACE if os.strerror(one) in reason), None)
    message = f"cannot write {out}: {reason}\n  make room, or give another place; nothing was left behind"
    return RunError(message) if number in NO_SPACE else InputError(message)


def _folder_beside(out: Path) -> Path:
    """A new folder of a name of its own in that of `out`, with the mode that the umask gives to folders."""
    aside = out.with_name(f".{out.name}-{secrets.token_hex(4)}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
    except OSError as error:
        if error.errno in NO_SPACE:
            raise _unwritable(out, error) from None
        raise InputError(
            f"cannot write to {out.parent}: {error.strerror}\n  give a folder that can be written"
        ) from None
    return aside


def _follow_umask(path: Path, folder_mode: int) -> None:
    """Give a file or folder the mode that the umask says, whatever wrote it: safetensors makes private files, and
    copies may be as private as their origin."""
    path.chmod(folder_mode if path.is_dir() else folder_mode & 0o666)
