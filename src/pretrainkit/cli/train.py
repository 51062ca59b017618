"""`pretrainkit train`."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pretrainkit.cli.options import (
    CloudSettings,
    Device,
    GoOn,
    GpusPerNode,
    JsonLines,
    Launch,
    MaxRestarts,
    NumNodes,
    NumProcesses,
    SlurmSettings,
)

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
    nodes: NumNodes = 1,
    nproc: NumProcesses = None,
    gpus_per_node: GpusPerNode = 0,
    max_restarts: MaxRestarts = 3,
    slurm: SlurmSettings = None,
    cloud: CloudSettings = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=A,B", help="With --launch slurm: a run for each value, as an array of jobs."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --launch cloud: show task file and commands; do nothing.")
    ] = False,
    origins: Annotated[Path | None, typer.Option(hidden=True, help="What a launcher knows of the config.")] = None,
    json: JsonLines = False,
) -> None:
    """Train a preset or a config file.

    Ctrl-C or SIGTERM finishes the step, saves and exits with 130; `pretrainkit resume RUN` goes on exactly there.
    """
    from pretrainkit import api
    from pretrainkit.cli.launching import Asked, start_frozen, start_sweep
    from pretrainkit.cli.progress import make_watcher
    from pretrainkit.training.folder import RunFolder

    asked = Asked(launch, nodes, nproc, gpus_per_node, max_restarts, slurm, cloud, sweep, dry_run)
    asked.check()
    resolved = api.resolve_config(source, settings or [])
    name = Path(source).stem if source.endswith((".yaml", ".yml")) else source.replace("/", "-")
    out = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for note in resolved.notes():
        print(note, file=sys.stderr)
    if launch == "none":
        known = resolved.origins if origins is None else _origins(origins)
        api.train(resolved.config, out, origins=known, watcher=make_watcher(json), device=device, resume=resume)
        return
    if not resume and not sweep:
        RunFolder(out).require_new()
    if sweep:
        start_sweep(asked, source, settings or [], sweep, out, device)
        return
    api.check_config(resolved.config, asked.world_size, resolved.origins)
    resolved.config.parallel.require_ranks(asked.world_size)
    start_frozen(asked, resolved, out, device, resume=resume, as_json=json)


def _origins(path: Path) -> Any:
    import json

    return json.loads(path.read_text(encoding="utf-8"))
