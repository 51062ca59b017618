"""Settings of SLURM jobs. This module does not import torch."""

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from pretrainkit.config.base import Config


def minutes_of(text: Any) -> Any:
    """Convert SLURM's forms of a duration to minutes: 90, 4:00:00 (hours, minutes, seconds), 2-12 (days, hours),
    2-12:00:00.

    Seconds are rounded up to whole minutes. Any other value is returned unchanged.
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
            raise ValueError(
                f"{name!r} is not an sbatch option that can be set here; the launcher itself sets: "
                + ", ".join(sorted(_TAKEN))
            )
    return options


class SlurmJob(Config):
    """Settings of every job."""

    partition: str | None = None
    """Partition of the job; null: the cluster's default."""
    time: Annotated[PositiveInt, BeforeValidator(minutes_of)] = 60
    """Time limit in minutes, or in SLURM's form: 4:00:00, 2-12:00:00. A longer run is requeued and continues."""
    account: str | None = None
    """Account that is charged; null: the user's default account."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Required features of nodes, such as h100&nvlink."""
    exclude: str | None = None
    """Nodes that must not be used."""
    nodelist: str | None = None
    """Nodes that must be used."""
    cpus_per_task: PositiveInt | None = None
    """Number of cores of each task, which is a rank of a run; null: the cluster's default."""
    setup: tuple[str, ...] = ()
    """Shell commands that run before the work starts, such as module load cuda."""
    comment: str | None = None
    """Comment that the queue shows."""
    sbatch: Annotated[dict[str, str | int | bool], AfterValidator(_is_sbatch_name)] = Field(default_factory=dict)
    """Further options of sbatch by their long names, such as {reservation: night}."""


class SlurmConfig(SlurmJob):
    """Settings of a SLURM job whose tasks are the ranks of a run."""

    mem_gb: Annotated[float, Field(gt=0)] | None = None
    """Memory of each node in GiB; null: the cluster's default."""
    signal_seconds: PositiveInt = 120
    """Seconds before the time limit at which a job gets a signal, so that it saves and is requeued."""
    max_timeouts: NonNegativeInt = 1000
    """Maximum number of times that a run continues after its time limit."""
    array_parallelism: PositiveInt = 256
    """Maximum number of jobs of a sweep that run at once."""

    @model_validator(mode="after")
    def _signal_follows_the_start(self) -> Self:
        # SLURM checks the time once a minute, so a job may get the signal up to 60 seconds earlier.
        least = self.signal_seconds // 60 + 2
        if self.time < least:
            raise ValueError(
                f"time={self.time} minutes and signal_seconds={self.signal_seconds}: the job may get the signal to end "
                f"as soon as it starts\n  give at least time={least}, or fewer signal_seconds"
            )
        return self
