"""Tasks and results of workers of a cluster, as files in a folder that all workers can access.

    NUMBER.task     the task, pickled; written before the workers start
    NUMBER.result   its result, pickled
    NUMBER.error    its error, JSON
    NUMBER.alive    exists while a worker runs the task; contains a number that grows every half second
    stop            if it exists, workers stop at once and start no other task
    logs/           datatrove's logs of the workers

datatrove's executors run one step, `RunTask`, whose rank is the number of the task. The pickles are safe to load: only
our processes write to the folder of an unfinished output.
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
from pretrainkit.workers.processes import handled_signals

_BEAT_SECONDS = 0.5
_SILENT_SECONDS = 3.0
"""A worker that was asked to stop has ended if the number in its file has not changed for this time."""
_LOST_SECONDS = 90.0
"""A worker is considered dead if the number in its file has not changed for this time. Network disks show changes
late."""
_GIVE_UP_SECONDS = 10.0
"""A worker that does not stop within this time ends itself."""
_LOG_LINES = 20


class Stopped(RunError):
    """The work was stopped while a worker was running a task."""


class TaskFolder:
    """Folder with the tasks of one attempt at a stage."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def create(cls, function: Callable[[Any], Any], tasks: Sequence[Any], work: Path) -> "TaskFolder":
        """Create a new folder below `work`, after stopping remaining workers of earlier attempts."""
        base = work / "engine"
        base.mkdir(parents=True, exist_ok=True)
        earlier = [cls(path) for path in sorted(base.iterdir())]
        for folder in earlier:
            folder.stop()
        for folder in earlier:
            folder.wait_for_silence()
            shutil.rmtree(folder.path, ignore_errors=True)
        # The name is new each time, so that a worker that still waits in a queue does not run these tasks.
        folder = cls(base / f"{time.time_ns():x}")
        folder.path.mkdir()
        for number, task in enumerate(tasks):
            folder._file(number, "task").write_bytes(pickle.dumps((function, task, os.getcwd())))
        return folder

    @property
    def logs(self) -> Path:
        """Folder for datatrove's logs."""
        return self.path / "logs"

    def _file(self, number: int, kind: str) -> Path:
        return self.path / f"{number:06d}.{kind}"

    def _numbers(self, kind: str) -> set[int]:
        try:
            return {int(entry.name[:6]) for entry in os.scandir(self.path) if entry.name.endswith(f".{kind}")}
        except FileNotFoundError:
            return set()

    def results(self, num_tasks: int, is_over: Callable[[], bool], pause_seconds: float) -> Iterator[Any]:
        """Yield the results of all tasks as they are finished.

        Args:
            num_tasks: Number of tasks.
            is_over: Returns True if no worker will finish another task.
            pause_seconds: Time between two checks.

        Raises:
            DataError, RunError: A task raised an error, or some tasks were never finished.
        """
        seen: set[int] = set()
        beats: dict[int, str] = {}
        changed = time.monotonic()
        while len(seen) < num_tasks:
            was_over = is_over()  # checked first, so that results written just before the end are not missed
            new = sorted(self._numbers("result") - seen)
            for number in new:
                yield pickle.loads(self._file(number, "result").read_bytes())  # noqa: S301 - see the module
            seen.update(new)
            for number in sorted(self._numbers("error")):
                error = json.loads(self._file(number, "error").read_bytes())
                raise (DataError if error["is_input"] else RunError)(error["message"])
            beats, earlier = self._beats(), beats
            # Tasks without a file may wait in a queue. A worker is lost only if its number no longer changes.
            if new or not beats or any(beats.get(number) != beat for number, beat in earlier.items()):
                changed = time.monotonic()
            is_lost = time.monotonic() - changed > _LOST_SECONDS
            if (was_over or is_lost) and not new and len(seen) < num_tasks:
                raise RunError(
                    f"{num_tasks - len(seen)} of {num_tasks} tasks were not finished: their workers died, most likely "
                    f"for lack of memory or time\n{self._log_tail()}"
                    "  run the same command again, with more memory or time for each task; finished parts are kept"
                )
            if len(seen) < num_tasks and not new:
                time.sleep(pause_seconds)

    def _log_tail(self) -> str:
        """Return the last lines of the newest log, indented."""
        logs = sorted(
            (path for path in self.logs.rglob("*") if path.suffix in (".log", ".out") and path.stat().st_size),
            key=lambda path: path.stat().st_mtime,
        )
        if not logs:
            return ""
        lines = logs[-1].read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "".join(f"  | {line}\n" for line in lines)

    def remove(self) -> None:
        """Remove the folder after all tasks are finished."""
        shutil.rmtree(self.path, ignore_errors=True)

    def stop(self) -> None:
        """Tell workers to stop at once and to start no other task."""
        with suppress(FileNotFoundError):
            (self.path / "stop").touch()

    def wait_for_silence(self) -> None:
        """Wait until no worker is running a task."""
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
        """Run a task in a worker, and write its result or error.

        Raises:
            Exception: The error of the task, so that the scheduler records the failure.
        """
        if self._is_stopped() or self._file(number, "result").exists():  # finished before this worker was requeued
            return
        with self._watched(number):
            try:
                function, task, folder = pickle.loads(self._file(number, "task").read_bytes())  # noqa: S301 - see the module
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
        """Raise Stopped in the block when the work is stopped, and end this process when its parent process has
        ended."""
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

        with handled_signals(["SIGUSR2"], give_up):
            path.write_text("0")
            watcher = threading.Thread(target=watch, daemon=True)
            watcher.start()
            try:
                yield
            finally:
                ended.set()
                watcher.join()
                path.unlink(missing_ok=True)


def quiet_datatrove() -> None:
    """Silence the messages of datatrove's executors; workers still write their logs."""
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
        """Run the task with number `rank`. It uses no documents: tasks read and write files themselves."""
        TaskFolder(Path(self.folder)).perform(rank)
