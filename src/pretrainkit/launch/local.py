"""Several processes on this machine. Torch-free: torchrun's agent runs in a process of its own (see `agent`)."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pretrainkit.errors import InputError
from pretrainkit.launch.folder import Launch, LaunchFolder, Restarts
from pretrainkit.launch.rank import LOG_FOLDER, rank_file

_log = logging.getLogger(__name__)

_FORWARDED = ("SIGTERM", "SIGINT", "SIGUSR1")
_SAVE_SECONDS = 600
"""Time for a rank to save and exit before it is killed."""
_TAIL_LINES = 15
_POLL_SECONDS = 0.1


def launch_local(launch: Launch, run_folder: Path, module: str = "pretrainkit") -> int:
    """Run `python -m MODULE WORDS...` as the ranks of a launch, which the run remembers, and wait for them.

    Rank 0 writes to this terminal, and every rank r to the end of `run_folder/logs/rank-r.log`. SIGTERM, SIGINT and
    SIGUSR1 are passed on to the ranks, which save and end. When this process is killed they do so too, within seconds.
    When a rank fails all others are stopped, and all are started again if there is a newer checkpoint than when they
    began. Raises InputError where the log folder cannot be written, there is no such number of processes, or another
    launcher trains there.

    `run_folder` gets a folder `logs`; when the ranks refuse their input, a folder made here is removed again. `module`
    must not launch again when RANK is in the environment. Returns the exit code of the worst rank: 1 failed, 2 bad
    input, 130 interrupted after saving, 0 done.
    """
    num_processes, words = launch.processes_per_node, launch.words
    if num_processes < 1:
        raise InputError(f"{num_processes} processes were asked for; it takes at least 1")
    folder = LaunchFolder(run_folder.absolute())
    logs = folder.logs
    is_new = not run_folder.exists()
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write logs into {logs}: {error.strerror}\n  choose another run folder") from None
    with folder.held():
        folder.add(replace(launch, job_ids=(str(os.getpid()),)))
        restarts = Restarts(launch.max_restarts, folder.newest_checkpoint)
        while True:
            code, was_asked_to_stop = _run_ranks([module, *words], num_processes, logs)
            following = None if was_asked_to_stop else restarts.after_failure(code, folder.newest_checkpoint)
            cause = {0: "done", 2: "bad input", 130: "stopped by a signal"}.get(code, "a rank failed")
            folder.ended(str(os.getpid()), code, cause, "restarted" if following else "ended")
            if following is None:
                break
            _log.warning(
                "a rank failed: all start again from %s (%d more times at most)", following.checkpoint, following.left
            )
            restarts, words = following, launch.words_again
    if code == 2 and is_new:
        folder.discard()  # refused: all was said, and nothing was made
    return code


def _run_ranks(words: Sequence[str], num_processes: int, logs: Path) -> tuple[int, bool]:
    """One attempt: the exit code of the worst rank, and whether the ranks were asked to stop."""
    left = [rank_file(logs, rank, kind) for rank in range(num_processes) for kind in ("pid", "exit")]
    for path in left:
        path.unlink(missing_ok=True)
    environment = os.environ | {LOG_FOLDER: str(logs), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SAVE_SECONDS)}
    # Otherwise each rank would start as many threads as there are cores.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    command = [sys.executable, "-m", "pretrainkit.launch.agent", str(num_processes), *words]
    # A session of its own, so that Ctrl-C in the terminal reaches the ranks once, from here.
    agent = subprocess.Popen(command, env=environment, start_new_session=True)
    with _forwarding(agent, logs, num_processes) as received:
        agent.wait()
        _wait_for_orphans(logs, num_processes)
    exits = [rank_file(logs, rank, "exit") for rank in range(num_processes)]
    codes = [int(path.read_text() or 1) if path.exists() else None for path in exits]
    for path in left:
        path.unlink(missing_ok=True)
    _tell_failures(logs, codes)
    code = worst(codes, was_asked_to_stop=bool(received))
    was_agent_killed = agent.returncode < 0 and not received
    return 1 if was_agent_killed and code == 130 else code, bool(received)


def _wait_for_orphans(logs: Path, num_processes: int) -> None:
    """Wait for the ranks of a killed agent to save and exit, before new ranks replace them."""
    deadline = time.monotonic() + _SAVE_SECONDS
    for rank in range(num_processes):
        with suppress(ProcessLookupError, ValueError, FileNotFoundError):
            pid = int(rank_file(logs, rank, "pid").read_text())
            while not rank_file(logs, rank, "exit").exists():
                os.kill(pid, 0 if time.monotonic() < deadline else signal.SIGKILL)
                time.sleep(_POLL_SECONDS)


def worst(codes: Sequence[int | None], was_asked_to_stop: bool) -> int:
    """Return the exit code of a run whose ranks ended with `codes`; None in `codes`: killed or crashed.

    A rank that is killed because another rank failed has no information, so the codes of other ranks come first.
    """
    known = {code for code in codes if code is not None}
    if known - {0, 2, 130}:
        return 1
    if 2 in known:
        return 2
    if None in codes:
        return 130 if was_asked_to_stop else 1
    return 130 if 130 in known else 0


@contextmanager
def _forwarding(agent: subprocess.Popen[bytes], logs: Path, num_processes: int) -> Iterator[list[int]]:
    """Pass signals on to the ranks; the list holds those that came. Only in the main thread, as Python has it."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        pids = [path for rank in range(num_processes) if (path := rank_file(logs, rank, "pid")).exists()]
        for path in pids:
            with suppress(ProcessLookupError, ValueError, FileNotFoundError):
                os.kill(int(path.read_text()), number)
        if not pids:  # nothing runs yet that could save
            agent.terminate()

    previous = {}
    if threading.current_thread() is threading.main_thread():
        for name in _FORWARDED:
            if (number := getattr(signal.Signals, name, None)) is not None:
                previous[number] = signal.signal(number, forward)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if agent.poll() is None:  # an error of ours: leave no orphans
            agent.terminate()
            agent.wait()


def _tell_failures(logs: Path, codes: Sequence[int | None]) -> None:
    """The last lines of the first failed rank that has a log; rank 0 has spoken for itself."""
    for rank, code in enumerate(codes):
        path = rank_file(logs, rank, "log")
        if rank and code in (1, 2) and codes[0] not in (1, 2) and path.exists():
            tail = path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
            _log.error("rank %d ended with exit code %d; the last lines of %s:\n%s", rank, code, path, "\n".join(tail))
            return
