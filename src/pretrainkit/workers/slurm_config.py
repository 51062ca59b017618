"""Requests of a job to SLURM. Torch-free."""

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from pretrainkit.config.base import Config


def minutes_of(text: Any) -> Any:
    """Minutes of SLURM's forms of a duration: 90, 4:00:00 (hours, minutes, seconds), 2-12 (days, hours), 2-12:00:00.

    Seconds are rounded up to whole minutes. Anything else comes back as it is.
    """
    if not isinstance(text, str):
        return text
    if match := re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return days * 1440 + hours * 60 + minutes + -(-seconds // 60)
    if match := re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", text):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return hours * 60 + minutes + -(-seconds // 60)
    return int(text) if text.isdecimal() else text


_TAKEN = {
    "requeue", "signal", "nodes", "time", "ntasks-per-node", "gpus-per-node", "open-mode", "output", "error", "array",
}  # fmt: skip


def _is_sbatch_name(options: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    for name in options:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or name in _TAKEN:
            raise ValueError(f"{name!r} is not an option of sbatch that may be given here: the launcher sets {_TAKEN}")
    return options


class SlurmJob(Config):
    """Requests of every job."""

    partition: str | None = None
    """Partition of the job; null: the cluster's default."""
    time: Annotated[PositiveInt, BeforeValidator(minutes_of)] = 60
    """Limit in minutes, or as SLURM writes it: 4:00:00, 2-12:00:00. A longer run is requeued and continues."""
    account: str | None = None
    """The account that pays; null: the user's default one."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features of nodes, such as h100&nvlink."""
    exclude: str | None = None
    """Nodes to stay away from."""
    nodelist: str | None = None
    """Nodes to run on."""
    cpus_per_task: PositiveInt | None = None
    """Cores of each task, which is a rank of a run; null: what the cluster gives."""
    setup: tuple[str, ...] = ()
    """Lines of shell before the work starts, such as module load cuda."""
    comment: str | None = None
    """For people who look at the queue."""
    sbatch: Annotated[dict[str, str | int | bool], AfterValidator(_is_sbatch_name)] = Field(default_factory=dict)
    """Further options of sbatch by their long names, such as {reservation: night}."""


class SlurmConfig(SlurmJob):
    """A job of SLURM, whose tasks are the ranks of a run."""

    mem_gb: Annotated[float, Field(gt=0)] | None = None
    """Memory of each node in GiB; null: what the cluster gives."""
    signal_seconds: PositiveInt = 120
    """Seconds before its end at which a job gets a signal, so that it saves and is requeued."""
    max_timeouts: NonNegativeInt = 1000
    """Maximum number of times that a run continues after its time limit."""
    array_parallelism: PositiveInt = 256
    """Jobs of a sweep that may run at a time."""

    @model_validator(mode="after")
    def _is_told_after_it_began(self) -> Self:
        # SLURM looks at its clock once a minute, so a job may be told up to 60 seconds earlier.
        least = self.signal_seconds // 60 + 2
        if self.time < least:
            raise ValueError(
                f"time={self.time} minutes and signal_seconds={self.signal_seconds}: the job may be told to end when "
                f"it has hardly begun\n  give at least time={least}, or fewer signal_seconds"
            )
        return self
