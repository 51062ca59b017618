"""Run a sweep: each fine-tuning in a separate process, several at a time. Finished runs are not repeated.
docs/architecture.md lists its files."""

import json
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretrainkit.config.yaml import parse_yaml
from pretrainkit.errors import InputError, RunError
from pretrainkit.files.manifest import read_object, write_text
from pretrainkit.files.work import lock
from pretrainkit.sweep.memory import Machine, MemoryBudget, gpu_of
from pretrainkit.sweep.plan import BENCHMARK, Cell, Plan
from pretrainkit.sweep.results import Choice, Metrics, as_html, as_json, as_markdown, choose

SUMMARY = "summary.json"
_LAST_LINES = 4
_MEASURE_SECONDS = 1.0
"""Time between two measurements of memory usage."""


class Worker:
    """Runs `pretrainkit` commands, each in a separate process."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self.lock: int | None = None
        """File descriptor that the processes keep open as long as they live."""

    def run(self, arguments: Sequence[str], log: Path) -> int:
        """Run `pretrainkit ARGUMENTS`, write its output to `log`, and return its exit code. Safe to call from several
        threads."""
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pretrainkit", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=() if self.lock is None else (self.lock,),
            )
            self._running.add(process)
            code = process.wait()
        self._running.discard(process)
        return code

    def pids(self) -> list[int]:
        return [process.pid for process in list(self._running)]

    def stop(self) -> None:
        """Ask running processes to save and end."""
        for process in list(self._running):
            process.terminate()


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[int | None]:
    """Lock this folder against other sweeps. Yield the descriptor of the lock file, or None if the system has no such
    locks. Processes that inherit the descriptor hold the lock while they live. Raises InputError if another sweep, or a
    run of a killed sweep, is still running in the folder."""
    with open(folder / ".lock", "a") as file:
        is_locked = lock(file)
        if is_locked is False:
            raise InputError(
                f"a sweep, or a run of a killed sweep, is still running in {folder}\n"
                "  wait until it ends, or end it; then repeat the command to continue"
            )
        yield file.fileno() if is_locked else None


@dataclass(frozen=True)
class Sweep:
    """A plan and its folder."""

    plan: Plan
    out: Path
    num_jobs: int = 1
    """Maximum number of runs at a time; fewer if memory is short."""
    keeps_all: bool = False
    """True to keep the weights of runs that were not chosen."""
    say: Callable[[str], None] = field(default=lambda text: None)
    """Called with a line of text for every run that ended."""
    worker: Worker = field(default_factory=Worker)
    num_rows: Mapping[str, int] = field(default_factory=lambda: BENCHMARK.num_rows)
    """Number of rows of the test sets, by file of the submission."""
    machine: Machine | None = None
    """The machine whose memory the runs share; None for this machine."""

    def run(self) -> list[Choice]:
        """Train all runs, choose the best, and write the tables; the submission is separate. Raises InputError if the
        encoder does not exist, or the folder belongs to another sweep or is in use. Raises RunError if runs failed: all
        other runs are done, and the same call repeats the failed runs."""
        self._claim()
        with exclusive_folder(self.out) as self.worker.lock:
            return self._run()

    def _run(self) -> list[Choice]:
        chosen: dict[str, Choice] = {}
        memory = MemoryBudget(self.machine or Machine(gpu_of(self.plan.device)), self.say, self.num_jobs)
        for stage in self.plan.stages:
            cells = [cell for task in stage for cell in self.plan.cells(task)]
            if BENCHMARK.intermediate in chosen:
                self._remove_other_starts(cells, chosen[BENCHMARK.intermediate].cell)
            self._train([cell for cell in cells if not self._is_finished(cell)], chosen, memory)
            for task in stage:
                chosen[task] = choose(task, {cell: self._metrics(cell) for cell in self.plan.cells(task)})
                best = chosen[task].cell
                if not any(self._weights(best).glob("step-*")):  # runs were added, and the best has no weights left
                    self._train([best], chosen, memory)
                for cell in self.plan.cells(task):
                    if cell != best and not self.keeps_all:
                        shutil.rmtree(self._weights(cell), ignore_errors=True)
        self._show_warnings()
        choices = [chosen[task] for task in self.plan.tasks]
        write_text(self.out / "results.json", json.dumps(as_json(choices), indent=2) + "\n")
        write_text(self.out / "results.md", as_markdown(choices))
        write_text(self.out / "results.html", as_html(choices))
        return choices

    def submit(self, choices: Iterable[Choice], device: str | None = None) -> tuple[Path, list[str]]:
        """Predict the test sets with the chosen runs, and write the zip. Return its path, and the problems for which
        the leaderboard would reject it: files that are missing because data or a run is missing, and wrong files, such
        as those of an incomplete test set."""
        from pretrainkit import api
        from pretrainkit.tasks.named_data import task_folders

        by_task = {choice.task: choice for choice in choices}
        folders = [f"data.task_folders={json.dumps(task_folders(self.plan.folders))}"] if self.plan.folders else []

        def answers(trained: str, task: str, split: str, name: str) -> list[dict[str, Any]]:
            out = self.out / "answers" / f"{Path(name).stem}.jsonl"
            out.parent.mkdir(exist_ok=True)
            run = self.out / by_task[trained].cell.name
            api.predict(run, out, task=task, split=split, overrides=folders, overwrite=True, device=device)
            return [json.loads(line) for line in out.read_text("utf-8").splitlines()]

        return BENCHMARK.submit(self.out, by_task, answers, self.num_rows)

    def _claim(self) -> None:
        """Write the settings that all runs share, or compare them with the stored settings."""
        origin = self.plan.origin
        if not Path(origin).exists():
            raise InputError(f"there is no folder {origin}\n  pass a run, a checkpoint or an export: --from RUN")
        path = self.out / "sweep.json"
        shared = {"from": origin, "settings": [*self.plan.settings], "intermediate_mnli": self.plan.has_intermediate}
        if path.is_file():
            earlier = read_object(path)
            if earlier != shared:
                changes = "".join(
                    f"  {name}: {json.dumps(earlier.get(name))} there, {json.dumps(value)} now\n"
                    for name, value in shared.items()
                    if earlier.get(name) != value
                )
                raise InputError(
                    f"{self.out} holds another sweep\n{changes}"
                    "  only tasks, learning rates and seeds may be added; for other settings choose another --out"
                )
            return
        self.out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(shared, indent=2) + "\n")

    def _train(self, cells: list[Cell], chosen: Mapping[str, Choice], memory: MemoryBudget) -> None:
        def train(cell: Cell) -> int:
            folder = self.out / cell.name
            folder.parent.mkdir(parents=True, exist_ok=True)
            origin = self.plan.origin
            if self.plan.has_intermediate and cell.task in BENCHMARK.after_it:
                origin = str(self.out / chosen[BENCHMARK.intermediate].cell.name)
            return self.worker.run(self.plan.arguments(cell, self.out, origin), Path(f"{folder}.log"))

        failed = []
        for number, (cell, code) in enumerate(self._ended(cells, train, memory), 1):
            if code or not self._is_finished(cell):
                failed.append(cell)
                self.say(f"{number}/{len(cells)} {cell.name} FAILED, see {self.out / cell.name}.log")
            else:
                self.say(f"{number}/{len(cells)} {cell.name} score {self._metrics(cell)['score']:.2f}")
        if failed:
            log = Path(f"{self.out / failed[0].name}.log")
            last = "\n".join(f"  {line}" for line in log.read_text("utf-8", "replace").splitlines()[-_LAST_LINES:])
            raise RunError(
                f"{len(failed)} of {len(cells)} runs failed, the first: {failed[0].name}\n{last}\n"
                "  all other runs are done; repeat the command to try the failed runs again"
            )

    def _show_warnings(self) -> None:
        """Print the first line of each warning in the logs of the runs, with the number of runs and one of the logs.
        Runs print all else as JSON, apart from notes."""
        logs: dict[str, list[Path]] = {}
        for log in (Path(f"{self.out / cell.name}.log") for task in self.plan.tasks for cell in self.plan.cells(task)):
            lines = log.read_text("utf-8", "replace").splitlines() if log.is_file() else []
            for line in dict.fromkeys(lines):
                if line.strip() and not line.startswith(("{", " ", "note: ")):
                    logs.setdefault(line, []).append(log)
        for line, paths in logs.items():
            self.say(f"warning of {len(paths)} {'run' if len(paths) == 1 else 'runs'}, see {paths[0]}: {line}")

    def _ended(
        self, cells: Iterable[Cell], train: Callable[[Cell], int], memory: MemoryBudget
    ) -> Iterator[tuple[Cell, int]]:
        """Run all cells, at most `num_jobs` at a time, and only as many as fit into memory. Yield each with its exit
        code."""
        waiting, running = deque(cells), dict[Future[int], Cell]()
        with ThreadPoolExecutor(self.num_jobs) as pool:
            try:
                while waiting or running:
                    pids = self.worker.pids()
                    while waiting and len(running) < self.num_jobs and memory.fits(pids, len(running)):
                        memory.begin()
                        cell = waiting.popleft()
                        running[pool.submit(train, cell)] = cell
                    # If only one run is active at a time, no measurement is needed.
                    is_watched = self.num_jobs > 1
                    done, _ = wait(running, _MEASURE_SECONDS if is_watched else None, FIRST_COMPLETED)
                    if is_watched:
                        memory.measure(self.worker.pids())
                    for job in done:
                        memory.end()
                        yield running.pop(job), job.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.worker.stop()

    def _remove_other_starts(self, cells: Iterable[Cell], right: Cell) -> None:
        """Remove runs that began from an intermediate run that is no longer chosen, for example after learning rates
        were added: a table must not mix starts."""
        for cell in cells:
            folder = self.out / cell.name
            config = folder / "config.yaml"
            if cell.task not in BENCHMARK.after_it or not config.is_file():
                continue
            values = parse_yaml(config.read_text("utf-8"), str(config))
            start = Path(values["init_from"]).parts[-len(Path(right.name).parts) :]
            if start != Path(right.name).parts:
                self.say(f"{cell.name} is trained again: it started from {'/'.join(start)}, not {right.name}")
                shutil.rmtree(folder)

    def _is_finished(self, cell: Cell) -> bool:
        return (self.out / cell.name / SUMMARY).is_file()

    def _weights(self, cell: Cell) -> Path:
        return self.out / cell.name / "checkpoints"

    def _metrics(self, cell: Cell) -> Metrics:
        """Return the held-out metrics at the end of a run."""
        summary = read_object(self.out / cell.name / SUMMARY, "remove that run's folder to train it again")
        return {name.removeprefix("valid_"): value for name, value in summary.items() if name.startswith("valid_")}
