"""`pretrainkit generate`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pretrainkit.cli.options import Alpha, Beams, MaxLength, Seed, Temperature, TopK, TopP

app = typer.Typer(add_completion=False)


@app.command()
def generate(
    path: Annotated[Path, typer.Argument(help="A run folder, a checkpoint in it, or an export.")],
    text: Annotated[list[str] | None, typer.Argument(help="Prompts; default: lines of standard input.")] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="BERT, CLIP: answers per masked word, or images per prompt. Default: 5."),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="CLIP: the images to find what the prompts say in.")
    ] = None,
    num: Annotated[
        int | None,
        typer.Option(min=1, help="T5: answers per prompt, the best of --beams or as many draws. Default: 1."),
    ] = None,
    beams: Beams = None,
    alpha: Alpha = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    max_length: MaxLength = None,
    averaged: Annotated[
        bool, typer.Option("--averaged", help="The average of the weights that ema_decay keeps.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per prompt.")] = False,
) -> None:
    """Let a trained model answer. BERT fills in what is masked: write <mask> in place of a word. CLIP finds the images
    of a folder that a text describes. T5 answers inputs of its tasks, fills in <extra_id_0>, or goes on with a text."""
    import json as json_module

    from pretrainkit import api

    prompts = text or [line.rstrip("\n") for line in sys.stdin]
    given = {"top": top, "images": images, "num": num, "beams": beams, "alpha": alpha, "temperature": temperature}
    given |= {"top_k": top_k, "top_p": top_p, "seed": seed, "max_length": max_length}
    options = {name: value for name, value in given.items() if value is not None}
    for answer in api.generate(path, prompts, averaged=averaged, **options):
        print(json_module.dumps(answer, ensure_ascii=False) if json else answer["text"])
