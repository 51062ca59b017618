"""`pretrainkit finetune`."""

import time
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from pretrainkit.cli.options import (
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


@app.command()
def finetune(
    task: Annotated[
        str,
        typer.Argument(
            help="cola, mrpc, qqp, sst2, stsb, mnli, qnli, rte, wnli; own, parse, qa, tags: files named by settings; "
            "pixel-glue, pixel-parse, pixel-qa, pixel-tags: as published with PIXEL."
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="PATH=VALUE", help="Settings, such as optimizer.peak_lr=3e-5.")
    ] = None,
    *,
    origin: Annotated[
        Path,
        typer.Option("--from", metavar="RUN|EXPORT", help="The encoder: a run, a checkpoint in it, or an export."),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME=DIR",
            help="Where the data of named tasks lie, such as glue=DIR; may be repeated. Default: the hub.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/TASK-DATE-TIME.")] = None,
    device: Device = None,
    resume: GoOn = False,
    launch: Launch = "none",
    nodes: NumNodes = 1,
    nproc: NumProcesses = None,
    gpus_per_node: GpusPerNode = 0,
    max_restarts: MaxRestarts = 3,
    slurm: SlurmSettings = None,
    json: JsonLines = False,
) -> None:
    """Train a text encoder further: `pretrainkit train glue/TASK init_from=RUN`, with everything that train can do."""
    from pretrainkit.cli.train import train
    from pretrainkit.errors import InputError
    from pretrainkit.recipes.capabilities import StandsOnEncoder
    from pretrainkit.recipes.registry import recipes_able
    from pretrainkit.tasks.named_data import task_folders

    recipe = next(iter(recipes_able(StandsOnEncoder)))
    task = task.removeprefix(f"{recipe}/")
    if "/" in task or task.endswith((".yaml", ".yml")):
        raise InputError(
            f"{task} is no task of {recipe}\n  name one, as in finetune cola; "
            f"of a config file: pretrainkit train {task} init_from={origin}"
        )
    words = [f"init_from={origin}"]
    if data:
        words.append(f"data.task_folders={dumps(task_folders(data))}")
    out = out or Path("runs") / f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    train(
        f"{recipe}/{task}",
        [*words, *(settings or [])],
        out=out,
        device=device,
        resume=resume,
        launch=launch,
        nodes=nodes,
        nproc=nproc,
        gpus_per_node=gpus_per_node,
        max_restarts=max_restarts,
        slurm=slurm,
        json=json,
    )
