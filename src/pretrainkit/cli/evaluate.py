"""`pretrainkit evaluate`."""

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Averaged, Device, data_settings
from pretrainkit.cli.progress import evaluation_line
from pretrainkit.errors import InputError


def evaluate(
    path: Annotated[Path, Argument(help="A run folder, a checkpoint in it, or an export.")],
    settings: Annotated[
        list[str] | None,
        Argument(metavar="PATH=VALUE", help="Settings of data, evaluate, objective, precision other than the run's."),
    ] = None,
    data: Annotated[
        str | None,
        Option(help="Token shards, sets of pairs, or NAME=DIR of named tasks; default: the run's data.valid."),
    ] = None,
    num_examples: Annotated[
        int | None, Option(min=1, help="At most so many; default: as the run's config says.")
    ] = None,
    device: Device = None,
    averaged: Averaged = False,
    all_checkpoints: Annotated[
        bool, Option("--all-checkpoints", help="Evaluate each checkpoint of a run. An interrupted command continues.")
    ] = False,
    out: Annotated[
        Path | None,
        Option(help="With --all-checkpoints: file of JSON lines; default: RUN/evaluations/checkpoints.jsonl."),
    ] = None,
    csv: Annotated[
        Path | None, Option(help="New CSV file for the metrics; of clip with the columns of CLIP_benchmark.")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a trained model on held-out data, always with the same examples and masks."""
    if data is not None and "=" in data and not Path(data).exists():  # NAME=DIR, as fine-tuning takes it
        settings, data = [*(settings or []), *data_settings([data])], None
    options: dict[str, Any] = {"num_examples": num_examples, "device": device, "averaged": averaged}
    if all_checkpoints:
        if csv is not None:
            raise InputError(f"--csv {csv} is for one model\n  leave it out: --all-checkpoints writes a line for each")

        def tell(step: int, metrics: Mapping[str, float]) -> None:
            line = dumps({"step": step, **metrics}) if json else f"step {step:>7,}  {evaluation_line(metrics)}"
            print(line, flush=True)

        api.evaluate_checkpoints(path, data, settings or [], out=out, progress=tell, **options)
        return
    if out is not None:
        raise InputError(f"--out {out} is only for --all-checkpoints\n  leave it out")
    metrics = api.evaluate(path, data, settings or [], csv=csv, **options)
    if json:
        print(dumps(metrics))
    else:
        for name, value in sorted(metrics.items()):
            print(f"{name} = {value:.6f}")
