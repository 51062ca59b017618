"""`pretrainkit corpus tokenize-images`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from pretrainkit.cli.options import Averaged, Device, Json, shard_of
from pretrainkit.cli.stages import shown_stages


def tokenize_images(
    run: Annotated[Path, Argument(help="An image tokenizer: run, checkpoint or export.")],
    folders: Annotated[
        list[str],
        Argument(
            metavar="FOLDER...",
            help="Data sets: a folder with a folder for each modality, or tar files as in 'ROOT/[rgb]/{00..09}.tar'.",
        ),
    ],
    *,
    crops: Annotated[int, Option(min=1, help="Parts of each image: the centre square, then random ones.")] = 1,
    min_scale: Annotated[float, Option(help="Smallest share of an image that a random part has.")] = 0.8,
    folder: Annotated[str | None, Option(help="Where the images are; default: as the tokenizer's domain says.")] = None,
    out: Annotated[str | None, Option(help="Name of the folder of tokens; default: tok_DOMAIN@PIXELS.")] = None,
    seed: Annotated[int, Option(min=0, help="Of random parts.")] = 0,
    shard: Annotated[str, Option(help="This part of so many, from 0, for several processes: 0/4.")] = "0/1",
    batch_size: Annotated[int, Option(min=1, help="Images per forward pass.")] = 64,
    averaged: Averaged = False,
    device: Device = None,
    json_output: Json = False,
) -> None:
    """Write the tokens of images beside them, for the recipe fourm.

    Parts of images are the same for all modalities of a data set (FOLDER/crop_settings). The same command goes on where
    an interrupted one stopped.
    """
    from pretrainkit import api

    part = shard_of(shard)
    with shown_stages() as progress:
        for path in folders:
            manifest = api.tokenize_images(
                run,
                path,
                num_parts=crops,
                min_scale=min_scale,
                folder=folder,
                out=out,
                seed=seed,
                shard=part,
                batch_size=batch_size,
                averaged=averaged,
                device=device,
                progress=progress,
            )
            if json_output:
                typer.echo(json.dumps(manifest))
            else:
                typer.echo(
                    f"{manifest['folder']}: {manifest['written']} written, {manifest['kept']} kept; "
                    f"{manifest['parts']} x {manifest['tokens']} tokens of {manifest['vocab_size']} each"
                )
