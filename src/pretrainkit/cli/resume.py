"""`pretrainkit resume`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from pretrainkit import api
from pretrainkit.cli.launching import start
from pretrainkit.cli.options import Asked, Device, JsonLines
from pretrainkit.cli.progress import make_watcher
from pretrainkit.cli.settings_options import with_settings
from pretrainkit.errors import ConfigError
from pretrainkit.training.folder import RunFolder


@with_settings
def resume(
    run: Annotated[Path, Argument(help="The run folder.")],
    settings: Annotated[
        list[str] | None,
        Argument(metavar="PATH=VALUE", help="Settings that do not touch the past, such as num_steps=20000."),
    ] = None,
    *,
    device: Device = None,
    asked: Annotated[Asked, "launch", "nodes", "nproc", "gpus_per_node", "max_restarts", "slurm"],
    json: JsonLines = False,
) -> None:
    """Resume a run exactly at its newest valid checkpoint, with as many processes as requested now."""
    asked.check()
    if asked.launch == "none":
        api.resume(run, settings or [], watcher=make_watcher(json), device=device)
        return
    if asked.launch == "cloud":
        raise ConfigError("resume has no --launch cloud\n  resume a run of a cloud with: pretrainkit launch resume RUN")
    RunFolder(run).config_tree()  # before a folder for logs is made
    words = ["resume", str(run.absolute()), *(settings or []), *(["--device", device] if device else [])]
    words += ["--json"] if json or asked.launch == "slurm" else []
    start(asked, words, words, run)
