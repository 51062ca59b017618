"""`pretrainkit resume`."""

from pathlib import Path
from typing import Annotated

import typer

from pretrainkit.cli.options import Device, JsonLines, Launch

app = typer.Typer(add_completion=False)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH=VALUE", help="Settings that do not touch the past, such as num_steps=20000."),
    ] = None,
    device: Device = None,
    launch: Launch = "none",
    nproc: Annotated[int, typer.Option(min=1, help="Processes of --launch local; may differ from before.")] = 1,
    json: JsonLines = False,
) -> None:
    """Go on with a run exactly where its newest valid checkpoint is."""
    from pretrainkit import api
    from pretrainkit.cli.launching import check_launch, start
    from pretrainkit.cli.progress import make_watcher
    from pretrainkit.training.folder import RunFolder

    check_launch(launch, nproc)
    if launch == "local":
        RunFolder(run).config_tree()  # before a folder for logs is made
        words = ["resume", str(run), *(settings or []), *(["--device", device] if device else [])]
        start([*words, *(["--json"] if json else [])], nproc, run)
    api.resume(run, settings or [], watcher=make_watcher(json), device=device)
