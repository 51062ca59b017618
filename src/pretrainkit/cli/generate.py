"""`pretrainkit generate`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def generate(
    path: Annotated[Path, typer.Argument(help="A run folder, a checkpoint in it, or an export.")],
    text: Annotated[list[str] | None, typer.Argument(help="Prompts; default: lines of standard input.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Answers per masked word, or images per prompt.")] = 5,
    images: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="CLIP: the images to find what the prompts say in.")
    ] = None,
    averaged: Annotated[
        bool, typer.Option("--averaged", help="The average of the weights that ema_decay keeps.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per prompt.")] = False,
) -> None:
    """Let a trained model answer. BERT fills in what is masked: write <mask> in place of a word. CLIP finds the images
    of a folder that a text describes."""
    import json as json_module

    from pretrainkit import api

    prompts = text or [line.rstrip("\n") for line in sys.stdin]
    options = {"top": top} if images is None else {"top": top, "images": images}
    for answer in api.generate(path, prompts, averaged=averaged, **options):
        print(json_module.dumps(answer, ensure_ascii=False) if json else answer["text"])
