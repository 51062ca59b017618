"""Output folders and files that are complete or absent."""

import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pretrainkit.errors import InputError
from pretrainkit.files.manifest import sync


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill beside `out`; at the end it is flushed to disk and becomes `out`, after an error it is removed.

    Raises:
        InputError: `out` exists and is not an empty folder, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not an empty folder\n  give another place, or remove it first")
    try:
        aside = _folder_beside(out)
    except OSError as error:
        raise InputError(
            f"cannot write to {out.parent}: {error.strerror}\n  give a folder that can be written"
        ) from None
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
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
        raise InputError(
            f"cannot write {out}: {reason}\n  make room, or give another place; nothing was left behind"
        ) from None
    except BaseException:  # also Ctrl-C and what the caller raises: half a folder is never left; it is raised on
        shutil.rmtree(aside, ignore_errors=True)
        raise


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """A path with the suffix of `out` to write to; at the end it is flushed to disk and becomes `out`.

    Raises:
        InputError: `out` exists or cannot be written.
    """
    if out.exists():
        raise InputError(f"{out} exists\n  give another place, or remove it first")
    try:
        aside = _folder_beside(out)
    except OSError as error:
        raise InputError(
            f"cannot write to {out.parent}: {error.strerror}\n  give a folder that can be written"
        ) from None
    try:
        yield aside / out.name
        _follow_umask(aside / out.name, stat.S_IMODE(aside.stat().st_mode))
        sync(aside / out.name)
        (aside / out.name).rename(out)
        sync(out.parent)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}\n  make room, or give another place") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _folder_beside(out: Path) -> Path:
    """A new folder of a name of its own in that of `out`, with the mode that the umask gives to folders."""
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}-{secrets.token_hex(4)}")
    aside.mkdir()
    return aside


def _follow_umask(path: Path, folder_mode: int) -> None:
    """Give a file or folder the mode that the umask says, whatever wrote it: safetensors makes private files, and
    copies may be as private as their origin."""
    path.chmod(folder_mode if path.is_dir() else folder_mode & 0o666)
