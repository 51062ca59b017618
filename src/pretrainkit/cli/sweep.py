"""`pretrainkit sweep`."""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from pretrainkit.cli.options import Data, Device, Json, Origin, print_json
from pretrainkit.errors import InputError, Interrupted

app = typer.Typer(add_completion=False)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def with_repeated_option(words: Iterable[str], option: str) -> Iterator[str]:
    """Yield `--lr 5e-5 4e-5` as `--lr 5e-5 --lr 4e-5`: every number after a number of the option is another value."""
    is_within = False
    for before, word in pairwise(["", *words]):
        is_within = before == option or (is_within and _NUMBER.fullmatch(before) is not None)
        if is_within and before != option and _NUMBER.fullmatch(word):
            yield option
        yield word


class _SweepCommand(TyperCommand):
    """A command that takes several learning rates after one --lr."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(with_repeated_option(args, "--lr")))


@app.command(cls=_SweepCommand)
def sweep(
    benchmark: Annotated[
        str,
        Argument(
            metavar="TASKS",
            help="glue, for the tasks of GLUE; or own, parse, qa or tags, for files that settings name.",
        ),
    ],
    settings: Annotated[
        list[str] | None, Argument(metavar="PATH=VALUE", help="Settings of every run, such as data.num_epochs=10.")
    ] = None,
    *,
    origin: Origin,
    out: Annotated[Path, Option(help="Folder for all runs and results.")],
    tasks: Annotated[str | None, Option(help="Tasks of GLUE, separated by commas. Default: all but wnli.")] = None,
    lr: Annotated[
        list[float] | None,
        Option("--lr", metavar="RATE ...", help="Peak learning rates. Default: 5e-5 4e-5 3e-5 2e-5."),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Runs per learning rate.")] = 3,
    data: Data = None,
    jobs: Annotated[
        int, Option(min=1, help="Run at most this many at once; fewer if they do not fit into memory.")
    ] = 1,
    from_mnli: Annotated[
        bool, Option("--from-mnli", help="Start RTE, MRPC and STS-B from the chosen run of MNLI.")
    ] = False,
    keep_all: Annotated[bool, Option("--keep-all", help="Also keep the weights of runs that were not chosen.")] = False,
    submission: Annotated[bool, Option(help="Answer the test sets and write the leaderboard's zip.")] = True,
    device: Device = None,
    json_output: Json = False,
) -> None:
    """Fine-tune an encoder with several learning rates and seeds, and choose the best run for each task.

    The learning rate with the best median over seeds on the held-out data is chosen. Writes tables and, for GLUE, the
    submission. After an interruption, the same command continues.

    For other settings, and for pretraining, use `pretrainkit train --sweep PATH=A,B`: an array of SLURM jobs.
    """
    import signal

    from pretrainkit.sweep.plan import BENCHMARK, Plan
    from pretrainkit.sweep.results import as_json, as_markdown
    from pretrainkit.sweep.runs import Sweep

    if benchmark not in (BENCHMARK.name, *BENCHMARK.own):
        raise InputError(
            f"there is no sweep over {benchmark!r}\n  give one of: {BENCHMARK.name}, {', '.join(BENCHMARK.own)}"
        )
    if benchmark in BENCHMARK.own and (tasks is not None or from_mnli):
        raise InputError(f"--tasks and --from-mnli are only for GLUE, not for {benchmark}\n  leave them out")
    all_tasks = BENCHMARK.usual if benchmark == BENCHMARK.name else (benchmark,)
    plan = Plan(
        origin=str(origin.resolve()),
        tasks=all_tasks if tasks is None else tuple(name.strip() for name in tasks.split(",")),
        lrs=tuple(lr) if lr else Plan.lrs,
        num_seeds=seeds,
        folders=tuple(data or ()),
        settings=tuple(settings or ()),
        has_intermediate=from_mnli,
        device=device,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as with Ctrl-C: the runs save and end first
    runs = Sweep(plan, out.resolve(), jobs, keep_all, partial(typer.echo, err=json_output))
    try:
        choices = runs.run()
    except KeyboardInterrupt as error:
        raise Interrupted("stopped\n  finished runs are kept: run the same command again to continue") from error
    if not json_output:
        typer.echo(as_markdown(choices), nl=False)
    path, missing = runs.submit(choices, device) if submission and benchmark == BENCHMARK.name else (None, ())
    if json_output:
        result = as_json(choices)
        print_json({**result, "submission": path and str(path), "would_be_refused": list(missing)})
        return
    if path is not None:
        typer.echo(str(path))
    for reason in missing:
        typer.echo(f"  the leaderboard would refuse it: {reason}")
