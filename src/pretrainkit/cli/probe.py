"""`pretrainkit probe`."""

from json import dumps
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Device


def probe(
    model: Annotated[str, Argument(metavar="MODEL", help="A run folder, a checkpoint in it, an export, or timm:NAME.")],
    data: Annotated[Path, Option(metavar="FOLDER", help="Holds train/CLASS/IMAGE and val/CLASS/IMAGE.")],
    method: Annotated[
        list[str] | None,
        Option(
            help="linear (on augmented images), cached (on features computed once), knn. Repeat for several. "
            "Default: cached and knn."
        ),
    ] = None,
    epochs: Annotated[int | None, Option(min=1, help="Passes over the training images. Default: 90.")] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Images of an update. Default: 16384, or all where there are fewer.")
    ] = None,
    lr: Annotated[
        list[float] | None,
        Option(
            help="Learning rate of LARS. Repeat for several at once. Default: 6.4 for linear, 0.3 to 100 for cached."
        ),
    ] = None,
    neighbours: Annotated[int | None, Option(min=1, help="Number of neighbours for knn. Default: 20.")] = None,
    threads: Annotated[int | None, Option(min=0, help="That decode images. Default: 2.")] = None,
    device: Device = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how well the features of a frozen image encoder tell classes apart, in percent of the held-out images."""
    found: dict[str, Any] = {"methods": method, "num_epochs": epochs, "batch_size": batch_size, "peak_lr": lr}
    found |= {"num_neighbours": neighbours, "num_threads": threads}
    given = {name: value for name, value in found.items() if value is not None}
    metrics = api.probe(model, data, device=device, **given)
    if json:
        print(dumps(metrics))
        return
    for name, value in metrics.items():
        if isinstance(value, dict):
            print(f"{name}: " + ", ".join(f"{rate}: {accuracy:.2f}" for rate, accuracy in value.items()))
        else:
            print(f"{name} = {value:g}")
