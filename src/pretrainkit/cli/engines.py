"""Options that say where the tasks of a command run."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pretrainkit.errors import InputError

if TYPE_CHECKING:
    from pretrainkit.workers.engine import Engine


class EngineName(StrEnum):
    """Where the tasks of a command run."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


EngineChoice = Annotated[
    EngineName, typer.Option("--engine", help="local: this machine. slurm: an array of jobs. ray: tasks of a cluster.")
]
Slurm = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="NAME=VALUE", help="Of the jobs, such as partition=cpu; docs/corpus.md."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="HOST:PORT",
        help="Of the cluster; left out: RAY_ADDRESS, or this machine.",
        show_default=False,
    ),
]


def engine_of(name: EngineName, slurm: list[str] | None, ray: str | None) -> "Engine":
    """What runs the tasks. Raises InputError where options do not go together: nothing is accepted and ignored."""
    for option, given, reader in (("slurm", slurm, EngineName.slurm), ("ray", ray, EngineName.ray)):
        if given and name is not reader:
            first = given if isinstance(given, str) else given[0]
            raise InputError(
                f"--{option} {first} is only read by --engine {option}\n  add that, or leave out --{option}"
            )
    if name is EngineName.slurm:
        from pretrainkit.config.loader import config_of_words
        from pretrainkit.workers.slurm_config import SlurmJob
        from pretrainkit.workers.slurm_engine import SlurmEngine

        return SlurmEngine(config_of_words(SlurmJob, slurm or [], "--slurm"))
    if name is EngineName.ray:
        from pretrainkit.workers.ray_engine import RayEngine

        return RayEngine(ray)
    from pretrainkit.workers.engine import LOCAL

    return LOCAL
