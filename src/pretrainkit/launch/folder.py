"""`RUN/launch`: what was asked to run, where it runs, and how each attempt ended. Torch-free.

launch/
  launches.json     every launch of the run, newest last: command, ranks, settings, code version, ids of jobs
  attempts.jsonl    a line for each attempt that ended: exit code, why, the newest checkpoint, what follows
  .lock             held by a local launcher while it lives
  cancelled         only between `launch cancel` and the next launch
  config.yaml, origins.json                   the resolved config, and where each of its values came from
  code/, jobs/      of jobs: the code that runs them, the scheduler's logs

The runs of a sweep are in its folder, whose own `launch` has the code and the logs of all runs.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from pretrainkit.errors import DataError, InputError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.files.work import lock

Kind = Literal["local", "slurm", "cloud"]


@dataclass(frozen=True)
class Launch:
    """One launch: what runs, as how many ranks, started by what."""

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
    job_ids: tuple[str, ...] = ()
    """Job ids of the scheduler; for a local launch the process id."""

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.num_nodes * self.processes_per_node


_LAUNCHES = TypeAdapter(list[Launch])


@dataclass(frozen=True)
class Restarts:
    """Counts failures of one launch. What fails twice at the same checkpoint would fail again: a mistake in the code or
    the data, not a machine."""

    left: int
    """Failures that may still happen."""
    checkpoint: str | None
    """The newest when the attempt began."""

    def after_failure(self, code: int, checkpoint: str | None) -> "Restarts | None":
        """Return the state for the next attempt; None: no further attempt. Exit code 1 allows a restart, 2 (bad input)
        and 130 (stopped on request) do not; `checkpoint` is the newest."""
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
        """One log per rank."""
        return self.run / "logs"

    def rank_logs(self, rank: int | None = None) -> list[Path]:
        """Those that there are, in the order of the ranks, or of one rank alone."""
        found = self.logs.glob("rank-*.log" if rank is None else f"rank-{rank}.log")
        return sorted(found, key=lambda path: int(path.stem.removeprefix("rank-")))

    @property
    def newest_checkpoint(self) -> str | None:
        """Name of the newest whole checkpoint, such as step-00001000; None before the first."""
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
        """Let what ends now not be started again."""
        (self.path / "cancelled").touch()

    def launches(self) -> list[Launch]:
        """All launches, newest last; empty where there was none. Raises DataError where the file is damaged."""
        path = self.path / "launches.json"
        if not path.is_file():
            return []
        try:
            return _LAUNCHES.validate_json(path.read_bytes())
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(
                f"{path} is damaged: {what}\n  remove it, and continue the run with: pretrainkit resume {self.run}"
            ) from None

    def last(self) -> Launch:
        """The newest launch. Raises InputError where there was none."""
        if not (launches := self.launches()):
            raise InputError(
                f"{self.run} was not launched: there is no {self.path / 'launches.json'}\n"
                "  give the folder of a run that was started with --launch, or continue with: pretrainkit resume RUN"
            )
        return launches[-1]

    def prepare(self) -> None:
        """Make the folders of a launch that is about to begin. Raises InputError where that cannot be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            (self.path / "cancelled").unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot write into {self.path}: {error.strerror}\n  choose another run folder") from None

    def add(self, launch: Launch) -> None:
        """Record a launch that begins. Raises InputError where the folder cannot be written."""
        launches = [*self.launches(), launch]
        self.prepare()
        with atomic_file(self.path / "launches.json") as file:
            file.write(_LAUNCHES.dump_json(launches, indent=2) + b"\n")

    def discard(self) -> None:
        """Remove the run folder of a launch that was refused, where there is nothing in it but what launching left."""
        if self.run.is_dir() and {path.name for path in self.run.iterdir()} <= {self.logs.name, self.path.name}:
            shutil.rmtree(self.run, ignore_errors=True)

    def ended(self, job_id: str, code: int, cause: str, then: str) -> None:
        """Append to attempts.jsonl."""
        row = {"job": job_id, "code": code, "cause": cause, "checkpoint": self.newest_checkpoint, "then": then}
        with open(self.path / "attempts.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"time": round(time.time(), 3)}) + "\n")

    def attempts(self) -> list[dict[str, Any]]:
        """Return the ends of all attempts, oldest first."""
        path = self.path / "attempts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only launcher of this run. Raises InputError where another one lives."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "w") as file:
            if lock(file) is False:
                raise self._taken()
            yield

    def require_free(self) -> None:
        """Raises InputError where a launcher of this machine trains the run."""
        if self.is_held:
            raise self._taken()

    @property
    def is_held(self) -> bool:
        """True if a launcher on this machine is running."""
        if not (self.path / ".lock").is_file():
            return False
        with open(self.path / ".lock") as file:
            return lock(file) is False

    def _taken(self) -> InputError:
        return InputError(
            f"{self.run} is being trained by another launcher\n"
            f"  look at it: pretrainkit launch status {self.run}; end it: pretrainkit launch cancel {self.run}"
        )


def launched_runs(place: Path) -> list[LaunchFolder]:
    """The run of this folder, or those of a sweep, by name. Raises InputError where nothing was launched here."""
    if not (place / "launch/launches.json").is_file() and (
        runs := sorted(path.parent.parent for path in place.glob("*/launch/launches.json"))
    ):
        return [LaunchFolder(run) for run in runs]
    folder = LaunchFolder(place)
    folder.last()
    return [folder]
