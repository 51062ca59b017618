"""Files that are complete or absent."""

import os
from pathlib import Path

from pretrainkit.errors import DataError


def write_file(path: Path, content: str) -> None:
    """Write UTF-8 text aside, flush it to disk and rename it to `path`, in place of what was there.

    Raises:
        DataError: The folder does not exist or cannot be written, `path` is a folder, or the disk is full. Nothing is
            half-written and a file that was there stays as it was.
    """
    if path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder\n  give the name of a file")
    aside = path.with_name(f".{path.name[:80]}.{os.getpid()}.tmp")
    try:
        with open(aside, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise DataError(
            f"cannot write {path}\n  {error.strerror or error}\n  give another place with --out, or make room there"
        ) from None
