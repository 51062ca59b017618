"""What a stage asks of an engine, and the engine that is always there: processes of this machine.

A stage is a function over tasks. A task reads files and writes a folder or a shard of its own, with a record that it is
finished; what it returns is small. So an engine has nothing to know of the work, and output cannot depend on it: which
tasks there are follows from the input alone, and the stage puts results in the order of the tasks.
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


class Crew(NamedTuple):
    """Who does the tasks of a stage."""

    num_workers: int
    """Tasks at a time."""
    memory_bytes: int
    """What each may hold beyond its idle size."""


class Engine(Protocol):
    """Runs tasks."""

    @property
    def is_local(self) -> bool:
        """True where tasks run on this machine, as its processes."""

    def crew(self, workers: int | None, num_tasks: int, num_bytes: int, memory_bytes: int) -> Crew:
        """How many tasks at a time, and the memory of each, for a stage of `num_tasks` that reads `num_bytes`.
        `workers` and `memory_bytes` are as asked for: see `Means`. Raises DataError where the memory is too little, or
        the number of workers is none."""

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], crew: Crew, work: Path, progress: Progress
    ) -> Iterator[Result]:
        """`function(task)` of all tasks, each as soon as it is done. Raises what a task raised, as a DataError where
        that was one, and RunError where a worker died, or the cluster gave up.

        Args:
            function: Of a module that workers can import, or a partial of one; it and the tasks are picklable.
            work: A folder that all workers see, for what the engine itself keeps meanwhile.
            progress: Told where the tasks went.
        """


class LocalEngine:
    """Processes of this machine."""

    is_local = True

    def crew(self, workers: int | None, num_tasks: int, num_bytes: int, memory_bytes: int) -> Crew:
        """As many processes as the cores, the memory and the input are worth."""
        processes = num_processes(workers, num_tasks, num_bytes, memory_bytes)
        return Crew(processes, memory_per_process(memory_bytes, processes))

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], crew: Crew, work: Path, progress: Progress
    ) -> Iterator[Result]:
        """One worker: in this process and in order; else in fresh processes that end with this one."""
        return run_tasks(function, tasks, crew.num_workers)


LOCAL = LocalEngine()


@dataclass(frozen=True)
class Means:
    """What a command does its stages with."""

    engine: Engine
    workers: int | None
    """Tasks at a time; None: what the engine thinks best."""
    memory_bytes: int
    """Of all processes of this machine, or of each task on a cluster."""
    progress: Progress

    def crew(self, num_tasks: int, num_bytes: int) -> Crew:
        """As `Engine.crew`."""
        return self.engine.crew(self.workers, num_tasks, num_bytes, self.memory_bytes)

    def finish(
        self,
        function: Callable[..., Result],
        tasks: Sequence[Any],
        crew: Crew,
        work: Path,
        stage: str,
        unit: str,
        about_kept: str,
        kept: Callable[[Any], Any] = lambda task: finished_task(task.folder, task.key),
    ) -> list[Result]:
        """The results of all tasks, in their order; `kept` has those of tasks that an earlier call finished.

        Args:
            function: As of `run`. Where the unit is B, it takes `on_bytes`, which it may tell what it read, and tasks
                have `num_bytes`; otherwise each task is one unit.
            about_kept: Said of finished tasks, behind "kept: 3 of 5".
            kept: The result of a finished task, from what it noted in its folder.
        """
        progress = self.progress
        sizes = [task.num_bytes if unit == "B" else 1 for task in tasks]
        progress.stage(stage, sum(sizes), unit)
        results = {number: result for number, task in enumerate(tasks) if (result := kept(task)) is not None}
        if results:
            progress.note(f"kept: {len(results)} of {len(tasks)} {about_kept}")
        progress.advance(sum(sizes[number] for number in results))
        # What reads in this process tells of every piece, others when a task is done.
        is_told = unit == "B" and self.engine.is_local and crew.num_workers == 1
        if is_told:
            function = partial(function, on_bytes=progress.advance)
        left = [(number, task) for number, task in enumerate(tasks) if number not in results]
        for number, result in self.engine.run(partial(_numbered, function), left, crew, work, progress):
            results[number] = result
            progress.advance(0 if is_told else sizes[number])
        return [results[number] for number in range(len(tasks))]


def _numbered(function: Callable[[Task], Result], task: tuple[int, Task]) -> tuple[int, Result]:
    return task[0], function(task[1])
