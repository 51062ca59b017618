"""`pretrainkit predict`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Data, Device, Json, data_settings, print_path
from pretrainkit.cli.stages import shown_stages


def predict(
    path: Annotated[Path, Argument(help="A fine-tuned run, a checkpoint in it, or an export.")],
    *,
    out: Annotated[Path, Option(help="File of JSON lines to write.")],
    input: Annotated[
        Path | None, Option(help="File with the columns that the run was trained on: .jsonl, .csv, .tsv or .parquet.")
    ] = None,
    task: Annotated[
        str | None, Option(help="Task of GLUE instead of a file, such as ax. Default: the task of the run.")
    ] = None,
    split: Annotated[str, Option(help="Split of the task.")] = "test",
    data: Data = None,
    batch_size: Annotated[int, Option(min=1, help="Examples per forward pass.")] = 64,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output of another command.")] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write the predictions of a fine-tuned model as JSON lines: index, and label with probabilities, or value.

    This is an alias of `infer` with the task and the defaults of fine-tuning. OUT appears when it is complete. After an
    interruption, the same command continues.
    """
    with shown_stages() as progress:
        written = api.predict(
            path,
            out,
            input=input,
            task=task,
            split=split,
            overrides=data_settings(data),
            batch_size=batch_size,
            overwrite=overwrite,
            device=device,
            progress=progress,
        )
    print_path(written, as_json)
