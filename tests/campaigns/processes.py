"""Start commands of pretrainkit as processes, kill them, and wait for everything that they started."""

import ctypes
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src"
SHIM = Path(__file__).resolve().parent / "shim"
DISK = "campaign_faults.so"
HANG_SECONDS = 180
"""After this time a process counts as hanging."""
ORPHAN_SECONDS = 60
"""Time for processes to end after the process that started them."""


class Ended(NamedTuple):
    """The end of a command."""

    code: int
    """Negative: the signal that ended it."""
    seconds: float
    out: str
    err: str
    was_struck: bool
    """True if the planned signal was sent."""
    orphans: tuple[int, ...]
    """Processes that did not end after it, until they were killed here."""


class Plan(NamedTuple):
    """A signal to send. Either `after_seconds` is set, or `kind` and `number` of a file operation; see the shim."""

    signal: int
    target: str
    """The process to signal: self, child or all."""
    after_seconds: float | None = None
    kind: str = ""
    number: int = 0
    fault: str = ""
    """Name of the error with which the operation fails, or an action of faults.c, or NaN; then no signal is sent."""
    times: int = 1
    """Number of operations of this kind that fail."""
    milliseconds: int = 0
    """Used by the faults delay and gone."""

    @property
    def name(self) -> str:
        """Name in the table of results."""
        if self.fault in ("gone", "clock", "NaN"):
            return self.fault
        if self.fault:
            return f"{self.fault}, {self.kind}"
        if self.signal in (0, signal.SIGSTOP):
            return "frozen rank" if self.signal else "hanging rank"
        moment = "random time" if self.after_seconds is not None else f"before {self.kind}"
        return f"{signal.Signals(self.signal).name}, {self.target}, {moment}"


def run_command(
    words: list[str],
    folder: Path,
    life: Path,
    *,
    plan: Plan | None = None,
    trace: Path | None = None,
    is_cold: bool = False,
    script: Path | None = None,
    rng: random.Random | None = None,
    roots: list[Path] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run `pretrainkit WORDS...` in `folder`, whose operations count for the plan, and wait for it.

    `life`: a folder for output, temporary files and caches. `is_cold`: start a new Python; otherwise this process,
    which has loaded torch but nothing of pretrainkit, forks, which saves three seconds. `script`: a Python file to run
    in place of pretrainkit. `roots`: folders whose files have faults, in place of `folder`. `variables`: more of the
    environment.
    """
    (life / "tmp").mkdir(parents=True, exist_ok=True)
    marker = life / "struck"
    for path in (marker, life / "struck.counts", life / "out", life / "err"):
        path.unlink(missing_ok=True)
    environment = {**environment_of(folder, life), **(variables or {})}
    if DISK in environment.get("LD_PRELOAD", "") and (plan is None or plan.fault):
        environment["CAMPAIGN_DISK"] = _disk(plan, marker, roots or [folder])
    if plan is not None and plan.fault == "NaN":
        nan = {"number": plan.number, "times": plan.times, "marker": str(marker)}
        environment["CAMPAIGN_NAN"] = json.dumps(nan)
    elif plan is not None and plan.fault:
        pass
    elif plan is not None and plan.kind:
        scope = "all" if plan.target == "all" else "self"
        kill = {"kind": plan.kind, "number": plan.number, "signal": plan.signal, "scope": scope, "marker": str(marker)}
        environment["CAMPAIGN_KILL"] = json.dumps(kill)
    if trace is not None:
        environment["CAMPAIGN_TRACE"] = str(trace)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _become(script, words, folder, life, environment, is_cold)
    is_due = plan is not None and plan.after_seconds is not None
    code = None
    was_struck = False
    while code is None:
        seconds = time.monotonic() - started
        if is_due and plan is not None and seconds >= (plan.after_seconds or 0):
            is_due, was_struck = False, True
            _send(plan, pid, folder, rng or random.Random(0))
        if seconds > HANG_SECONDS:
            for other in {pid, *processes_of(pid, folder)}:
                signal_to(other, signal.SIGUSR1)
            time.sleep(1)
            for other in {pid, *processes_of(pid, folder)}:
                signal_to(other, signal.SIGKILL)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.01)
    seconds = time.monotonic() - started
    orphans = end_orphans(pid, folder)
    paths = [life / name for name in ("out", "err")]  # absent if the process was killed before it opened them
    out, err = (path.read_text("utf-8", "replace") if path.is_file() else "" for path in paths)
    return Ended(code, seconds, out, err, was_struck or marker.exists(), orphans)


def _disk(plan: Plan | None, marker: Path, roots: list[Path]) -> str:
    """The text for faults.c. Without a plan it only counts operations."""
    words: list[object] = ["any", 10**12, 1, "errno", 0]
    if plan is not None and plan.fault in ("short", "delay", "gone", "clock"):
        words = [plan.kind, plan.number, plan.times, plan.fault, plan.milliseconds]
    elif plan is not None and plan.fault != "NaN":
        words = [plan.kind, plan.number, plan.times, "errno", getattr(errno, plan.fault)]
    return " ".join(map(str, [*words, marker, *(f"{root}/" for root in roots)]))


def with_disk_faults(work: Path) -> None:
    """Start this Python again with faults.c loaded, unless it is. Raises OSError if there is no C compiler."""
    if DISK in os.environ.get("LD_PRELOAD", ""):
        return
    library = work / DISK
    work.mkdir(parents=True, exist_ok=True)
    source = SHIM / "faults.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(source), "-ldl"], check=True)
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": str(library)})


def environment_of(folder: Path, life: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_PRELOAD") if name in os.environ}
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, (SHIM, SOURCE, TESTS))),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "PRETRAINKIT_CACHE": str(life / "cache"),
        "TMPDIR": str(life / "tmp"),
        "CAMPAIGN_ROOT": f"{folder}/",
    }


def _become(
    script: Path | None,
    words: list[str],
    folder: Path,
    life: Path,
    environment: dict[str, str],
    is_cold: bool,
) -> None:
    """Turn this forked process into the command. Does not return."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if is_cold:
        for number, path in enumerate((os.devnull, f"{life}/out", f"{life}/err")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY), number)
        os.chdir(folder)
        command = [sys.executable, *([str(script)] if script else ["-m", "pretrainkit"]), *words]
        os.execve(sys.executable, command, environment)
    from support.warm_server import run

    if "CAMPAIGN_DISK" in environment:
        ctypes.CDLL(None).campaign_disk(environment["CAMPAIGN_DISK"].encode())
    run(str(script or Path(__file__).with_name("command.py")), words, environment, str(life), str(folder))
    sys.exit(0)


def _send(plan: Plan, pid: int, folder: Path, rng: random.Random) -> None:
    related = sorted(processes_of(pid, folder) - {pid})
    targets = [pid]
    workers = [other for other in related if not _is_resource_tracker(other)]
    if plan.target == "child" and workers:
        targets = [rng.choice(workers)]
    elif plan.target == "all":
        targets += related
    for target in targets:
        signal_to(target, plan.signal)


def _is_resource_tracker(pid: int) -> bool:
    """True for the process in which Python notes semaphores. If it ends, Python starts another one, which prints a
    traceback for each of them."""
    with suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path("/proc", str(pid), "cmdline").read_bytes()
    return False


def signal_to(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def processes_of(pid: int, folder: Path) -> set[int]:
    """Processes of the session of `pid`, and those whose environment names the folder."""
    marker = f"CAMPAIGN_ROOT={folder}/\0".encode()
    related = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                is_alive = fields[0] != "Z"
                if is_alive and (int(fields[3]) == pid or marker in Path("/proc", entry, "environ").read_bytes()):
                    related.add(int(entry))
    return related


def end_orphans(pid: int, folder: Path) -> tuple[int, ...]:
    deadline = time.monotonic() + ORPHAN_SECONDS
    while related := processes_of(pid, folder):
        if time.monotonic() > deadline:
            for other in related:
                signal_to(other, signal.SIGKILL)
            return tuple(sorted(related))
        time.sleep(0.05)
    return ()


def revision() -> str:
    """Return the commit of this checkout."""
    git = ["git", "-C", str(TESTS), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
