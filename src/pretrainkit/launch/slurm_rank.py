"""Entry point of each task of a SLURM job: run one rank, and requeue the job if the run is not finished.

A task starts `pretrainkit.launch.rank` as a child and waits for it. On the scheduler's signals the child saves and ends
with 130. The first task that notices this requeues the job under the same id, unless the job was cancelled, and the
same command continues from the checkpoint. If a rank fails, the job is also requeued, as long as the run makes
progress. Signals: USR2, sent `signal_seconds` before the time limit; TERM, sent at a pre-emption with a grace period.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pretrainkit.launch.folder import LaunchFolder, Restarts
from pretrainkit.launch.rank import LOG_FOLDER, Stalls, rank_file

_POLL_SECONDS = 0.2
_REPEAT_SECONDS = 2.0
"""Time between repeated signals: a child that is still importing ignores the first one."""
_MEETING_SECONDS = 600
"""Maximum time to wait for the address of rank 0."""
_END_SECONDS = 300
"""Time that a task waits to be ended by the scheduler after the job was requeued."""


@dataclass(frozen=True)
class RankJob:
    """Callable that submitit runs in every task. It has only data that is also in `RUN/launch`, so its pickle is
    small."""

    words: tuple[str, ...]
    run_folder: str
    max_restarts: int
    max_timeouts: int
    hang_minutes: float = 0
    module: str = "pretrainkit"

    def __call__(self) -> int:
        """Run this task's rank until it ends. Return 0, or exit the process with the code of the rank."""
        import submitit

        task = submitit.JobEnvironment()
        folder = LaunchFolder(self.run_folder)
        folder.logs.mkdir(parents=True, exist_ok=True)
        checkpoint = folder.newest_checkpoint
        child = self._start(task, folder)
        with _forwarded(child) as signals:
            code = _wait(child, signals, Stalls(folder.logs, [task.global_rank], 60 * self.hang_minutes))
        exit_file = rank_file(folder.logs, task.global_rank, "exit")
        if code < 0:  # killed, possibly by the scheduler's signal before training began or after it ended
            code = int(exit_file.read_text() or 1) if exit_file.exists() else 130 if signals else 1
        for kind in ("pid", "exit", "step"):
            rank_file(folder.logs, task.global_rank, kind).unlink(missing_ok=True)
        if code in (0, 2):
            self._end(task, folder, code, "done" if code == 0 else "bad input", is_requeued=False)
        elif code == 130:
            cause = "its time limit" if signal.SIGUSR2 in signals else "a pre-emption"
            is_requeued = not folder.is_cancelled and not (task.cluster == "slurm" and _is_cancelled(task.job_id))
            timeouts = sum(row["cause"] == "its time limit" for row in self._attempts(task, folder))
            is_requeued = is_requeued and timeouts < self.max_timeouts
            self._end(task, folder, code, cause if is_requeued else "cancelled", is_requeued=is_requeued)
        else:
            failures = sum(row["code"] == 1 for row in self._attempts(task, folder))
            restarts = Restarts(self.max_restarts - failures, checkpoint)
            may_restart = restarts.after_failure(code, folder.newest_checkpoint) is not None
            is_requeued = may_restart and not folder.is_cancelled
            self._end(task, folder, code, f"rank {task.global_rank} failed", is_requeued=is_requeued)
        return code

    def _start(self, task: Any, folder: LaunchFolder) -> subprocess.Popen[bytes]:
        for kind in ("exit", "step"):
            rank_file(folder.logs, task.global_rank, kind).unlink(missing_ok=True)
        host, port = _meet(task, folder)
        environment = os.environ | {
            "RANK": str(task.global_rank),
            "WORLD_SIZE": str(task.num_tasks),
            "LOCAL_RANK": str(task.local_rank),
            "LOCAL_WORLD_SIZE": str(task.num_tasks // task.num_nodes),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            LOG_FOLDER: str(folder.logs),
        }
        environment.setdefault("OMP_NUM_THREADS", os.environ.get("SLURM_CPUS_PER_TASK", "1"))
        command = [sys.executable, "-u", "-m", "pretrainkit.launch.rank", self.module, *self.words]
        return subprocess.Popen(command, env=environment)

    def _attempts(self, task: Any, folder: LaunchFolder) -> list[dict[str, Any]]:
        return [row for row in folder.attempts() if row["job"] == task.job_id]

    def _end(self, task: Any, folder: LaunchFolder, code: int, cause: str, *, is_requeued: bool) -> None:
        """Exit with this code. Only the first task that gets here records the end and requeues the job."""
        _of_attempt("address", task, folder).unlink(missing_ok=True) if task.global_rank == 0 else None
        is_first = _is_first(_of_attempt("ended", task, folder)) if code else task.global_rank == 0
        if is_first:
            folder.record_end(task.job_id, code, cause, "requeued" if is_requeued else "ended")
            if is_requeued:
                task._requeue(0)
        if is_requeued and task.cluster == "slurm":
            time.sleep(_END_SECONDS)  # the scheduler ends all tasks; a task that exits would fail the job
        elif is_requeued:
            task._requeue(0)
        if code:
            sys.exit(code)


@contextmanager
def _forwarded(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Forward the scheduler's signals to the child; yield the list of received signals.

    The child always gets USR2, which a rank may get more than once. TERM would end a rank that is still importing.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        child.send_signal(signal.SIGUSR2)

    for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, handle)
    try:
        yield received
    finally:
        for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the task is about to end, so later signals are ignored


def _wait(child: subprocess.Popen[bytes], signals: list[int], stalls: Stalls) -> int:
    """Return the child's exit code. After a signal, repeat the signal until the child ends. End a child that hangs."""
    last = time.monotonic()
    while (code := child.poll()) is None:
        time.sleep(_POLL_SECONDS)
        if signals and time.monotonic() - last > _REPEAT_SECONDS:
            last = time.monotonic()
            child.send_signal(signal.SIGUSR2)
        if stalls.detected():
            print("error: this rank finished no update for too long; its stacks are above", file=sys.stderr)
            stalls.end()
    return code


def _of_attempt(name: str, task: Any, folder: LaunchFolder) -> Path:
    """Return the path of a file of the current attempt: it has another name each time the job runs."""
    return folder.path / "jobs" / f"{name}-{task.job_id}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"


def _meet(task: Any, folder: LaunchFolder) -> tuple[str, int]:
    """Return host and port of rank 0. Rank 0 chooses a free port on its node and writes it to the shared folder."""
    path = _of_attempt("address", task, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    if task.global_rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        partial = path.with_suffix(".partial")
        partial.write_text(f"{task.hostnames[0]} {port}")
        os.replace(partial, path)
        return task.hostnames[0], port
    deadline = time.monotonic() + _MEETING_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            print(
                f"error: rank 0 did not write its address to {path} within {_MEETING_SECONDS} seconds\n"
                "  the run folder must be on a file system that all nodes share",
                file=sys.stderr,
            )
            sys.exit(1)
        time.sleep(_POLL_SECONDS)
    host, port_text = path.read_text().split()
    return host, int(port_text)


def _is_first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _is_cancelled(job_id: str) -> bool:
    """True if the scheduler reports that the job was cancelled."""
    shown = subprocess.run(["scontrol", "show", "job", job_id], capture_output=True, text=True, timeout=60)
    return "JobState=CANCELLED" in shown.stdout
