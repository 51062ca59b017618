"""The hidden folder in which a stage stores finished parts until the output is complete, so that it can continue after
a crash."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import explained_write_errors, write_text


@contextmanager
def work_folder(work: Path, plan: Mapping[str, Any], output: Path) -> Iterator[Path]:
    """Create or reopen the folder `work` for `output`, locked against other processes.

    `plan` is JSON. An earlier attempt is continued only if its plan is equal. At the end the folder is removed. After
    an exception, it is kept for the next attempt if some task in it is finished (`*/task.json`). Raises DataError if
    the folder has an attempt with another plan, is in use, or cannot be written.
    """
    plan = json.loads(json.dumps(plan))
    created = [folder for folder in (work, *work.parents) if not folder.exists()]
    with explained_write_errors(work):
        work.mkdir(parents=True, exist_ok=True)
        lock_file = open(work / "lock", "w")  # noqa: SIM115 - held until the end
    is_needed = True
    try:
        with lock_file:
            if lock(lock_file) is False:
                raise DataError(f"another process is writing {output}\n  wait for it, or name another --out")
            plan_path = work / "plan.json"
            if plan_path.exists() and json.loads(plan_path.read_bytes()) != plan:
                raise DataError(
                    f"{output} was started from other input or with other settings and is not finished\n"
                    f"  to finish it, run that command again; to discard it, remove {work}; or name another --out"
                )
            try:
                write_text(plan_path, json.dumps(plan))
                yield work
                is_needed = False
            except BaseException:  # also Ctrl-C: an attempt without finished tasks leaves nothing
                is_needed = any(work.glob("*/task.json"))
                raise
    finally:
        if not is_needed:  # after the lock is closed: a network file system keeps a folder with an open file
            shutil.rmtree(work, ignore_errors=True)
            for folder in created:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


def record_finished(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Mark the task with this folder as finished. Return `result`, which has the task's fingerprint as "key"."""
    write_text(folder / "task.json", json.dumps(result))
    return result


def finished_task(folder: Path, key: str) -> dict[str, Any] | None:
    """Return the record of a finished task; None if it is not finished or has another key."""
    try:
        record = json.loads((folder / "task.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("key") == key else None


def lock(file: IO[Any] | int, *, shared: bool = False) -> bool | None:
    """Lock an open file, or a folder by its descriptor, against other processes until it is closed. Return True if it
    is locked, False if another process has the lock, and None if this system or disk does not support locks. Several
    processes can have a `shared` lock, and then no other."""
    try:
        import fcntl
    except ImportError:  # not Unix: the user must then avoid two writers of one output
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True
