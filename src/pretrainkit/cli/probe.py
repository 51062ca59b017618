"""`pretrainkit probe`."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Device, Json, print_json, renamed
from pretrainkit.errors import InputError


def probe(
    model: Annotated[str, Argument(metavar="MODEL", help="A run folder, a checkpoint in it, an export, or timm:NAME.")],
    images: Annotated[
        Path | None, Option(metavar="FOLDER", help="Folder with train/CLASS/IMAGE and val/CLASS/IMAGE. Required.")
    ] = None,
    data: Annotated[Path | None, Option(hidden=True)] = None,
    method: Annotated[
        list[str] | None,
        Option(
            help="linear: train on augmented images. cached: train on features that are computed once. knn: nearest "
            "neighbours. May be repeated. Default: cached and knn."
        ),
    ] = None,
    epochs: Annotated[int | None, Option(min=1, help="Number of passes over the training images. Default: 90.")] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Images per update. Default: 16384, or all images if there are fewer.")
    ] = None,
    lr: Annotated[
        list[float] | None,
        Option(
            help="Learning rate of LARS. May be repeated, to train with several at once. Default: 6.4 for linear, 0.3 "
            "to 100 for cached."
        ),
    ] = None,
    neighbours: Annotated[int | None, Option(min=1, help="Number of neighbours for knn. Default: 20.")] = None,
    threads: Annotated[int | None, Option(min=0, help="Number of threads that decode images. Default: 2.")] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Measure how well the features of a frozen image encoder separate classes, as accuracy on held-out images."""
    if data is not None:
        renamed("--data of probe", "--images", f"--images {data}")
    if (folder := images or data) is None:
        raise InputError("there are no images to probe with\n  give a folder: --images FOLDER")
    options: dict[str, Any] = {"methods": method, "num_epochs": epochs, "batch_size": batch_size, "peak_lr": lr}
    options |= {"num_neighbours": neighbours, "num_threads": threads}
    given = {name: value for name, value in options.items() if value is not None}
    metrics = api.probe(model, folder, device=device, **given)
    if json:
        print_json(metrics)
        return
    for name, value in metrics.items():
        if isinstance(value, dict):
            print(f"{name}: " + ", ".join(f"{rate}: {accuracy:.2f}" for rate, accuracy in value.items()))
        else:
            print(f"{name} = {value:g}")
