"""`pretrainkit plan`."""

import atexit
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple
from typing import Annotated, Any

from typer import Argument, Option

from pretrainkit.cli.options import Json
from pretrainkit.errors import ConfigError
from pretrainkit.workers.processes import without_collector

_COLUMNS = ("weights", "grads", "optimizer", "average", "activ.", "gathered", "total")


def plan(
    source: Annotated[str, Argument(metavar="PRESET|FILE.yaml", help="A preset such as bert/tiny, or a YAML file.")],
    settings: Annotated[
        list[str] | None, Argument(metavar="PATH=VALUE", help="Settings, such as data.train=FOLDER.")
    ] = None,
    gpus: Annotated[int, Option(min=1, help="Number of devices of the run, one per rank.")] = 1,
    hardware: Annotated[
        str,
        Option(
            help="Device type: b200, h200, h100, h20, a100, a100-40, l40s, a10, l4, rtx5090, rtx4090, rtx3090 or cpu."
        ),
    ] = "h200",
    device: Annotated[str | None, Option(hidden=True)] = None,
    gpus_per_node: Annotated[int, Option(min=1, help="Number of devices per machine, for HSDP.")] = 8,
    mfu: Annotated[
        float, Option(help="Model FLOPs utilization that you expect: a share of the peak rate, in (0, 1].")
    ] = 0.4,
    price: Annotated[float | None, Option(help="Price of a device per hour, to report the cost.")] = None,
    dry_run: Annotated[
        bool,
        Option(
            help="Also shard the model over all ranks on this machine, without their devices, to count the values of "
            "each."
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Estimate the memory per device, FLOPs, time and cost of a run, and check that its sizes fit its ranks."""
    if device is not None:
        print(f"note: --device of plan is now called --hardware; write --hardware {device}", file=sys.stderr)
        hardware = device
    atexit.register(gc.freeze)  # skip garbage collection at the end of the process
    with without_collector(), _left_out("scipy", "wandb"):
        from pretrainkit import api

        config = api.load_config(source, settings or [])
        result = api.make_plan(
            config, num_gpus=gpus, device=hardware, gpus_per_node=gpus_per_node, mfu=mfu, price=price, dry_run=dry_run
        )
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        print("\n".join(_lines(result)))
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


def _lines(plan: Any) -> list[str]:
    lines = [
        f"{plan.num_parameters:,} parameters on {plan.num_ranks} x {plan.device}, {plan.precision}",
        f"per step: {plan.tokens_per_step:,.0f} tokens, {plan.flops_per_step:.3g} FLOPs; each rank "
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
        lines.append(f"dry run of {strategy} on {1 + max(numbers)} ranks: {shown} numbers")
    if plan.assumed is not None:
        lines.insert(0, f"assumed, because no data is given: {plan.assumed}")
    if plan.num_steps is None:
        lines.append("no time estimate: the number of steps is unknown; give data.train or num_steps")
    elif plan.seconds is None:
        lines.append(f"{plan.num_steps:,} steps; no time estimate: the peak rate of {plan.device} is unknown")
    else:
        cost = "" if plan.cost is None else f", {plan.cost:,.2f} at that price"
        hours = plan.seconds / 3600
        lines.append(f"{plan.num_steps:,} steps at an MFU of {plan.mfu:.0%}: {hours:,.2f} hours{cost}")
    return lines
