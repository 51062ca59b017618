"""`pretrainkit infer`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import (
    Averaged,
    Data,
    Decoding,
    Device,
    Json,
    Lengths,
    Module,
    data_settings,
    lengths_of,
    print_path,
    shard_of,
)
from pretrainkit.cli.settings_options import with_settings
from pretrainkit.cli.stages import shown_stages
from pretrainkit.errors import InputError
from pretrainkit.eval.inference import Mode


@with_settings
def infer(
    path: Annotated[Path, Argument(help="A run folder, a checkpoint in it, or an export.")],
    settings: Annotated[
        list[str] | None, Argument(metavar="PATH=VALUE", help="Settings of data or precision, in place of the run's.")
    ] = None,
    *,
    out: Annotated[Path, Option(help="File of JSON lines to write; a folder for a mixture.")],
    task: Annotated[str | None, Option(help="Task or mixture whose examples are the inputs.")] = None,
    split: Annotated[str, Option(help="Split of the task.")] = "test",
    input: Annotated[
        Path | None,
        Option(help="File of rows instead of a task: .jsonl, .tsv or .txt (also .gz, .zst), .parquet, .tfrecord."),
    ] = None,
    inputs: Annotated[
        str | None,
        Option(
            metavar="COLUMN|PATTERN",
            help="Column of the rows, or a pattern such as 'summarize: {article}'. Default: inputs, text or prompt.",
        ),
    ] = None,
    targets: Annotated[
        str | None,
        Option(metavar="COLUMN|PATTERN", help="Column or pattern of the targets to score. Default: targets."),
    ] = None,
    mode: Annotated[Mode, Option(help="Write predictions, the likelihood of the targets, or both.")] = "predict",
    lengths: Lengths = None,
    batch_size: Annotated[int, Option(min=1, help="Examples per forward pass.")] = 32,
    chunk_batches: Annotated[
        int, Option(min=1, help="Number of batches between two points from which an interrupted command continues.")
    ] = 20,
    shard: Annotated[str, Option(metavar="I/N", help="Process only part I of N, counted from 0.")] = "0/1",
    fields: Annotated[
        str | None, Option(help="Fields of each example to write, separated by commas. Default: all texts.")
    ] = None,
    all_fields: Annotated[bool, Option("--all-fields", help="Write all fields of each example.")] = False,
    ids: Annotated[bool, Option("--ids", help="Also write the token ids of the predictions.")] = False,
    decoding: Decoding,
    data: Data = None,
    module: Module = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output of another command.")] = False,
    device: Device = None,
    as_json: Json = False,
    averaged: Averaged = False,
) -> None:
    """Write the predictions of a trained model for all examples of a task, or all rows of a file, as JSON lines.

    For a mixture, OUT is a folder with a file per task. OUT appears when it is complete. After an interruption, the
    same command continues. For a few prompts, use `pretrainkit generate`.
    """
    if fields is not None and all_fields:
        raise InputError("--fields and --all-fields are both given\n  leave out one of them")
    named = None if fields is None else tuple(name.strip() for name in fields.split(","))
    with shown_stages() as progress:
        written = api.infer(
            path,
            out,
            task=task,
            split=split,
            input=input,
            overrides=[*(settings or []), *data_settings(data)],
            modules=module or [],
            shard=shard_of(shard),
            chunk_batches=chunk_batches,
            overwrite=overwrite,
            device=device,
            averaged=averaged,
            progress=progress,
            mode=mode,
            inputs=inputs,
            targets=targets,
            lengths=lengths_of(lengths),
            fields=() if all_fields else named,
            has_ids=ids,
            batch_size=batch_size,
            decoding=decoding.given(),
        )
    print_path(written, as_json)
