"""The folder `RUN/launch`: launches of the run, their jobs, and the end of each attempt. This module does not import
torch.

launch/
  launches.json     every launch of the run, newest last: command, ranks, settings, code version, job ids
  attempts.jsonl    a line for each attempt that ended: exit code, cause, newest checkpoint, next action
  .lock             locked by a local launcher while it runs
  .writing          locked by a launcher while it changes a file here
  cancelled         exists only between `launch cancel` and the next launch
  config.yaml, origins.json                   the resolved config, and the origin of each of its values
  code/, jobs/      for jobs: the code that they run, and the scheduler's logs

The runs of a sweep are in the folder of the sweep. Its `launch` folder has the code and the logs of all runs.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from pretrainkit.errors import DataError, InputError
from pretrainkit.files.manifest import expected_form, write_text
from pretrainkit.files.work import lock

Kind = Literal["local", "slurm", "cloud"]


@dataclass(frozen=True)
class Launch:
    """One launch: its command, its number of ranks, and the launcher."""

    kind: Kind
    words: tuple[str, ...]
    """Arguments of pretrainkit, the same for every rank."""
    words_again: tuple[str, ...]
    """Arguments that continue the run after an interruption."""
    num_nodes: int = 1
    processes_per_node: int = 1
    gpus_per_node: int = 0
    """Number of GPUs to request from a scheduler."""
    max_restarts: int = 0
    """Maximum number of failures after which the run restarts, if it made progress in between."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the scheduler or cloud."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """Versions, platform and code revision at the time of the launch."""
    job_ids: tuple[Annotated[str, Field(pattern=r"^((job|cluster):)?\w[\w.-]*$")], ...] = ()
    """Job ids of the scheduler; for a local launch the process id."""
    hang_minutes: float = 0
    """Time without an update after which a rank counts as failed; 0: never."""
    elastic: str = ""
    """Smallest and largest number of machines, such as 1:4, each with a launcher of its own; empty: always
    `num_nodes` machines."""
    meet: str = ""
    """Host and port where the launchers of elastic machines meet."""
    world_sizes: tuple[int, ...] = ()
    """Elastic: the numbers of ranks that batches can be split over."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.processes_per_node


_OF_ATTEMPTS = ("job", "code", "cause", "checkpoint", "then", "time")
_LAUNCHES = TypeAdapter(list[Launch])


@dataclass(frozen=True)
class Restarts:
    """Restarts of one launch. An attempt without a new checkpoint is not restarted: its failure is then an error in the
    code or the data, not in a machine, and would occur again."""

    left: int
    """Number of failures that are still allowed."""
    checkpoint: str | None
    """Newest checkpoint when the attempt started."""

    def after_failure(self, code: int, checkpoint: str | None) -> "Restarts | None":
        """Return the state for the next attempt; None for no further attempt. Exit code 1 allows a restart; 2 (bad
        input) and 130 (stopped on request) do not. `checkpoint` is the newest one."""
        if code != 1 or self.left < 1 or checkpoint is None or checkpoint == self.checkpoint:
            return None
        return Restarts(self.left - 1, checkpoint)


class LaunchFolder:
    """Paths and small files of the launches of a run."""

    def __init__(self, run: str | Path) -> None:
        self.run = Path(run)
        self.path = self.run / "launch"

    @property
    def logs(self) -> Path:
        """Folder with one log per rank."""
        return self.run / "logs"

    def rank_logs(self, rank: int | None = None) -> list[Path]:
        """Return the existing logs in the order of the ranks, or only that of `rank`."""
        paths = self.logs.rglob("rank-*.log" if rank is None else f"rank-{rank}.log")
        return sorted(paths, key=lambda path: (path.parent, int(path.stem.removeprefix("rank-"))))

    @property
    def newest_checkpoint(self) -> str | None:
        """Name of the newest complete checkpoint, such as step-00001000; None before the first."""
        return max((path.name for path in (self.run / "checkpoints").glob("step-*")), default=None)

    @property
    def is_finished(self) -> bool:
        """True if the newest attempt trained to the end."""
        attempts = self.attempts()
        return bool(attempts) and attempts[-1]["code"] == 0

    @property
    def is_cancelled(self) -> bool:
        """True if the current launch was cancelled."""
        return (self.path / "cancelled").exists()

    def cancel(self) -> None:
        """Mark the launch as cancelled, so that its jobs are not started again."""
        (self.path / "cancelled").touch()

    def launches(self) -> list[Launch]:
        """Return all launches, newest last; empty if there was none. Raises DataError if the file is damaged."""
        path = self.path / "launches.json"
        if not path.is_file():
            return []
        try:
            return _LAUNCHES.validate_json(path.read_bytes())
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise DataError(
                f"{path} is damaged: {problem}\n  remove it, and continue the run with: pretrainkit resume "
                f"{quote(str(self.run))}"
            ) from None

    def last(self) -> Launch:
        """Return the newest launch. Raises InputError if there was none."""
        if not (launches := self.launches()):
            raise InputError(
                f"{self.run} was not launched: there is no {self.path / 'launches.json'}\n"
                "  give the folder of a run that was started with --launch, or continue with: pretrainkit resume RUN"
            )
        return launches[-1]

    def prepare(self) -> None:
        """Create the folders of a new launch. Raises InputError if they cannot be created."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            (self.path / "cancelled").unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {self.path}: {error.strerror}\n  choose another run folder") from None

    def add(self, launch: Launch) -> None:
        """Record a launch that starts. Raises InputError if the folder cannot be written."""
        self.prepare()
        with self.alone():
            launches = [*self.launches(), launch]
            write_text(self.path / "launches.json", _LAUNCHES.dump_json(launches, indent=2).decode() + "\n")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the launchers of other elastic machines from writing here during the block. First wait until none of
        them is writing."""
        with open(self.path / ".writing", "w") as file:
            while lock(file) is False:
                time.sleep(0.1)
            yield

    def discard(self) -> None:
        """Remove the run folder of a rejected launch if it has only files of the launch."""
        if self.run.is_dir() and {path.name for path in self.run.iterdir()} <= {self.logs.name, self.path.name}:
            shutil.rmtree(self.run, ignore_errors=True)

    def record_end(self, job_id: str, code: int, cause: str, then: str) -> None:
        """Append the end of an attempt to attempts.jsonl."""
        row = {"job": job_id, "code": code, "cause": cause, "checkpoint": self.newest_checkpoint, "then": then}
        with open(self.path / "attempts.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"time": round(time.time(), 3)}) + "\n")

    def attempts(self) -> list[dict[str, Any]]:
        """Return the ends of all attempts, oldest first."""
        path = self.path / "attempts.jsonl"
        if not path.is_file():
            return []
        with expected_form(path, "remove it; it only records how earlier attempts ended"):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            return [{name: row[name] for name in _OF_ATTEMPTS} for row in rows]

    @contextmanager
    def held(self, *, shared: bool = False) -> Iterator[None]:
        """Lock the run against other launchers during the block. If `shared`, the launchers of other elastic machines
        may run at the same time. Raises InputError if a launcher that is locked out is already running."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "w") as file:
            if lock(file, shared=shared) is False:
                raise self._taken()
            yield

    def require_free(self, *, shared: bool = False) -> None:
        """Raise InputError if a launcher on this machine is training the run, unless both are of elastic machines."""
        if self._is_locked(shared):
            raise self._taken()

    @property
    def is_held(self) -> bool:
        """True if a launcher on this machine is running."""
        return self._is_locked(shared=False)

    def _is_locked(self, shared: bool) -> bool:
        if not (self.path / ".lock").is_file():
            return False
        with open(self.path / ".lock") as file:
            return lock(file, shared=shared) is False

    def _taken(self) -> InputError:
        run = quote(str(self.run))
        return InputError(
            f"{self.run} is being trained by another launcher\n"
            f"  show it: pretrainkit launch status {run}; end it: pretrainkit launch cancel {run}"
        )


def launched_runs(place: Path) -> list[LaunchFolder]:
    """Return the run in this folder, or the runs of a sweep, sorted by name. Raises InputError if nothing was launched
    here."""
    if not (place / "launch/launches.json").is_file() and (
        runs := sorted(path.parent.parent for path in place.glob("*/launch/launches.json"))
    ):
        return [LaunchFolder(run) for run in runs]
    folder = LaunchFolder(place)
    folder.last()
    return [folder]
