"""Output folders that are complete or absent."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pretrainkit.errors import InputError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; it becomes `out` when the block ends well and vanishes otherwise.

    Raises:
        InputError: `out` exists and is not an empty folder, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} already exists\n  give a new folder, or remove it first")
    aside = out.with_name(f".{out.name}.{os.getpid()}.incomplete")
    try:
        aside.mkdir(parents=True)
        yield aside
        if out.is_dir():
            out.rmdir()
        aside.replace(out)
    except OSError as error:
        raise InputError(f"cannot write {out}\n  {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
