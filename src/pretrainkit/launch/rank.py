"""Entry point of each process that a launcher starts: `python -m pretrainkit.launch.rank MODULE ARGUMENTS...`.

It runs MODULE like `python -m`. In addition it writes its process id and its exit code to the log folder, and copies
its output to a file there (only rank 0 also prints it). It sends itself SIGTERM if its parent ends. It exits if another
rank of this machine failed and the main thread does not notice. At SIGQUIT it writes the stacks of its threads to that
file and continues.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C prints no traceback while the rest is loaded

import faulthandler
import os
import re
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

LOG_FOLDER = "PRETRAINKIT_LOG_FOLDER"
"""Environment variable with the folder for the process ids, exit codes and output of the ranks."""
WORLD_SIZES = "PRETRAINKIT_WORLD_SIZES"
"""Environment variable of elastic ranks: the numbers of ranks that batches can be split over. Elastic ranks have a log
folder per machine, because their numbers change whenever machines come or go."""
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WATCH_SECONDS = 1.0
_GRACE_SECONDS = 10.0
"""Time for a rank to exit after another rank failed. Gloo raises an error; NCCL waits forever, in code where Python
receives no signal."""
_STACK_SECONDS = 2.0
"""Time for a rank to write its stacks."""


def rank_file(folder: Path, rank: int, kind: str) -> Path:
    """Return a file of a rank by kind: "pid" its process id, "exit" its exit code, "log" its output, "step" an empty
    file that was modified at the last update."""
    return folder / f"rank-{rank}.{kind}"


def _number() -> int:
    """Return the number of this rank in the names of its files."""
    return int(os.environ["LOCAL_RANK" if WORLD_SIZES in os.environ else "RANK"])


class Progress:
    """Shows the launcher of this rank, if there is one, that the rank makes progress. The sign is the modification time
    of a file."""

    def __init__(self) -> None:
        folder = os.environ.get(LOG_FOLDER)
        self._path = rank_file(Path(folder), _number(), "step") if folder else None
        self._touched_at = 0.0

    def updated(self) -> None:
        """Touch the file, at most once a second. Called after every update."""
        if self._path is not None and time.monotonic() - self._touched_at > 1:
            self._touched_at = time.monotonic()
            with suppress(OSError):  # the file system may be unavailable for a moment
                self._path.touch()

    def paused(self) -> None:
        """Remove the file. Called before work of unknown length, such as an evaluation."""
        if self._path is not None:
            self._touched_at = 0.0
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


class Stalls:
    """Detects ranks that have not finished an update for too long, by the files of their `Progress`. Before its first
    update, a rank may take as long as it needs."""

    def __init__(self, folder: Path, ranks: Iterable[int], seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._seen: dict[int, tuple[int | None, float]] = dict.fromkeys(ranks, (None, 0.0))

    def detected(self) -> bool:
        """True if a rank stalls. The clock of the file system may jump, so only changes of times count."""
        now = time.monotonic()
        for rank, (before, _) in self._seen.items():
            modified = None
            with suppress(OSError):
                modified = rank_file(self._folder, rank, "step").stat().st_mtime_ns
            if modified is None or modified != before:
                self._seen[rank] = modified, now
        return self._seconds > 0 and any(now - since > self._seconds for _, since in self._seen.values())

    def end(self) -> None:
        """Let the ranks write their stacks to their logs, and kill them."""
        pids = []
        for rank in self._seen:
            with suppress(OSError, ValueError):
                pids.append(int(rank_file(self._folder, rank, "pid").read_text()))
        for number in (signal.SIGQUIT, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(_STACK_SECONDS if number == signal.SIGQUIT else 0)
        for rank in self._seen:
            rank_file(self._folder, rank, "step").unlink(missing_ok=True)


def main() -> None:
    """Run the module named in the arguments as this rank."""
    folder, rank = Path(os.environ[LOG_FOLDER]), _number()
    rank_file(folder, rank, "exit").unlink(missing_ok=True)
    rank_file(folder, rank, "pid").write_text(str(os.getpid()))
    path = rank_file(folder, rank, "log")
    log = open(path, "a", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115 (to the end)
    if int(os.environ["RANK"]):
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    else:
        sys.stdout, sys.stderr = Tee(sys.stdout, log), Tee(sys.stderr, log)
    if (early_warning := getattr(signal.Signals, "SIGUSR2", None)) is not None:
        # A scheduler's early warning. It is repeated, and StopSignal handles it during training.
        signal.signal(early_warning, signal.SIG_IGN)
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGQUIT, file=log, all_threads=True)
    stop_when_orphaned()
    end_when_others_failed(folder, rank)

    del sys.argv[0]
    code = 1
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if WORLD_SIZES in os.environ and is_spare(folder.parent):
            sys.exit(0)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # any error of the module is printed, and the launcher gets the exit code
        if lost_peer(error) and not os.environ.get("PRETRAINKIT_DEBUG"):
            print(
                f"error: rank {rank} cannot continue: another rank ended ({str(error).splitlines()[0]})",
                file=sys.stderr,
            )
            print(f"  the output of each rank is in {folder}", file=sys.stderr)
        else:
            traceback.print_exc()
    if code == 0 and WORLD_SIZES in os.environ:
        _finished(folder.parent).touch()
    rank_file(folder, rank, "exit").write_text(str(code))
    sys.exit(code)


def _finished(logs: Path) -> Path:
    """Return a file that exists once the ranks of this round have finished. Its name has the port, which is different
    in each round."""
    return logs / f"finished-{os.environ['MASTER_PORT']}"


def is_spare(logs: Path) -> bool:
    """Set the world size to the largest number of ranks that batches can be split over. Return False for these ranks.
    Any other rank waits until they have finished, or until it is stopped because machines come or go, and then returns
    True."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    used = max(size for size in map(int, os.environ[WORLD_SIZES].split(",")) if size <= world_size)
    os.environ["WORLD_SIZE"] = str(used)
    if rank < used:
        return False
    print(f"rank {rank} waits, because batches cannot be split over {world_size} ranks: {used} train", flush=True)
    while not _finished(logs).exists():
        time.sleep(_WATCH_SECONDS)
    return True


class Tee:
    """A text stream that also writes to a file, without terminal control codes."""

    def __init__(self, stream: TextIO, copy: TextIO) -> None:
        self._stream, self._copy = stream, copy

    def write(self, text: str) -> int:
        self._copy.write(_TERMINAL_CODES.sub("", text))
        return self._stream.write(text)

    def flush(self) -> None:
        self._copy.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def lost_peer(error: BaseException) -> str | None:
    """Return the reason if a collective failed because another process ended, else None. Gloo has no exception type for
    this error."""
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    return next((word for word in words if isinstance(error, RuntimeError) and word in str(error)), None)


def stop_when_orphaned() -> None:
    """Send this process SIGTERM, from a thread, if its parent ends, so that no rank continues alone."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def end_when_others_failed(folder: Path, rank: int) -> None:
    """End this process, from a thread, if another rank of this machine failed and this process does not exit."""
    first = rank - int(os.environ.get("LOCAL_RANK", rank))
    others = [first + number for number in range(int(os.environ.get("LOCAL_WORLD_SIZE", 1))) if first + number != rank]
    threading.Thread(target=_watch_others, args=(folder, rank, others), daemon=True).start()


def _watch_others(folder: Path, rank: int, others: Sequence[int]) -> None:
    while True:
        time.sleep(_WATCH_SECONDS)
        if failed := [other for other in others if _has_failed(folder, other)]:
            time.sleep(_GRACE_SECONDS)
            if any(_has_failed(folder, other) for other in failed):  # and was not started again
                break
    print(f"error: rank {rank} ends, because it waits for rank {failed[0]}, which has failed", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def _has_failed(folder: Path, rank: int) -> bool:
    """True if a rank of this machine ended with an error or without an exit code."""
    try:
        return int(rank_file(folder, rank, "exit").read_text()) not in (0, 130)
    except (FileNotFoundError, ValueError):  # ValueError: the file is being written
        pass
    try:
        os.kill(int(rank_file(folder, rank, "pid").read_text()), 0)
    except ProcessLookupError:
        return not rank_file(folder, rank, "exit").exists()
    except (FileNotFoundError, ValueError):  # it has not started, or everything has ended
        pass
    return False


if __name__ == "__main__":
    main()
