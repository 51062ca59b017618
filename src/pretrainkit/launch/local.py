"""Start several ranks on this machine. This module does not import torch: torchrun's agent runs in a
separate process (see `agent`)."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pretrainkit.errors import InputError
from pretrainkit.launch.folder import Launch, LaunchFolder, Restarts
from pretrainkit.launch.rank import LOG_FOLDER, WORLD_SIZES, Stalls, rank_file
from pretrainkit.workers.processes import handled_signals

_log = logging.getLogger(__name__)

_FORWARDED = ("SIGTERM", "SIGINT", "SIGUSR1")
_SAVE_SECONDS = 600
"""Time for a rank to save and exit before it is killed."""
_TAIL_LINES = 15
_POLL_SECONDS = 0.1
_WATCH_SECONDS = 1.0


def launch_local(launch: Launch, run_folder: Path, module: str = "pretrainkit") -> int:
    """Run `python -m MODULE ARGUMENTS...` as the ranks of a launch, record it in the run folder, and wait for the
    ranks.

    Rank 0 writes to this terminal, and every rank r appends to `run_folder/logs/rank-r.log`. SIGTERM, SIGINT and
    SIGUSR1 are passed on to the ranks, which save and end. They also do this within seconds if this process is killed.
    If a rank fails, all others are stopped. All are restarted if there is a newer checkpoint than at their start,
    at most `launch.max_restarts` times. Elastic machines have a launcher each, whose agents meet and start the ranks
    again whenever machines come or go; a signal makes this machine leave.

    The folder `logs` is created in `run_folder`. If the ranks reject their input, a run folder that was created here is
    removed. `module` must not launch ranks itself if RANK is in the environment.

    Returns:
        The exit code of the worst rank: 1 failed, 2 bad input, 130 interrupted after saving, 0 finished.

    Raises:
        InputError: The log folder cannot be written, the number of processes is invalid, or another launcher is
            training the run.
    """
    num_processes, words = launch.processes_per_node, launch.words
    if num_processes < 1:
        raise InputError(f"the number of processes is {num_processes}; it must be at least 1")
    folder = LaunchFolder(run_folder.absolute())
    logs = folder.logs
    is_new = not run_folder.exists()
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write logs to {logs}: {error.strerror}\n  choose another run folder") from None
    if launch.elastic:
        logs = logs / f"{socket.gethostname()}-{os.getpid()}"
        logs.mkdir()
        words = launch.words_again
    with folder.held(shared=bool(launch.elastic)):
        folder.add(replace(launch, job_ids=(str(os.getpid()),)))
        restarts = Restarts(launch.max_restarts, folder.newest_checkpoint)
        while True:
            code, was_asked_to_stop = _run_ranks(launch, folder, [module, *words], logs)
            is_over = was_asked_to_stop or bool(launch.elastic)
            following = None if is_over else restarts.after_failure(code, folder.newest_checkpoint)
            cause = {0: "done", 2: "bad input", 130: "stopped by a signal"}.get(code, "a rank failed")
            folder.record_end(str(os.getpid()), code, cause, "restarted" if following else "ended")
            if following is None:
                break
            _log.warning(
                "a rank failed: all ranks restart from %s (at most %d more restarts)",
                following.checkpoint,
                following.left,
            )
            restarts, words = following, launch.words_again
    if code == 2 and is_new:
        folder.discard()  # the input was rejected with a message, and nothing was written
    return code


def _run_ranks(launch: Launch, folder: LaunchFolder, words: Sequence[str], logs: Path) -> tuple[int, bool]:
    """Run one attempt. Return the exit code of the worst rank, and True if the ranks were asked to stop."""
    num_processes = launch.processes_per_node
    rank_files = [rank_file(logs, rank, kind) for rank in range(num_processes) for kind in ("pid", "exit", "step")]
    for path in rank_files:
        path.unlink(missing_ok=True)
    environment = os.environ | {LOG_FOLDER: str(logs), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SAVE_SECONDS)}
    # Otherwise each rank would start as many threads as there are cores.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    meeting = ("1:1", "", uuid.uuid4().hex, "0")
    if not launch.elastic and any(name == "lo" for _, name in socket.if_nameindex()):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # Gloo would listen on the network
    if launch.elastic:
        meeting = (launch.elastic, launch.meet, logs.parents[1].name, str(launch.max_restarts))
        environment[WORLD_SIZES] = ",".join(map(str, launch.world_sizes))
    command = [sys.executable, "-m", "pretrainkit.launch.agent", str(num_processes), *meeting, *words]
    # In a separate session, so that the ranks get Ctrl-C only once, from this process.
    agent = subprocess.Popen(command, env=environment, start_new_session=True)
    with _forwarding(agent, logs, 0 if launch.elastic else num_processes) as received:
        _wait_for_agent(agent, folder, logs, launch)
        _wait_for_orphans(logs, num_processes)
    exits = [rank_file(logs, rank, "exit") for rank in range(num_processes)]
    codes = [int(path.read_text() or 1) if path.exists() else None for path in exits]
    for path in (*rank_files, *(logs.parent.glob("finished-*") if launch.elastic else ())):
        path.unlink(missing_ok=True)
    _log_failure(logs, codes)
    was_asked_to_stop = bool(received) or (bool(launch.elastic) and folder.is_cancelled)
    code = worst(codes, was_asked_to_stop)
    was_agent_killed = agent.returncode < 0 and not was_asked_to_stop
    return 1 if was_agent_killed and code == 130 else code, was_asked_to_stop


def _wait_for_agent(agent: subprocess.Popen[bytes], folder: LaunchFolder, logs: Path, launch: Launch) -> None:
    """Wait for the agent to end. If the ranks hang, end them, so that it ends, too, or starts them again if elastic. If
    an elastic run is cancelled, end the agent."""
    ranks, minutes = range(launch.processes_per_node), launch.hang_minutes
    stalls = Stalls(logs, ranks, 60 * minutes)
    while True:
        with suppress(subprocess.TimeoutExpired):
            agent.wait(_WATCH_SECONDS)
            return
        if launch.elastic and folder.is_cancelled:
            agent.terminate()
        if stalls.detected():
            _log.error(
                "error: no rank finished an update for %g minutes, so all are ended\n"
                "  the end of each log shows where they were: %s\n"
                "  if updates take so long, use --hang-minutes %g",
                *(minutes, rank_file(logs, 0, "log").with_stem("rank-*"), 4 * minutes),
            )
            for rank in ranks:
                rank_file(logs, rank, "exit").write_text("1")
            stalls.end()


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
    """Return the exit code of a run whose ranks ended with `codes`. None in `codes` is a killed or crashed rank.

    A rank may be killed because another rank failed, so the codes of other ranks take precedence.
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
    """Forward signals to the ranks; yield the list of received signals. Works only in the main thread, where Python
    allows signal handlers."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        pids = [path for rank in range(num_processes) if (path := rank_file(logs, rank, "pid")).exists()]
        for path in pids:
            with suppress(ProcessLookupError, ValueError, FileNotFoundError):
                os.kill(int(path.read_text()), number)
        if not pids:  # no rank has started, so there is nothing to save
            agent.terminate()

    try:
        with handled_signals(_FORWARDED, forward):
            yield received
    finally:
        if agent.poll() is None:  # after an error in this process, leave no orphans
            agent.terminate()
            agent.wait()


def _log_failure(logs: Path, codes: Sequence[int | None]) -> None:
    """Log the last lines of the first failed rank that has a log. Rank 0 has already printed its error."""
    for rank, code in enumerate(codes):
        path = rank_file(logs, rank, "log")
        if rank and code in (1, 2) and codes[0] not in (1, 2) and path.exists():
            tail = path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
            _log.error("rank %d ended with exit code %d; the last lines of %s:\n%s", rank, code, path, "\n".join(tail))
            return
