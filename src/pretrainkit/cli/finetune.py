"""`pretrainkit finetune`."""

import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pretrainkit.cli.options import Asked, Data, Device, GoOn, JsonLines, Origin, data_settings
from pretrainkit.cli.settings_options import with_settings
from pretrainkit.cli.train import train
from pretrainkit.errors import InputError
from pretrainkit.recipes.capabilities import StandsOnEncoder
from pretrainkit.recipes.registry import recipes_able


@with_settings
def finetune(
    task: Annotated[
        str,
        Argument(
            help="cola, mrpc, qqp, sst2, stsb, mnli, qnli, rte, wnli; own, parse, qa, tags: files named by settings; "
            "pixel-glue, pixel-parse, pixel-qa, pixel-tags: as published with PIXEL."
        ),
    ],
    settings: Annotated[
        list[str] | None, Argument(metavar="PATH=VALUE", help="Settings, such as optimizer.peak_lr=3e-5.")
    ] = None,
    *,
    origin: Origin,
    data: Data = None,
    out: Annotated[Path | None, Option(help="Run folder; default: runs/TASK-DATE-TIME.")] = None,
    device: Device = None,
    resume: GoOn = False,
    asked: Annotated[Asked, "launch", "nodes", "nproc", "gpus_per_node", "max_restarts", "slurm"],
    json: JsonLines = False,
) -> None:
    """Train a text encoder further: `pretrainkit train glue/TASK init_from=RUN`, with everything that train can do."""
    recipe = next(iter(recipes_able(StandsOnEncoder)))
    task = task.removeprefix(f"{recipe}/")
    if "/" in task or task.endswith((".yaml", ".yml")):
        raise InputError(
            f"{task} is no task of {recipe}\n  name one, as in finetune cola; "
            f"of a config file: pretrainkit train {task} init_from={origin}"
        )
    out = out or Path("runs") / f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    train(
        source=f"{recipe}/{task}",
        settings=[f"init_from={origin}", *data_settings(data), *(settings or [])],
        out=out,
        device=device,
        resume=resume,
        asked=asked,
        json=json,
    )
