"""`pretrainkit predict`."""

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from pretrainkit.cli.options import Device
from pretrainkit.cli.stages import shown_stages

app = typer.Typer(add_completion=False)


@app.command()
def predict(
    path: Annotated[Path, typer.Argument(help="A fine-tuned run, a checkpoint in it, or an export.")],
    *,
    out: Annotated[Path, typer.Option(help="File of JSON lines to write.", show_default=False)],
    input: Annotated[
        Path | None,
        typer.Option(
            help="A file with the columns that the run was trained on: .jsonl, .tsv, .parquet.", show_default=False
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Instead: a task of GLUE, such as ax. Default: the run's.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="Of the task.")] = "test",
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME=DIR",
            help="Where the data of named tasks lie, such as glue=DIR. Default: as the run says.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per forward pass.")] = 64,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what another command wrote.")] = False,
    device: Device = None,
) -> None:
    """Write what a fine-tuned model answers: a JSON object per row with its index, label and probabilities, or value.

    The same command goes on where an interrupted one stopped. OUT appears when it is whole.
    """
    from pretrainkit import api
    from pretrainkit.tasks.named_data import task_folders

    with shown_stages() as progress:
        written = api.predict(
            path,
            out,
            input=input,
            task=task,
            split=split,
            overrides=[f"data.task_folders={dumps(task_folders(data))}"] if data else [],
            batch_size=batch_size,
            overwrite=overwrite,
            device=device,
            progress=progress,
        )
    typer.echo(str(written))
