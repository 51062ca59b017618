"""`pretrainkit import`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command(name="import")
def import_(
    path: Annotated[Path, typer.Argument(help="A folder written by transformers.")],
    out: Annotated[Path, typer.Option(help="New folder to write.")],
    recipe: Annotated[str, typer.Option(help="Which recipe the model belongs to.")] = "bert",
) -> None:
    """Read a Hugging Face folder into ours, for `init_from=`, `evaluate` and `generate`."""
    from pretrainkit import api

    print(api.import_model(path, recipe, out))
