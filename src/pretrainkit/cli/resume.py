"""`pretrainkit resume`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from pretrainkit import api
from pretrainkit.cli.launching import start
from pretrainkit.cli.options import Device, JsonLines, LaunchOptions
from pretrainkit.cli.progress import make_watcher
from pretrainkit.cli.settings_options import with_settings
from pretrainkit.errors import ConfigError
from pretrainkit.training.folder import RunFolder


@with_settings
def resume(
    run: Annotated[Path, Argument(help="The run folder.")],
    settings: Annotated[
        list[str] | None,
        Argument(metavar="PATH=VALUE", help="Settings that may change during a run, such as num_steps=20000."),
    ] = None,
    *,
    device: Device = None,
    options: Annotated[
        LaunchOptions, "launch", "nodes", "nproc", "gpus_per_node", "max_restarts", "hang_minutes", "slurm"
    ],
    json: JsonLines = False,
) -> None:
    """Resume a run exactly at its newest valid checkpoint. The number of processes may differ from before."""
    options.check()
    if options.launch == "none":
        api.resume(run, settings or [], watcher=make_watcher(json), device=device)
        return
    if options.launch == "cloud":
        raise ConfigError(
            "resume does not support --launch cloud\n  resume a run on a cloud with: pretrainkit launch resume RUN"
        )
    RunFolder(run).config_tree()  # fail before a folder for logs is created
    words = ["resume", str(run.absolute()), *(settings or []), *(["--device", device] if device else [])]
    words += ["--json"] if json or options.launch == "slurm" else []
    start(options, words, words, run)
