"""`pretrainkit evaluate`."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Averaged, Data, Device, Json, data_settings, print_json, renamed
from pretrainkit.cli.progress import evaluation_line
from pretrainkit.errors import InputError


def evaluate(
    path: Annotated[Path, Argument(help="A run folder, a checkpoint in it, or an export.")],
    settings: Annotated[
        list[str] | None,
        Argument(
            metavar="PATH=VALUE",
            help="Settings of data, evaluate, objective or precision, in place of the run's, such as other held-out "
            "data: data.valid=FOLDER.",
        ),
    ] = None,
    data: Data = None,
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
    held_out, named = None, list[str]()
    for folder in data or []:
        if "=" in folder and not Path(folder).exists():
            named.append(folder)
        else:  # a former meaning of --data
            renamed("--data of evaluate for held-out data", "data.valid", f"data.valid={quote(folder)}")
            held_out = folder
    settings = [*(settings or []), *data_settings(named)]
    options: dict[str, Any] = {"num_examples": num_examples, "device": device, "averaged": averaged}
    if all_checkpoints:
        if csv is not None:
            raise InputError(
                f"--csv {csv} is for a single model\n  leave it out: --all-checkpoints writes a line for each "
                "checkpoint"
            )

        def tell(step: int, metrics: Mapping[str, float]) -> None:
            if json:
                print_json({"step": step, **metrics})
            else:
                print(f"step {step:>7,}  {evaluation_line(metrics)}", flush=True)

        api.evaluate_checkpoints(path, held_out, settings, out=out, progress=tell, **options)
        return
    if out is not None:
        raise InputError(f"--out {out} has an effect only with --all-checkpoints\n  leave it out")
    metrics = api.evaluate(path, held_out, settings, csv=csv, **options)
    if json:
        print_json(metrics)
    else:
        for name, value in sorted(metrics.items()):
            print(f"{name} = {value:.6f}")
