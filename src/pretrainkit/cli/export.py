"""`pretrainkit export`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Averaged, Json, print_path


def export(
    path: Annotated[Path, Argument(help="A run folder or a checkpoint in it.")],
    out: Annotated[
        Path,
        Option(
            help="New folder to write; a new file for t5x (.npz or .safetensors), 4m and 4m-tokenizer (.safetensors)."
        ),
    ],
    format: Annotated[
        str,
        Option(
            help="huggingface, safetensors, or of another system: t5x (recipe t5), 4m (fourm), 4m-tokenizer "
            "(image_tokenizer)."
        ),
    ] = "huggingface",
    averaged: Averaged = False,
    as_json: Json = False,
) -> None:
    """Write a run's weights, config and tokenizer for others to use."""
    print_path(api.export(path, format, out, averaged=averaged), as_json)
