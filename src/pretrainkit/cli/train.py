"""`pretrainkit train`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pretrainkit.cli.options import Device, GoOn, JsonLines, Launch, NumProcesses

app = typer.Typer(add_completion=False)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="PATH=VALUE", help="Settings, such as data.batch_size=64.")
]


@app.command()
def train(
    source: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.yaml", help="A preset such as bert/tiny, or a YAML file.")
    ],
    settings: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/PRESET-DATE-TIME.")] = None,
    device: Device = None,
    resume: GoOn = False,
    launch: Launch = "none",
    nproc: NumProcesses = 1,
    json: JsonLines = False,
) -> None:
    """Train a preset or a config file.

    Ctrl-C or SIGTERM finishes the step, saves and exits with 130; `pretrainkit resume RUN` goes on exactly there.
    """
    from pretrainkit import api
    from pretrainkit.cli.launching import check_launch, start
    from pretrainkit.cli.progress import make_watcher

    check_launch(launch, nproc)
    resolved = api.resolve_config(source, settings or [])
    name = Path(source).stem if source.endswith((".yaml", ".yml")) else source.replace("/", "-")
    out = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if launch == "local":
        api.check_config(resolved.config, nproc)
        words = ["train", source, *(settings or []), "--out", str(out), *(["--device", device] if device else [])]
        start([*words, *(["--resume"] if resume else []), *(["--json"] if json else [])], nproc, out)
        return
    watcher = make_watcher(json)
    api.train(resolved.config, out, origins=resolved.origins, watcher=watcher, device=device, resume=resume)
