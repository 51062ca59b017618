"""`pretrainkit runs`: the runs in a folder, with their state and results."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pretrainkit.cli.options import Json, print_json


def runs(
    folder: Annotated[Path, Argument(help="Folder in which to look for runs, at any depth.")] = Path("runs"),
    where: Annotated[
        list[str] | None,
        Option(
            metavar="CONDITION",
            help="List only runs that meet this condition, such as state=running, name='*large*', masked_lm_loss<3 or "
            "optimizer.peak_lr>=1e-3; may be repeated.",
        ),
    ] = None,
    sort: Annotated[
        str | None, Option(metavar="KEY", help="Sort by a column, a metric or a setting. Default: by name.")
    ] = None,
    reverse: Annotated[bool, Option("--reverse", help="Sort in descending order.")] = False,
    metric: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Metric to show. May be repeated. Default: the first metric of a run."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the runs in a folder: state, steps, held-out metric, time of training and size."""
    from pretrainkit.errors import InputError
    from pretrainkit.report.numbers import DASH, duration, number, short
    from pretrainkit.report.numbers import metric as formatted
    from pretrainkit.report.run_table import run_table

    rows = run_table(folder, where=where or [], sort=sort, reverse=reverse)
    if as_json:
        print_json([asdict(row) | {"folder": str(row.folder)} for row in rows])
        return
    known = {name for row in rows for name in row.metrics}
    if rows and (unknown := [name for name in metric or [] if name not in known]):
        raise InputError(f"no run in {folder} has the metric {unknown[0]!r}\n  there are: {', '.join(sorted(known))}")
    lines = [("run", "preset", "state", "step", "metric", "time", "size", "started")]
    for row in rows:
        usual = sorted(row.metrics, key="loss".__ne__)[:1]  # the loss, or else the first metric
        names = [name for name in metric if name in row.metrics] if metric else usual
        shown = (
            "  ".join(f"{name} {formatted(name, row.metrics[name], row.percentages)}" for name in names)
            or row.note
            or DASH
        )
        steps = number(row.step) if row.num_steps in (None, row.step) else f"{row.step:,} of {row.num_steps:,}"
        time = DASH if row.seconds is None else duration(row.seconds)
        lines.append(
            (row.name, row.preset or row.recipe, row.state, steps, shown, time, f"{short(row.num_bytes)}B", row.started)
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
    print(f"{len(rows)} run{'' if len(rows) == 1 else 's'}")
