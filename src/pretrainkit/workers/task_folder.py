"""Tasks and results of workers of a cluster, as files in a folder that all workers can access.

    NUMBER.task     what to do, pickled: written before the workers start
    NUMBER.result   what came of it, pickled
    NUMBER.error    why it failed, JSON
    NUMBER.alive    there while a worker is at it: a number that grows every half second
    stop            workers give up at once and begin nothing more
    logs/           of datatrove: what the workers said

datatrove's executors run one step, `RunTask`, whose rank is the number of the task. The pickles are our own: nobody
else writes into the folder of an unfinished output.
"""

import json
import os
import pickle
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from datatrove.data import DocumentsPipeline
from datatrove.pipeline.base import PipelineStep

from pretrainkit.errors import DataError, InputError, PretrainKitError, RunError
from pretrainkit.files.manifest import atomic_file

_BEAT_SECONDS = 0.5
_SILENT_SECONDS = 3.0
"""Without a beat for so long, a worker that was told to stop is gone."""
_LOST_SECONDS = 90.0
"""Without a beat for so long, a worker is given up; disks over a network show changes late."""
_GIVE_UP_SECONDS = 10.0
"""After which a worker that does not stop is ended."""
_LOG_LINES = 20


class Stopped(RunError):
    """The work was stopped while a worker was at a task."""


class TaskFolder:
    """The tasks of one stage in one attempt, seen by who hands them out."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def made(cls, function: Callable[[Any], Any], tasks: Sequence[Any], work: Path) -> "TaskFolder":
        """A new folder below `work`. Workers of earlier attempts are stopped first, should some be left."""
        base = work / "engine"
        base.mkdir(parents=True, exist_ok=True)
        earlier = [cls(path) for path in sorted(base.iterdir())]
        for folder in earlier:
            folder.stop()
        for folder in earlier:
            folder.wait_for_silence()
            shutil.rmtree(folder.path, ignore_errors=True)
        # Another name each time: a worker that still waits in a queue must not take these tasks for its own.
        folder = cls(base / f"{time.time_ns():x}")
        folder.path.mkdir()
        for number, task in enumerate(tasks):
            folder._file(number, "task").write_bytes(pickle.dumps((function, task, os.getcwd())))
        return folder

    @property
    def logs(self) -> Path:
        """For datatrove."""
        return self.path / "logs"

    def _file(self, number: int, kind: str) -> Path:
        return self.path / f"{number:06d}.{kind}"

    def _numbers(self, kind: str) -> set[int]:
        try:
            return {int(entry.name[:6]) for entry in os.scandir(self.path) if entry.name.endswith(f".{kind}")}
        except FileNotFoundError:
            return set()

    def results(self, num_tasks: int, is_over: Callable[[], bool], pause_seconds: float) -> Iterator[Any]:
        """The results of all tasks as they come.

        Args:
            num_tasks: How many there are.
            is_over: True when no worker will finish another task.
            pause_seconds: Between two looks.

        Raises:
            DataError, RunError: What a task raised, or that some were never finished.
        """
        seen: set[int] = set()
        beats: dict[int, str] = {}
        changed = time.monotonic()
        while len(seen) < num_tasks:
            was_over = is_over()  # asked first, so that what was written just before the end is seen
            come = sorted(self._numbers("result") - seen)
            for number in come:
                yield pickle.loads(self._file(number, "result").read_bytes())
            seen.update(come)
            for number in sorted(self._numbers("error")):
                noted = json.loads(self._file(number, "error").read_bytes())
                raise (DataError if noted["is_input"] else RunError)(noted["message"])
            beats, earlier = self._beats(), beats
            # Before the first beat tasks may wait in a queue; silent is only who has beaten and does no more.
            if come or not beats or any(beats.get(number) != beat for number, beat in earlier.items()):
                changed = time.monotonic()
            is_lost = time.monotonic() - changed > _LOST_SECONDS
            if (was_over or is_lost) and not come and len(seen) < num_tasks:
                raise RunError(
                    f"{num_tasks - len(seen)} of {num_tasks} tasks were not finished: their workers died, most likely "
                    f"for lack of memory or time\n{self._said()}"
                    "  run the same command again, with more memory or time for each task; finished parts are kept"
                )
            if len(seen) < num_tasks and not come:
                time.sleep(pause_seconds)

    def _said(self) -> str:
        """The end of the newest log, indented."""
        logs = sorted(
            (path for path in self.logs.rglob("*") if path.suffix in (".log", ".out") and path.stat().st_size),
            key=lambda path: path.stat().st_mtime,
        )
        if not logs:
            return ""
        lines = logs[-1].read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "".join(f"  | {line}\n" for line in lines)

    def remove(self) -> None:
        """Removes the folder, when all tasks are done."""
        shutil.rmtree(self.path, ignore_errors=True)

    def stop(self) -> None:
        """Makes workers give up at once and begin nothing more."""
        with suppress(FileNotFoundError):
            (self.path / "stop").touch()

    def wait_for_silence(self) -> None:
        """Until no worker is at a task."""
        while beats := self._beats():
            time.sleep(_SILENT_SECONDS)
            if not any(beats.get(number) != beat for number, beat in self._beats().items()):
                return

    def _beats(self) -> dict[int, str]:
        beats = {}
        for number in self._numbers("alive"):
            with suppress(FileNotFoundError):
                beats[number] = self._file(number, "alive").read_text()
        return beats

    def perform(self, number: int) -> None:
        """Does a task, in a worker, and leaves its result or error.

        Raises:
            Exception: What the task raised, for the records of the scheduler.
        """
        if self._is_stopped() or self._file(number, "result").exists():  # done before this worker was requeued
            return
        with self._watched(number):
            try:
                function, task, folder = pickle.loads(self._file(number, "task").read_bytes())
                os.chdir(folder)
                result = function(task)
            except Stopped:
                raise
            except Exception as error:
                is_ours = isinstance(error, PretrainKitError)
                message = str(error) if is_ours else f"a task failed\n{traceback.format_exc()}"
                self._write(
                    number, "error", json.dumps({"is_input": isinstance(error, InputError), "message": message})
                )
                raise
            self._write(number, "result", pickle.dumps(result))

    def _write(self, number: int, kind: str, content: str | bytes) -> None:
        with atomic_file(self._file(number, kind)) as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def _is_stopped(self) -> bool:
        return (self.path / "stop").exists() or not self.path.is_dir()

    @contextmanager
    def _watched(self, number: int) -> Iterator[None]:
        """Raises Stopped in the block when the work is stopped, and ends this process when it is left behind by the one
        that started it."""
        parent, ended, path = os.getppid(), threading.Event(), self._file(number, "alive")

        def give_up(signum: int, frame: Any) -> None:
            raise Stopped("stopped")

        def watch() -> None:
            beat = 0
            while not ended.wait(_BEAT_SECONDS):
                if os.getppid() != parent:
                    os._exit(1)
                if self._is_stopped():
                    os.kill(os.getpid(), signal.SIGUSR2)
                    if not ended.wait(_GIVE_UP_SECONDS):
                        os._exit(1)
                beat += 1
                with suppress(OSError):
                    path.write_text(str(beat))

        before = signal.signal(signal.SIGUSR2, give_up)
        path.write_text("0")
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            signal.signal(signal.SIGUSR2, before)
            path.unlink(missing_ok=True)


def quiet_datatrove() -> None:
    """Silence the messages of its executors; workers still write their logs."""
    from loguru import logger

    logger.disable("datatrove")


class RunTask(PipelineStep):
    """The step that datatrove's executors run: the rank is the number of the task."""

    name = "pretrainkit: task"
    type = "🔨 - TASK"

    def __init__(self, folder: TaskFolder) -> None:
        super().__init__()
        self.folder = str(folder.path)

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> None:
        """Takes no documents: tasks read and write files themselves."""
        TaskFolder(Path(self.folder)).perform(rank)
