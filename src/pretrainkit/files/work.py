"""The hidden folder in which a stage keeps its finished parts until the output is whole, so that it can go on after a
crash."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file, explained_write_errors


@contextmanager
def work_folder(work: Path, plan: Mapping[str, Any], output: Path) -> Iterator[Path]:
    """Makes or reopens the folder `work` for `output`, locked against a second process.

    An exception leaves it in place only if some task in it is finished (`*/task.json`), for the next attempt.

    Args:
        work: The folder.
        plan: What must be equal for an earlier attempt to be continued; JSON.
        output: For messages.

    Raises:
        DataError: It holds an attempt with another plan, is in use, or cannot be written.
    """
    plan = json.loads(json.dumps(plan))
    made = [folder for folder in (work, *work.parents) if not folder.exists()]
    with explained_write_errors(work):
        work.mkdir(parents=True, exist_ok=True)
        lock = open(work / "lock", "w")  # noqa: SIM115 - held until the end
    with lock:
        _lock(lock, output)
        plan_path = work / "plan.json"
        if plan_path.exists() and json.loads(plan_path.read_bytes()) != plan:
            raise DataError(
                f"{output} was begun from other input or with other settings and is not finished\n"
                f"  to finish it, run that command again; to give it up, remove {work} or name another --out"
            )
        try:
            with atomic_file(plan_path) as file:
                file.write(json.dumps(plan).encode())
            yield work
        except BaseException:  # also Ctrl-C: an attempt without finished tasks leaves nothing; it is raised on
            if not any(work.glob("*/task.json")):
                shutil.rmtree(work, ignore_errors=True)
                for folder in made:
                    if folder.is_dir() and not any(folder.iterdir()):
                        folder.rmdir()
            raise


def _lock(file: IO[str], output: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not a Unix: two writers of one output are then the user's care
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DataError(f"another process is writing {output}\n  wait for it, or name another --out") from error
