"""Interface of engines, which run the tasks of a stage, and the default engine: processes of this machine.

A stage applies a function to tasks. A task reads files, writes a separate folder or shard with a record when it is
finished, and returns a small result. The tasks depend only on the input, and the stage orders results by task. So the
output does not depend on the engine.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from pretrainkit.files.work import finished_task
from pretrainkit.workers.processes import Progress, memory_per_process, num_processes, run_tasks

Task = TypeVar("Task")
Result = TypeVar("Result")


class Resources(NamedTuple):
    """Workers and memory for the tasks of a stage."""

    num_workers: int
    """Number of tasks that run at once."""
    memory_bytes: int
    """Memory of each worker beyond its idle size."""


class Engine(Protocol):
    """Runs the tasks of stages."""

    @property
    def is_local(self) -> bool:
        """True if tasks run as processes of this machine."""

    def resources(self, workers: int | None, num_tasks: int, num_bytes: int, memory_bytes: int) -> Resources:
        """Return the number of tasks that run at once and the memory of each, for `num_tasks` that read `num_bytes`.
        `StageRunner` defines `workers` and `memory_bytes`. Raises DataError if the memory or the number of workers is
        too small."""

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: Resources,
        work: Path,
        progress: Progress,
    ) -> Iterator[Result]:
        """Yield `function(task)` of all tasks, each as soon as it is finished.

        Args:
            function: A function of a module that workers can import, or a partial of it. It and the tasks are
                picklable.
            work: A folder that all workers can access, for temporary files of the engine.
            progress: Receives a note about the jobs, if the engine submits any.

        Raises:
            DataError: A task raised a DataError.
            RunError: A task raised another error, a worker died, or the cluster gave up.
        """


class LocalEngine:
    """Processes of this machine."""

    is_local = True

    def resources(self, workers: int | None, num_tasks: int, num_bytes: int, memory_bytes: int) -> Resources:
        """Return a number of processes that fits the cores, the memory and the input."""
        processes = num_processes(workers, num_tasks, num_bytes, memory_bytes)
        return Resources(processes, memory_per_process(memory_bytes, processes))

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: Resources,
        work: Path,
        progress: Progress,
    ) -> Iterator[Result]:
        """Run a single worker in this process and in order, several in new processes that end with this one."""
        return run_tasks(function, tasks, resources.num_workers)


LOCAL = LocalEngine()


@dataclass(frozen=True)
class StageRunner:
    """Runs the stages of a command with its engine and limits."""

    engine: Engine
    workers: int | None
    """Number of tasks that run at once; None lets the engine choose."""
    memory_bytes: int
    """Memory of all processes of this machine, or of each task on a cluster."""
    progress: Progress

    def resources(self, num_tasks: int, num_bytes: int) -> Resources:
        """Return the result of `Engine.resources`."""
        return self.engine.resources(self.workers, num_tasks, num_bytes, self.memory_bytes)

    def finish(
        self,
        function: Callable[..., Result],
        tasks: Sequence[Any],
        resources: Resources,
        work: Path,
        stage: str,
        unit: str,
        about_kept: str,
        kept: Callable[[Any], Any] = lambda task: finished_task(task.folder, task.key),
    ) -> list[Result]:
        """Run the unfinished tasks and return the results of all tasks, in the order of the tasks.

        Args:
            function: See `Engine.run`. If the unit is B, it accepts the callback `on_bytes`, and tasks have
                `num_bytes`; otherwise each task counts as one unit.
            about_kept: Text after "kept: 3 of 5" in the note about finished tasks.
            kept: Function that returns the stored result of a finished task, or None.
        """
        progress = self.progress
        sizes = [task.num_bytes if unit == "B" else 1 for task in tasks]
        progress.stage(stage, sum(sizes), unit)
        results = {number: result for number, task in enumerate(tasks) if (result := kept(task)) is not None}
        if results:
            progress.note(f"kept: {len(results)} of {len(tasks)} {about_kept}")
        progress.advance(sum(sizes[number] for number in results))
        # A function in this process reports every piece that it reads; other processes report only finished tasks.
        reports_bytes = unit == "B" and self.engine.is_local and resources.num_workers == 1
        if reports_bytes:
            function = partial(function, on_bytes=progress.advance)
        left = [(number, task) for number, task in enumerate(tasks) if number not in results]
        for number, result in self.engine.run(partial(_numbered, function), left, resources, work, progress):
            results[number] = result
            progress.advance(0 if reports_bytes else sizes[number])
        return [results[number] for number in range(len(tasks))]


def _numbered(function: Callable[[Task], Result], task: tuple[int, Task]) -> tuple[int, Result]:
    return task[0], function(task[1])
