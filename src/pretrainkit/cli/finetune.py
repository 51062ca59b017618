"""`pretrainkit finetune`."""

import time
from pathlib import Path
from shlex import quote
from typing import Annotated

from typer import Argument, Option

from pretrainkit.cli.options import Data, Device, JsonLines, LaunchOptions, Origin, Resume, data_settings
from pretrainkit.cli.settings_options import with_settings
from pretrainkit.cli.train import train
from pretrainkit.errors import InputError
from pretrainkit.recipes.capabilities import BuildsOnEncoder
from pretrainkit.recipes.registry import recipes_able


@with_settings
def finetune(
    task: Annotated[
        str,
        Argument(
            help="A task of GLUE: cola, mrpc, qqp, sst2, stsb, mnli, qnli, rte or wnli. On your own files, which "
            "settings name: own, parse, qa or tags. As published with PIXEL: pixel-glue, pixel-parse, pixel-qa or "
            "pixel-tags."
        ),
    ],
    settings: Annotated[
        list[str] | None, Argument(metavar="PATH=VALUE", help="Settings, such as optimizer.peak_lr=3e-5.")
    ] = None,
    *,
    origin: Origin,
    data: Data = None,
    out: Annotated[Path | None, Option(help="Run folder. Default: runs/TASK-DATE-TIME.")] = None,
    device: Device = None,
    resume: Resume = False,
    options: Annotated[
        LaunchOptions, "launch", "nodes", "nproc", "gpus_per_node", "max_restarts", "hang_minutes", "slurm"
    ],
    json: JsonLines = False,
) -> None:
    """Fine-tune a text encoder on a task. This is an alias of `pretrainkit train glue/TASK init_from=RUN`.

    To try several learning rates and seeds, and to choose the best run, use `pretrainkit sweep`.
    """
    recipe = next(iter(recipes_able(BuildsOnEncoder)))
    task = task.removeprefix(f"{recipe}/")
    if "/" in task or task.endswith((".yaml", ".yml")):
        raise InputError(
            f"{task} is not a task of {recipe}\n  name a task, as in finetune cola; "
            f"for a config file or another preset: pretrainkit train {quote(task)} init_from={quote(str(origin))}"
        )
    out = out or Path("runs") / f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    train(
        source=f"{recipe}/{task}",
        settings=[f"init_from={origin}", *data_settings(data), *(settings or [])],
        out=out,
        device=device,
        resume=resume,
        options=options,
        json=json,
    )
