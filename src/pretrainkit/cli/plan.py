"""`pretrainkit plan`."""

import atexit
import gc
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pretrainkit.cli.options import ConfigSource, Json, print_json, renamed
from pretrainkit.cli.stages import amount
from pretrainkit.config.base import shown
from pretrainkit.config.loader import nested
from pretrainkit.config.yaml import dump_yaml
from pretrainkit.errors import ConfigError
from pretrainkit.report.numbers import duration
from pretrainkit.workers.processes import without_collector

if TYPE_CHECKING:
    from pretrainkit.running.plan import Plan

_COLUMNS = ("weights", "grads", "optimizer", "average", "activ.", "gathered", "total")


def plan(
    source: ConfigSource,
    settings: Annotated[
        list[str] | None, Argument(metavar="PATH=VALUE", help="Settings, such as data.train=FOLDER.")
    ] = None,
    gpus: Annotated[
        int, Option(min=1, help="Number of devices of the run on all its nodes, one per rank; at least 1.")
    ] = 1,
    hardware: Annotated[
        str,
        Option(
            help="Device type: b200, h200, h100, h20, a100, a100-40, a40, l40s, a10, l4, v100, v100-16, t4, rtx5090, "
            "rtx4090, rtx3090, or cpu for this machine."
        ),
    ] = "h200",
    device: Annotated[str | None, Option(hidden=True)] = None,
    gpus_per_node: Annotated[int, Option(min=1, help="Number of devices per machine, for HSDP.")] = 8,
    mfu: Annotated[
        float, Option(help="Model FLOPs utilization that you expect: a share of the peak rate, in (0, 1].")
    ] = 0.4,
    price: Annotated[float | None, Option(help="Price of a device per hour, to report the cost.")] = None,
    fit: Annotated[
        bool,
        Option(
            "--fit",
            help="Choose the microbatch, the sharding and the activation checkpointing that fit. Settings of this "
            "command line are not changed.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        Option(
            help="Also shard the model on this machine, without the devices, to count the values that each rank keeps. "
            "With --fit, do this only for the chosen strategy."
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Estimate the memory per device, FLOPs, time and cost of a run, and check that its sizes fit its ranks.

    If the config has data, also measure on this machine whether data loading is fast enough. With --fit, print settings
    with which the run fits into the memory of the devices.
    """
    if device is not None:
        renamed("--device of plan", "--hardware", f"--hardware {device}")
        hardware = device
    atexit.register(gc.freeze)  # skip garbage collection at the end of the process
    with without_collector(), _left_out("scipy", "wandb"):
        from pretrainkit import api

        resolved = api.resolve_config(source, settings or [])
        result = api.make_plan(
            resolved.config,
            num_gpus=gpus,
            device=hardware,
            gpus_per_node=gpus_per_node,
            mfu=mfu,
            price=price,
            dry_run=dry_run,
            fit=fit,
            kept=[path for path, origin in resolved.origins.items() if origin == "command line"],
            loading=True,
        )
    command = None
    if result.fit is not None:
        words = [source, *(settings or []), *(f"{path}={shown(value)}" for path, value in result.fit.settings.items())]
        words += [] if resolved.config.has_training_data else ["data.train=FOLDER"]
        command = f"pretrainkit train {shlex.join(words)}{_launched(gpus, gpus_per_node)}"
    if as_json:
        print_json(asdict(result) | {"command": command})
    else:
        print("\n".join([*_lines(result), *_fit_lines(result, command), *_loading_lines(result)]))
    if result.problems:
        raise ConfigError(result.problems)


@contextmanager
def _left_out(*packages: str) -> Iterator[None]:
    """Keep timm and transformers from importing packages that a plan never uses, which takes nearly a CPU-second."""
    absent = {name: None for name in packages if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


def _launched(gpus: int, gpus_per_node: int) -> str:
    """Return the options of `train` that start a process for each device."""
    if gpus == 1:
        return ""
    if gpus <= gpus_per_node:
        return f" --launch local --nproc {gpus}"
    nodes = next(number for number in range(2, gpus + 1) if gpus % number == 0 and gpus // number <= gpus_per_node)
    return f" --launch slurm --nodes {nodes} --gpus-per-node {gpus // nodes}"


def _fit_lines(plan: "Plan", command: str | None) -> list[str]:
    if plan.fit is None:
        return []
    lines = [f"to fit into {plan.usable_bytes / 2**30:,.1f} GiB, nine tenths of the memory of {plan.device}:"]
    lines += [f"  {reason}" for reason in plan.fit.reasons]
    if not plan.fit.settings:
        return [*lines, "nothing needs to be changed", f"  {command}"]
    return [
        *lines,
        "on the command line:",
        f"  {command}",
        "or in the YAML file:",
        indent(dump_yaml(nested(plan.fit.settings)).rstrip(), "  "),
    ]


def _loading_lines(plan: "Plan") -> list[str]:
    loading = plan.loading
    if loading is None:
        return ["data loading: not measured, because no data was read"]
    speed, workers = loading.examples_per_second, loading.num_workers
    measured = f"one thread of this machine prepares {speed:,.0f} examples per second"
    if loading.needed_by_rank is None or loading.needed_by_machine is None:
        return [f"data loading: {measured}; the time of a step on {plan.device} is unknown"]
    needed, of_machine, ranks = loading.needed_by_rank, loading.needed_by_machine, loading.ranks_of_machine
    supply = f"its {f'{workers} workers prepare' if workers > 1 else 'worker prepares'} {speed * workers:,.0f}"
    figures = f"{measured}. Each {plan.device} needs {needed:,.0f}, and {supply}"
    if ranks > 1:
        figures += f". The {ranks} of a machine need {of_machine:,.0f}, the work of {of_machine / speed:,.1f} cores"
    if loading.keeps_up:
        return [f"data loading keeps up: {figures}"]
    lines = [f"DATA LOADING DOES NOT KEEP UP: {figures}", *(f"  fix: {remedy}" for remedy in loading.remedies)]
    if plan.seconds is not None:
        took = plan.seconds * needed / (speed * workers)
        lines.append(f"  as configured, loading takes {_long(took)}, not {_long(plan.seconds)}")
    return lines


def _lines(plan: "Plan") -> list[str]:
    flops = f"{plan.flops_per_step:.3g}" if plan.flops_per_step else "uncounted"
    lines = [
        f"{plan.num_parameters:,} parameters on {plan.num_ranks} x {plan.device}, {plan.precision}",
        f"per step: {plan.tokens_per_step:,.0f} tokens, {flops} FLOPs; each rank "
        f"{plan.microbatches_per_step} x {plan.examples_per_microbatch} examples",
        "memory of a rank in GiB  " + "".join(f"{name:>10}" for name in _COLUMNS),
    ]
    for name, memory in plan.memory.items():
        cells = "".join(f"{part / 2**30:10.2f}" for part in (*astuple(memory), memory.total))
        fits = ""
        if plan.device_bytes is not None:
            fits = "fits" if plan.fits(name) else "DOES NOT FIT"
            if not plan.fits(name) and name in plan.fitting:
                fits += f"; data.microbatch_size={plan.fitting[name]} would fit"
        lines.append(f"  {name:<22} {cells}  {fits}")
    for strategy, numbers in plan.numbers_on_rank.items():
        shown = ", ".join(f"rank {rank} keeps {count:,}" for rank, count in numbers.items())
        lines.append(f"dry run of {strategy} on {amount(1 + max(numbers), 'rank')}: {shown} numbers")
    if plan.assumed is not None:
        lines.insert(0, f"assumed, because no data is given: {plan.assumed}")
    steps = "an unknown number of steps" if plan.num_steps is None else f"{plan.num_steps:,} steps"
    if plan.step_seconds is None:
        unknown = f"the peak rate of {plan.device}" if plan.flops_per_step else "the work of this encoder"
        lines.append(f"{steps}; no time estimate: {unknown} is unknown")
        return lines
    steps += f" of {duration(plan.step_seconds)} at an MFU of {plan.mfu:.0%}"
    if plan.seconds is None:
        lines.append(f"{steps}; to estimate the time, give data.train or num_steps")
    else:
        cost = "" if plan.cost is None else f", {plan.cost:,.2f} at that price"
        lines.append(f"{steps}: {_long(plan.seconds)}{cost}")
    return lines


def _long(seconds: float) -> str:
    """Return a time for people: in hours, and below half an hour in minutes or seconds."""
    return f"{seconds / 3600:,.2f} hours" if seconds >= 1800 else duration(seconds)
