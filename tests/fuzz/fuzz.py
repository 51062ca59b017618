"""Pass damaged and generated input to all code that reads files, as the commands call it.

    python tests/fuzz/fuzz.py jsonl --seconds 60 --seed 1
    python tests/fuzz/fuzz.py all --executions 100000 --results build/fuzz/results.json
    python tests/fuzz/fuzz.py jsonl --input build/fuzz/jsonl-3f2a9c01

An execution is good if the reader returns, or raises an error that is meant for users. It is bad if it raises another
error or an empty message, takes more than 5 seconds of CPU time or 1 GB of memory, ends the process, starts a program,
connects to a host, unpickles an object, or writes outside of its folder. The input of each kind of bad execution is
saved. Inputs that reach new lines of the project are kept and changed further.

Executions are in a child process, which is watched, and started again after a crash, or when it has lost memory.
"""

import argparse
import faulthandler
import hashlib
import json
import logging
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mutate import Files, mutated

import pretrainkit
from pretrainkit.errors import PretrainKitError

SOURCE = str(Path(pretrainkit.__file__).parent)
SECONDS, WALL_SECONDS = 5.0, 120.0
MEMORY_BYTES = 1 << 30
_POOL = 400
_TRACED = 200
"""Executions at the beginning that are all traced; later every fourth, since tracing doubles the time."""
_LEAKED = 3
"""Exit code of a child whose memory grew, because libraries lose some in each execution. Another one continues."""
_STATE = struct.Struct("<qqd")
"""Target, execution, and the CPU time of the child when it began."""
_WRITES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.truncate"}
_FORBIDDEN = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class"}


class TooSlow(BaseException):
    """More CPU time than an execution may take. Not an Exception: readers must not take it for an error of theirs."""


class Forbidden(Exception):
    """A reader did what no input may make it do."""


class Sandbox:
    """The folder of the executions, and what the interpreter reports to have been done outside of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.problem, self.is_on = root, "", False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event in _FORBIDDEN:
            self.problem = self.problem or f"{event} {args[:2]!r}"
        elif event == "open":
            path, mode, flags = args
            is_written = any(mark in mode for mark in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR)
            if is_written:
                self._written(event, path)
        elif event in _WRITES and (event not in ("os.remove", "os.rmdir") or args[1] == -1):  # no name in a folder
            self._written(event, args[0])

    def _written(self, event: str, path: Any) -> None:
        if isinstance(path, int):
            return
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith((f"{self.root}/", "/dev/null")):
            self.problem = self.problem or f"{event} of {name}"


class Coverage:
    """Lines of the project that were reached. A function that showed nothing new for a while is rarely looked at."""

    def __init__(self) -> None:
        self._calls: dict[CodeType, int] = {}
        self._lines: set[tuple[CodeType, int]] = set()
        self.num_new = 0

    def traced(self, call: Callable[[], None]) -> None:
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        calls = self._calls.get(code)
        if calls is None:
            calls = 0 if code.co_filename.startswith(SOURCE) else -1
        if calls < 0:
            self._calls[code] = -1
            return None
        self._calls[code] = calls + 1
        return self._line if calls < 100 or not calls & 31 else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        key = (frame.f_code, frame.f_lineno)
        if key not in self._lines:
            self._lines.add(key)
            self._calls[frame.f_code] = 0
            self.num_new += 1
        return self._line


def cause_of(error: BaseException) -> str:
    """Return a key of the defect: the error's type, the line that raised it, and our innermost line."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(SOURCE)]
    last, own = frames[-1] if frames else None, ours[-1] if ours else None
    places = [
        f"{frame.filename.rpartition('/pretrainkit/')[2]}:{frame.lineno}" if frame else "?" for frame in (own, last)
    ]
    return f"{type(error).__name__} at {' in '.join(dict.fromkeys(places))}"


class Fuzzer:
    """Executions of one target."""

    def __init__(self, target: Any, seed: int, sandbox: Sandbox) -> None:
        self.target, self.seed, self.sandbox = target, seed, sandbox
        scratch = sandbox.root / "seeds"
        scratch.mkdir()
        self.seeds: list[Files] = target.seeds(scratch)
        shutil.rmtree(scratch)
        self.found: list[Files] = []
        self.coverage = Coverage()
        self.fixed = frozenset(target.fixed)

    def input(self, execution: int) -> Files:
        """Return the input of an execution: the seeds first, then changed ones."""
        if execution < len(self.seeds):
            return self.seeds[execution]
        rng = random.Random(f"{self.seed} {self.target.name} {execution}")
        origin = self.found if self.found and rng.random() < 0.6 else self.seeds
        files = mutated(rng.choice(origin), rng, [*self.seeds, *self.found[-20:]], self.target.tokens, self.fixed)
        if self.target.repair is not None and rng.random() < 0.75:
            files = self.target.repair(files)
        return files

    def execute(self, files: Files, folder: Path, *, is_traced: bool = True, seconds: float = SECONDS) -> None:
        """Raise what is wrong with one execution."""
        shutil.rmtree(folder, ignore_errors=True)  # left by an execution that was ended
        write(files, folder)
        self.sandbox.problem, self.sandbox.is_on = "", True
        before = self.coverage.num_new
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            if is_traced:
                self.coverage.traced(lambda: self.target.run(folder))
            else:
                self.target.run(folder)
        except PretrainKitError as error:
            if not str(error).strip():
                raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.sandbox.is_on = False
            shutil.rmtree(folder, ignore_errors=True)
        if self.sandbox.problem:
            raise Forbidden(self.sandbox.problem)
        if self.coverage.num_new > before and len(self.found) < _POOL:
            self.found.append(files)


def write(files: Files, folder: Path) -> None:
    """Write an input."""
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        if "/" in name:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read(folder: Path) -> Files:
    """Read an input that was saved."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


class Campaign:
    """Several targets, one after another, and their results."""

    def __init__(self, names: Sequence[str], args: argparse.Namespace, root: Path) -> None:
        self.names, self.args, self.root = names, args, root
        self.work = Path(args.work)
        state = root.parent / f"{root.name}.state"
        state.write_bytes(bytes(_STATE.size))
        with open(state, "r+b") as file:
            self.state = mmap.mmap(file.fileno(), _STATE.size)
        self.crash_log = root.parent / f"{root.name}.crash"
        self.progress = root.parent / f"{root.name}.progress"
        self.rows: dict[str, dict[str, Any]] = {}

    def run(self) -> dict[str, dict[str, Any]]:
        first, execution = 0, 0
        while first < len(self.names):
            sys.stdout.flush()
            child = os.fork()
            if not child:
                code = 1
                try:
                    code = self._child(first, execution)
                except BaseException:  # a fork must never return into the code of its parent
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            problem = self._watch(child)
            if self.progress.is_file():
                self.rows = json.loads(self.progress.read_text())
            if problem is None:
                break
            first, execution, _ = _STATE.unpack(self.state[:])
            name = self.names[first]
            if execution < 0 or problem == "ended with 1":
                raise RuntimeError(f"{name}: the fuzzer failed: {problem}\n{self.crash_log.read_text()}")
            if problem == f"ended with {_LEAKED}":
                execution += 1
                continue
            row = self.rows.setdefault(name, {"executions": 0, "seconds": 0.0, "found": {}})
            log = self.crash_log.read_text(errors="replace")
            places = [line.strip() for line in log.splitlines() if line.strip().startswith("File ")]
            inputs = sorted(self.root.glob("input-*"))
            self._note(
                row, name, f"{problem} at {places[0] if places else '?'}", read(inputs[-1]) if inputs else {}, log
            )
            row["executions"] = execution + 1
            execution += 1
            self.progress.write_text(json.dumps(self.rows))
            for left in self.root.iterdir():
                shutil.rmtree(left, ignore_errors=True)
        return self.rows

    def _watch(self, child: int) -> str | None:
        """Wait for a child. Returns why it ended too early, or None."""
        seen, since = b"", time.monotonic()
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return None if not code else f"ended with {signal.Signals(-code).name if code < 0 else code}"
            time.sleep(0.1)
            state = self.state[:]
            if state != seen:
                seen, since = state, time.monotonic()
                continue
            _, execution, begun = _STATE.unpack(state)
            slow = time.monotonic() - since > WALL_SECONDS or _cpu_seconds(child) - begun > 2 * SECONDS
            if execution >= 0 and slow:
                os.kill(child, signal.SIGABRT)  # faulthandler writes where it is
                time.sleep(0.5)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "hang"

    def _child(self, first: int, execution: int) -> int:
        from targets import TARGETS

        os.environ["PRETRAINKIT_CACHE"] = str(self.root / "cache")
        tempfile.tempdir = str(self.root / "temporary")
        log = open(self.crash_log, "w")  # noqa: SIM115 - open as long as the process
        faulthandler.enable(log, all_threads=False)
        signal.signal(signal.SIGPROF, _too_slow)
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        sandbox = Sandbox(self.root)
        for number, name in enumerate(self.names[first:], first):
            self._set_state(number, -1)
            Path(tempfile.tempdir).mkdir(exist_ok=True)
            fuzzer = Fuzzer(TARGETS[name], self.args.seed, sandbox)
            if not self._fuzz(number, name, fuzzer, execution):
                return _LEAKED
            execution = 0
        return 0

    def _set_state(self, target: int, execution: int) -> None:
        self.state[:] = _STATE.pack(target, execution, time.process_time())

    def _fuzz(self, number: int, name: str, fuzzer: Fuzzer, execution: int) -> bool:
        """Run the executions of a target. Returns False if the process has lost too much memory to continue."""
        row = self.rows.setdefault(name, {"executions": 0, "seconds": 0.0, "found": {}})
        for index, files in enumerate(fuzzer.seeds):  # loads what is loaded on first use
            try:
                fuzzer.execute(files, self.root / f"seed-{index}", seconds=WALL_SECONDS)
            except PretrainKitError:
                raise
            except Exception as error:
                self._note(row, name, cause_of(error), files, traceback.format_exc())
        limits = resource.getrlimit(resource.RLIMIT_AS)
        leaked = _mapped_bytes() + MEMORY_BYTES // 4
        resource.setrlimit(resource.RLIMIT_AS, (_mapped_bytes() + MEMORY_BYTES, limits[1]))
        before, end = row["seconds"], time.monotonic() + self.args.seconds - row["seconds"]
        start = shown = time.monotonic()
        while execution < self.args.executions and time.monotonic() < end:
            files = fuzzer.input(execution)
            self._set_state(number, execution)
            try:
                is_traced = execution < _TRACED or not execution % 4
                fuzzer.execute(files, self.root / f"input-{execution:09}", is_traced=is_traced)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also TooSlow, and panics of Rust
                self._note(row, name, cause_of(error), files, traceback.format_exc())
            execution += 1
            row["executions"], row["seconds"] = execution, round(before + time.monotonic() - start, 1)
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                self.progress.write_text(json.dumps(self.rows))
            if not execution % 100 and _mapped_bytes() > leaked:
                self.progress.write_text(json.dumps(self.rows))
                return False
        resource.setrlimit(resource.RLIMIT_AS, limits)
        row["lines"], row["kept"] = len(fuzzer.coverage._lines), len(fuzzer.found)
        self.progress.write_text(json.dumps(self.rows))
        print(f"{name}: {execution:,} executions in {row['seconds']:.0f} s, {len(row['found'])} found", flush=True)
        return True

    def _note(self, row: dict[str, Any], name: str, cause: str, files: Files, details: str) -> None:
        """Count a bad execution, and save the first input of its kind."""
        if cause not in row["found"]:
            digest = hashlib.blake2b(cause.encode(), digest_size=4).hexdigest()
            place = self.work / f"{name}-{digest}"
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                write(files, place)
                place.with_suffix(".log").write_text(f"{cause}\n{details}", errors="replace")
            row["found"][cause] = {"count": 0, "input": str(place)}
            print(f"{name}: {cause}\n  saved as {place}", flush=True)
        row["found"][cause]["count"] += 1
        self.progress.write_text(json.dumps(self.rows))  # the process may end at any time


def _too_slow(signum: int, frame: FrameType | None) -> None:
    raise TooSlow(f"more than {SECONDS:.0f} s")


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fuzz(names: Sequence[str], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run targets. Returns the executions, seconds and defects of each."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        root = Path(folder, "root")
        root.mkdir()
        return Campaign(names, args, root).run()


def main() -> None:
    from targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=["all", *TARGETS], nargs="+")
    parser.add_argument("--seconds", type=float, default=1e9, help="seconds for each target")
    parser.add_argument("--executions", type=int, default=0, help="executions of each target; 0: as many as fit")
    parser.add_argument("--seed", type=int, default=0, help="the same seed tries the same inputs")
    parser.add_argument("--work", default="build/fuzz", help="folder for the inputs of bad executions")
    parser.add_argument("--results", help="JSON file to add the counts to")
    parser.add_argument("--input", help="only run the input that is saved in this folder, and show its error")
    args = parser.parse_args()
    if args.input:
        with tempfile.TemporaryDirectory() as scratch:
            write(read(Path(args.input)), Path(scratch, "input"))
            TARGETS[args.target[0]].run(Path(scratch, "input"))
        return
    if not args.executions:
        args.executions = 10**12 if args.seconds < 1e9 else 10_000
    names = list(TARGETS) if "all" in args.target else args.target
    print(f"seed {args.seed}", flush=True)
    rows = fuzz(names, args)
    if args.results:
        path = Path(args.results)
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(known | {f"{name} seed {args.seed}": row for name, row in rows.items()}, indent=1))
    sys.exit(any(row["found"] for row in rows.values()))


if __name__ == "__main__":
    main()
