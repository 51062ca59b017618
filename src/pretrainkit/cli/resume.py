"""`pretrainkit resume`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from pretrainkit import api
from pretrainkit.cli.launch import resume as resume_launched
from pretrainkit.cli.launching import start
from pretrainkit.cli.options import Device, JsonLines, LaunchOptions
from pretrainkit.cli.progress import make_watcher
from pretrainkit.cli.settings_options import changed, with_settings
from pretrainkit.errors import ConfigError
from pretrainkit.launch.folder import LaunchFolder
from pretrainkit.launch.slurm import require_idle
from pretrainkit.training.folder import RunFolder

_LAUNCH = (
    "none: in this process. local: processes of this machine. slurm: a SLURM job. same: the launcher of the last "
    "launch, with its ranks and settings."
)


@with_settings
def resume(
    run: Annotated[Path, Argument(help="The run folder. With --launch same also the folder of a sweep.")],
    settings: Annotated[
        list[str] | None,
        Argument(metavar="PATH=VALUE", help="Settings that may change during a run, such as num_steps=20000."),
    ] = None,
    *,
    device: Device = None,
    options: Annotated[
        LaunchOptions,
        changed("launch", help=_LAUNCH),
        *("nodes", "nproc", "gpus_per_node", "max_restarts", "hang_minutes", "slurm"),
    ],
    json: JsonLines = False,
) -> None:
    """Resume a run exactly at its newest valid checkpoint. The number of processes may differ from before.

    `--launch same` starts a launched run or a sweep again with its launcher, ranks and settings.
    """
    if options.launch not in ("none", "local", "slurm", "same"):
        raise ConfigError(
            f"resume does not support --launch {options.launch}\n"
            "  give one of: none, local, slurm; or same, for the launcher of the last launch, such as a cloud"
        )
    if options.launch == "same":
        if settings or device or options != LaunchOptions(launch="same"):
            raise ConfigError(
                "--launch same resumes with the launcher, ranks and settings of the last launch; nothing can change\n"
                "  leave out the other settings and options, or give --launch none, local or slurm"
            )
        resume_launched(run, json)
        return
    options.check()
    if options.launch == "none":
        api.resume(run, settings or [], watcher=make_watcher(json), device=device)
        return
    if options.launch == "slurm":
        require_idle(LaunchFolder(run))  # a run whose first job waits has no config yet
    RunFolder(run).config_tree()  # fail before a folder for logs is created
    words = ["resume", str(run.absolute()), *(settings or []), *(["--device", device] if device else [])]
    words += ["--json"] if json or options.launch == "slurm" else []
    start(options, words, words, run)
