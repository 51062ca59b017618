"""`pretrainkit import`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command(name="import")
def import_(
    path: Annotated[Path, typer.Argument(help="A folder of transformers or Sabertooth, or a file of --format.")],
    out: Annotated[Path, typer.Option(help="New folder to write.")],
    recipe: Annotated[str, typer.Option(help="Which recipe the model belongs to.")] = "bert",
    format: Annotated[
        str, typer.Option(help="huggingface, or the system that wrote the file: zerovl (recipe clip).")
    ] = "huggingface",
    config: Annotated[
        str | None, typer.Option(help="Preset or YAML file that says the architecture of a file.", show_default=False)
    ] = None,
) -> None:
    """Read a model of another library into ours, for `init_from=`, `evaluate` and `generate`."""
    from pretrainkit import api

    print(api.import_model(path, recipe, out, format=format, config=config))
