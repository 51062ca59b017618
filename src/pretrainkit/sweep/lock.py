"""One sweep at a time in a folder. Torch-free."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pretrainkit.errors import InputError


@contextmanager
def only_one(folder: Path) -> Iterator[int | None]:
    """Nobody else works in this folder: neither a sweep, nor a run whose sweep was killed.

    Yields:
        The descriptor of the lock's file, for the processes of all runs: what inherits it holds the lock while it
        lives. None where the system has no such locks.

    Raises:
        InputError: Somebody does.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield None
        return
    with open(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"a sweep, or a run of one that was killed, is still at work in {folder}\n"
                "  wait until it ends, or end it; then the same command goes on"
            ) from None
        except OSError:  # a file system without locks
            yield None
            return
        yield file.fileno()
