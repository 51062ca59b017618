"""Options that say where the tasks of a command run, and with what."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pretrainkit.errors import InputError, MissingPackageError

if TYPE_CHECKING:
    from pretrainkit.workers.engine import Engine


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where the tasks of a command run, and with what."""

    workers: int | None = None
    """Processes; None: all cores."""
    memory: str = "1GB"
    """Memory, such as 300MB or 4GB: of all processes here, or of each task on a cluster."""
    engine: Literal["local", "slurm", "ray"] = "local"
    """local: this machine. slurm: an array of jobs. ray: tasks of a cluster."""
    slurm: Annotated[tuple[str, ...], typer.Option(metavar="NAME=VALUE")] = ()
    """Of the jobs, such as partition=cpu; docs/corpus.md."""
    ray: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None
    """Of the cluster; None: RAY_ADDRESS, or this machine."""

    def means(self) -> dict[str, Any]:
        """Arguments `workers`, `memory_bytes` and `engine` of what does the work."""
        from pretrainkit.workers.processes import parse_bytes

        return {"workers": self.workers, "memory_bytes": parse_bytes(self.memory), "engine": self.open_engine()}

    def open_engine(self) -> "Engine":
        """What runs the tasks. Raises InputError where options do not go together: nothing is accepted and ignored."""
        for option, given in (("slurm", " ".join(self.slurm[:1])), ("ray", self.ray)):
            if given and self.engine != option:
                raise InputError(
                    f"--{option} {given} is only read by --engine {option}\n  add that, or leave out --{option}"
                )
        if self.engine == "local":
            from pretrainkit.workers.engine import LOCAL

            return LOCAL
        try:
            import datatrove  # noqa: F401
        except ImportError:
            raise MissingPackageError("datatrove", self.engine, f"--engine {self.engine}") from None
        if self.engine == "slurm":
            from pretrainkit.config.loader import config_of_words
            from pretrainkit.workers.slurm_config import SlurmJob
            from pretrainkit.workers.slurm_engine import SlurmEngine

            return SlurmEngine(config_of_words(SlurmJob, self.slurm, "--slurm"))
        from pretrainkit.workers.ray_engine import RayEngine

        return RayEngine(self.ray)
