"""`pretrainkit evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    path: Annotated[Path, typer.Argument(help="A run folder, a checkpoint in it, or an export.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH=VALUE", help="Settings of evaluate, data or precision, other than the run's."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Token shards, or sets of pairs; default: the run's data.valid.")
    ] = None,
    num_examples: Annotated[
        int | None, typer.Option(min=1, help="At most so many; default: as the run's config says.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: the best there is.")] = None,
    averaged: Annotated[
        bool, typer.Option("--averaged", help="The average of the weights that ema_decay keeps.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Evaluate a trained model on held-out data, always with the same examples and masks."""
    import json as json_module

    from pretrainkit import api

    metrics = api.evaluate(path, data, settings or [], num_examples=num_examples, device=device, averaged=averaged)
    if json:
        print(json_module.dumps(metrics))
    else:
        for name, value in sorted(metrics.items()):
            print(f"{name} = {value:.6f}")
