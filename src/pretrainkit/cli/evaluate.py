"""`pretrainkit evaluate`."""

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Averaged, Device, Json, data_settings
from pretrainkit.cli.progress import evaluation_line
from pretrainkit.errors import InputError


def evaluate(
    path: Annotated[Path, Argument(help="A run folder, a checkpoint in it, or an export.")],
    settings: Annotated[
        list[str] | None,
        Argument(
            metavar="PATH=VALUE", help="Settings of data, evaluate, objective or precision, in place of the run's."
        ),
    ] = None,
    data: Annotated[
        str | None,
        Option(
            help="Token shards or sets of pairs; or NAME=DIR, the folder of a named task. Default: data.valid of the "
            "run."
        ),
    ] = None,
    num_examples: Annotated[
        int | None, Option(min=1, help="Evaluate at most this many examples. Default: as in the run's config.")
    ] = None,
    device: Device = None,
    averaged: Averaged = False,
    all_checkpoints: Annotated[
        bool,
        Option(
            "--all-checkpoints",
            help="Evaluate each checkpoint of a run. After an interruption, the same command continues.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        Option(help="With --all-checkpoints: file of JSON lines to write. Default: RUN/evaluations/checkpoints.jsonl."),
    ] = None,
    csv: Annotated[
        Path | None, Option(help="New CSV file for the metrics. For clip, with the columns of CLIP_benchmark.")
    ] = None,
    json: Json = False,
) -> None:
    """Evaluate a trained model on held-out data. The examples and masks are the same in each evaluation."""
    if data is not None and "=" in data and not Path(data).exists():  # NAME=DIR, as in the option --data of finetune
        settings, data = [*(settings or []), *data_settings([data])], None
    options: dict[str, Any] = {"num_examples": num_examples, "device": device, "averaged": averaged}
    if all_checkpoints:
        if csv is not None:
            raise InputError(
                f"--csv {csv} is for a single model\n  leave it out: --all-checkpoints writes a line for each "
                "checkpoint"
            )

        def tell(step: int, metrics: Mapping[str, float]) -> None:
            line = dumps({"step": step, **metrics}) if json else f"step {step:>7,}  {evaluation_line(metrics)}"
            print(line, flush=True)

        api.evaluate_checkpoints(path, data, settings or [], out=out, progress=tell, **options)
        return
    if out is not None:
        raise InputError(f"--out {out} has an effect only with --all-checkpoints\n  leave it out")
    metrics = api.evaluate(path, data, settings or [], csv=csv, **options)
    if json:
        print(dumps(metrics))
    else:
        for name, value in sorted(metrics.items()):
            print(f"{name} = {value:.6f}")
