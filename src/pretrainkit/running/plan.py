"""Resources of a run before it starts: memory per rank, FLOPs, time, cost, and a test of its parallel layout.

Also the settings that fit into the memory of a device: chosen by `pretrainkit plan --fit`, computed before the first
step, or suggested after a step that did not fit.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from shlex import quote
from typing import TYPE_CHECKING, Any

from pretrainkit.config.paths import absolute_paths
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.recipes.capabilities import BuildsOnEncoder, PlansWithoutData
from pretrainkit.recipes.registry import able, find_recipe
from pretrainkit.running.fitting import (
    DEVICES,
    MEMORY_SHARE,
    Fit,
    MeasuredStep,
    RankMemory,
    changed_settings,
    choose_fit,
    num_values,
    unfitted,
)
from pretrainkit.running.initial import build_loader, with_encoder, with_extra_steps, with_num_steps
from pretrainkit.running.loading import Loading, measure_loading
from pretrainkit.training.checkpoints.files import step_folders
from pretrainkit.training.run import ParallelConfig, RunConfig
from pretrainkit.workers.processes import without_collector

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.source import BatchSource
    from pretrainkit.dist.env import World
    from pretrainkit.recipes.recipe import Recipe
    from pretrainkit.training.fake_step import StepMemory
    from pretrainkit.training.folder import RunFolder
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.optimizers.config import OptimizerConfig

_MEASURED_EXAMPLES = (4, 8)
"""Sizes of the measured microbatches. Activations of larger ones are extrapolated linearly."""
_ASSUMED_EXAMPLES = (1, 2)
"""Sizes of the measured microbatches if all examples are assumed to be equally long."""
_MAX_DRY_RANKS = 1024
_STRATEGIES = ("ddp", "fsdp2", "hsdp")


@dataclass(frozen=True)
class Plan:
    """Estimate of the resources of a run on a number of devices."""

    num_parameters: int
    num_ranks: int
    device: str
    precision: str
    examples_per_microbatch: int
    microbatches_per_step: int
    """Number of microbatches of each rank."""
    memory: dict[str, RankMemory]
    """Memory by strategy: ddp, fsdp2, hsdp."""
    device_bytes: float | None
    fitting: dict[str, int]
    """Largest divisor of a rank's batch, in examples, that fits into the device as a microbatch, by strategy. A
    strategy is missing if not even one example fits. Empty without `device_bytes`."""
    flops_per_step: float
    """FLOPs of all ranks in forward and backward pass, real tokens only; 0 if the recipe does not count them."""
    tokens_per_step: float
    num_steps: int | None
    """Number of steps; None if it depends on data that is not given."""
    mfu: float
    step_seconds: float | None
    """Duration of a step at that MFU; None if the peak rate or the FLOPs are unknown."""
    seconds: float | None
    """Duration of the whole run at that MFU; None if that of a step or the number of steps is unknown."""
    cost: float | None
    """Cost in the unit of the price; None without a price or a duration."""
    problems: list[str]
    """Messages about settings that cannot work on this number of ranks, such as sizes that do not divide."""
    assumed: str | None = None
    """Description of the assumed examples; None: real examples of data.train were measured."""
    numbers_on_rank: dict[str, dict[int, int]] = field(default_factory=dict)
    """Result of the dry run: number of parameter elements that a rank keeps, by strategy and rank."""
    fit: Fit | None = None
    """Settings that were chosen to fit; None: `fit` was not requested. The rest of the plan uses them."""
    loading: Loading | None = None
    """Measured speed of the data loading; None: it was not measured."""

    @property
    def usable_bytes(self) -> float:
        """Memory of a device that the run may use; infinite if it is unknown."""
        return math.inf if self.device_bytes is None else MEMORY_SHARE * self.device_bytes

    def fits(self, strategy: str) -> bool:
        """True if the configured microbatches fit into the device."""
        return self.fitting.get(strategy, 0) >= self.examples_per_microbatch


def make_plan(
    config: RunConfig,
    *,
    num_gpus: int = 1,
    device: str = "h200",
    gpus_per_node: int = 8,
    mfu: float = 0.4,
    price: float | None = None,
    dry_run: bool = True,
    device_bytes: float | None = None,
    fit: bool = False,
    kept: Container[str] = (),
    loading: bool = False,
) -> Plan:
    """Estimate the resources of a run without its devices. Imports torch, but never allocates memory for the model's
    parameters. The first examples of its data are read; without data, examples as long as the settings allow are
    assumed.

    Args:
        num_gpus: Number of devices, one per rank.
        device: One of `DEVICES`, or cpu, which is this machine.
        gpus_per_node: Devices of a machine, over which HSDP shards unless `parallel.shard_ranks` is set.
        mfu: Share of the datasheet's rate that the run is expected to reach, in (0, 1].
        price: Price of one device for an hour, in any unit.
        dry_run: Also distribute the model over the ranks.
        device_bytes: Memory of a device; None: according to its datasheet.
        fit: Choose microbatch, strategy and activation checkpointing so that the run fits, and plan that run.
        kept: Dotted paths of settings that `fit` must not change.
        loading: Also measure the speed of the data loading on this machine, for about two seconds.

    Raises:
        InputError: An unknown device, an impossible number, or no settings that fit.
        ConfigError: There is no data, and the recipe cannot plan without it; or `fit` cannot correct the settings.
    """
    import torch

    from pretrainkit.dist.devices import rank_memory
    from pretrainkit.dist.env import World
    from pretrainkit.dist.parallelize import parallelize
    from pretrainkit.training.fake_step import faked
    from pretrainkit.training.throughput import peak_flops

    if device != "cpu" and device not in DEVICES:
        raise InputError(f"unknown hardware: --hardware {device}\n  choose one of: cpu, {', '.join(DEVICES)}")
    if num_gpus < 1 or not 0 < mfu <= 1:
        raise InputError(
            f"{num_gpus} devices with an MFU of {mfu} are impossible\n  use at least 1 device, and an MFU in (0, 1]"
        )
    if price is not None and not 0 <= price < math.inf:
        raise InputError(f"invalid price {price}\n  set the price of one device for an hour: --price 3.5")
    recipe, given = find_recipe(config.recipe), config
    if fit:
        config = unfitted(config, kept)
        if config.token_budget is not None:
            raise InputError(
                "--fit and data.microbatch_tokens both define the size of a microbatch\n"
                "  leave out --fit or data.microbatch_tokens"
            )
        if config.parallel.is_sharded and num_gpus == 1:
            raise InputError(
                f"parallel.strategy={config.parallel.strategy} needs more than one device\n"
                "  leave parallel.strategy out, or plan for several devices: --gpus 2"
            )
    shards = config.parallel.shard_ranks or min(num_gpus, gpus_per_node)
    config = with_encoder(recipe, with_extra_steps(absolute_paths(config)))[0]
    problems, assumed, speed = config.problems(num_gpus), None, None
    source: BatchSource | None = None
    if config.has_training_data and not (isinstance(recipe, BuildsOnEncoder) and not recipe.has_encoder(config)):
        config = recipe.bind(config)
        source = recipe.open_data(config, "train")
        loader = build_loader(config, source, rank=0, world_size=1)
        config = with_num_steps(config, loader)
        if loading:
            speed = measure_loading(config, loader, recipe.build_objective(config))
    else:
        config, assumed = able(recipe, PlansWithoutData).without_data(config)
        problems = config.problems(num_gpus)  # the assumed values cause no problems
    if config.parallel.strategy == "hsdp" and num_gpus % shards and config.parallel.shard_ranks is None:
        problems.append(
            f"{num_gpus} devices are not a whole number of machines with {gpus_per_node} devices each\n"
            "  change --gpus or --gpus-per-node, or set parallel.shard_ranks to a divisor of --gpus"
        )
    if fit and problems:
        raise ConfigError(problems)

    def build() -> nn.Module:
        with torch.device("meta"):
            return recipe.build_model(config)

    @cache
    def measured(recomputes: bool) -> MeasuredStep:
        alone = config.parallel.changed(strategy="ddp", compile="off", activation_checkpointing=recomputes)
        model = parallelize(faked(build()), alone, World(), torch.float32)  # applies activation checkpointing
        whole = config.changed(data={"microbatch_size": None}) if fit else config
        return _measure(recipe, whole, model, source, num_gpus, shards, device)

    name, known_bytes = DEVICES.get(device, (device, None))
    device_bytes = device_bytes or known_bytes or rank_memory(torch.device("cpu"), num_gpus)
    num_bytes, chosen = None if device_bytes is None else MEMORY_SHARE * device_bytes, None
    if not fit:
        step = measured(config.parallel.activation_checkpointing)
    elif num_bytes is None:
        raise InputError("the memory of this machine is unknown\n  plan for a known device: --fit --hardware h200")
    else:
        config, step, reasons = choose_fit(config, kept, measured, num_bytes, gpus_per_node)
        chosen = Fit(changed_settings(given, config), reasons)
    fitting = {} if num_bytes is None else step.fitting(num_bytes)
    examples = min(config.data.microbatch_size or step.per_rank, step.per_rank)
    if config.parallel.fit == "auto":
        examples = min(examples, fitting.get(_strategy(config), examples))
    uses_tf32 = step.precision == "float32" and config.precision.matmul_tf32
    peak = (peak_flops(name, "tf32") if uses_tf32 else None) or peak_flops(name, step.precision)
    flops_per_step = step.flops_per_example * config.data.batch_size
    step_seconds = flops_per_step / (num_gpus * peak * mfu) if peak is not None and flops_per_step else None
    seconds = None if step_seconds is None or config.num_steps is None else config.num_steps * step_seconds
    if speed is not None and source is not None and step_seconds is not None:
        needed = config.data.batch_size / num_gpus / step_seconds
        speed = speed.compared(config, source, needed, min(num_gpus, gpus_per_node))
    laid_out: dict[str, dict[int, int]] = {}
    if dry_run:
        strategies = _STRATEGIES if chosen is None else (_strategy(config),)
        laid_out = _laid_out(build if num_gpus > 1 else lambda: step.model, num_gpus, shards, strategies)
    return Plan(
        num_parameters=num_values(step.model),
        num_ranks=num_gpus,
        device=name,
        precision=step.precision,
        examples_per_microbatch=examples,
        microbatches_per_step=-(-step.per_rank // examples),
        memory=step.needed(examples),
        device_bytes=device_bytes,
        fitting=fitting,
        flops_per_step=flops_per_step,
        tokens_per_step=step.tokens_per_example * config.data.batch_size,
        num_steps=config.num_steps,
        mfu=mfu,
        step_seconds=step_seconds,
        seconds=seconds,
        cost=None if seconds is None or price is None else price * num_gpus * seconds / 3600,
        problems=problems,
        assumed=assumed,
        numbers_on_rank=laid_out,
        fit=chosen,
        loading=speed,
    )


def _measure(
    recipe: Recipe[Any],
    config: RunConfig,
    model: nn.Module,
    source: BatchSource | None,
    num_ranks: int,
    shard_ranks: int,
    device: str,
) -> MeasuredStep:
    """Measure a step of `config` with two small microbatches of different sizes, or with its own if that is small.
    `source` has its examples; None: they are assumed."""
    per_rank = max(1, config.data.batch_size // num_ranks)
    per_microbatch = min(config.data.microbatch_size or per_rank, per_rank)
    sizes: Sequence[int] = _ASSUMED_EXAMPLES if source is None else _MEASURED_EXAMPLES
    sizes = sizes if per_microbatch > sizes[-1] else (per_microbatch,)
    batches = [host_batch_of(recipe, config, size, source) for size in sizes]
    objective = recipe.build_objective(config)
    costs = [objective.cost(batch) for batch in batches]
    memories = []
    with without_collector():  # collecting tens of thousands of fake tensors would take a fifth of the time
        for number, (size, batch) in enumerate(zip(sizes, batches)):
            optimizer = None if number else config.optimizer  # its memory does not depend on the batch
            memories.append(_memory(recipe, with_batch_size(config, size), model, batch, device, optimizer))
    examples = sum(cost.examples for cost in costs)
    flops, tokens = (sum(getattr(cost, name) for cost in costs) / max(1, examples) for name in ("flops", "tokens"))
    memory, cost = memories[0], costs[-1]
    per_example = memory.activations / sizes[0]
    if len(memories) == 2:
        slots = cost.slots * per_microbatch / sizes[-1]
        # Activations are proportional to slots: extrapolate linearly from two small microbatches.
        slope = (memories[1].activations - memory.activations) / max(1, cost.slots - costs[0].slots)
        memory = replace(memory, activations=int(memory.activations + slope * (slots - costs[0].slots)))
        per_example = slope * cost.slots / sizes[-1]
    return MeasuredStep(
        model=model,
        memory=memory,
        examples=per_microbatch,
        activations_per_example=per_example,
        flops_per_example=flops,
        tokens_per_example=tokens,
        per_rank=per_rank,
        num_ranks=num_ranks,
        shard_ranks=shard_ranks,
        has_averages=config.ema_decay is not None,
        precision=config.precision.compute if device == "cpu" else _compute_format(config, device),
    )


def with_batch_size(config: RunConfig, num_examples: int) -> RunConfig:
    """Return the config with `num_examples` examples in its only microbatch."""
    data = {"batch_size": num_examples, "microbatch_size": None}
    if "microbatch_tokens" in type(config.data).model_fields:
        data["microbatch_tokens"] = None
    return config.changed(data=data)


def host_batch_of(recipe: Recipe[Any], config: RunConfig, num_examples: int, source: BatchSource | None) -> HostBatch:
    """Return the first `num_examples` of a source, or assumed examples without one."""
    small = with_batch_size(config, num_examples)
    if source is None:
        return able(recipe, PlansWithoutData).assumed_batch(small, num_examples)
    if config.token_budget is not None:  # the source pads microbatches to it
        source = recipe.open_data(small, "train")
    loader = build_loader(small.changed(num_steps=1), source, rank=0, world_size=1)
    _, (host_batch, *_), _ = next(iter(loader.iterate(loader.first_step, loader.first_step + 1)))
    return host_batch


def _memory(
    recipe: Recipe[Any],
    config: RunConfig,
    model: nn.Module,
    host_batch: HostBatch,
    device: str,
    optimizer: OptimizerConfig | None,
) -> StepMemory:
    import torch

    from pretrainkit.training.fake_step import step_memory
    from pretrainkit.training.precision import Precision, resolve_precision

    here = torch.device("cpu")
    if device == "cpu":
        precision = resolve_precision(config.precision, here)
    else:  # use the number format of the device; the computation stays on the host
        compute = _compute_format(config, device)
        residual = config.precision.residual
        is_narrow = residual == "compute" or (residual == "auto" and compute == "bfloat16")
        precision = Precision(here, getattr(torch, compute), False, None, has_narrow_residual=is_narrow)
    card = None if device == "cpu" else (8, 0) if precision.compute_dtype is torch.bfloat16 else (7, 0)
    batch = {name: torch.from_numpy(array) for name, array in host_batch.items()}
    for parameter in model.parameters():  # a second microbatch starts with gradients
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    memory = step_memory(model, recipe.build_objective(config), [batch], optimizer, precision, card)
    return replace(memory, activations=memory.activations + memory.gradients)


def _compute_format(config: RunConfig, device: str) -> str:
    """Return the number format of matrix products on a GPU of `DEVICES`. Raises ConfigError if it lacks the format."""
    from pretrainkit.training.throughput import peak_flops

    name, compute = DEVICES[device][0], config.precision.compute
    has_bfloat16 = peak_flops(name, "bfloat16") is not None
    if compute == "bfloat16" and not has_bfloat16:
        raise ConfigError(
            f"precision.compute=bfloat16: {name} does not support this format\n"
            "  use precision.compute=float16 or float32"
        )
    return ("bfloat16" if has_bfloat16 else "float32") if compute == "auto" else compute


def _laid_out(build: Any, num_ranks: int, shard_ranks: int, strategies: Sequence[str]) -> dict[str, dict[int, int]]:
    from pretrainkit.training.fake_step import numbers_per_rank

    ranks = min(num_ranks, _MAX_DRY_RANKS)
    layouts = [ParallelConfig(strategy="ddp", compile="off")]
    if ranks > 1:
        layouts.append(ParallelConfig(strategy="fsdp2", compile="off"))
    if 1 < shard_ranks < ranks and ranks % shard_ranks == 0:
        layouts.append(ParallelConfig(strategy="hsdp", shard_ranks=shard_ranks, compile="off"))
    return {
        layout.strategy: numbers_per_rank(build, layout, ranks) for layout in layouts if layout.strategy in strategies
    }


def _strategy(config: RunConfig) -> str:
    return "ddp" if config.parallel.strategy == "auto" else config.parallel.strategy


def with_fitting_microbatch(config: RunConfig, world: World) -> RunConfig:
    """Return the config with `data.microbatch_size` set according to `parallel.fit`. Raises ConfigError if the memory
    of this device is unknown, or not even one example fits."""
    if config.parallel.fit == "off":
        return config
    from pretrainkit.dist.devices import rank_memory

    num_bytes = rank_memory(world.device, world.local_world_size)
    if num_bytes is None:
        raise ConfigError(
            f"parallel.fit=auto, but the memory of {world.device} is unknown\n"
            "  set a size of microbatches that fits: parallel.fit=off data.microbatch_size=8"
        )
    sizes = world.gather_objects(_most(config, world, num_bytes))  # devices may differ
    most = min(0 if size is None else size for size in sizes)
    if not most:
        raise ConfigError(
            f"not even one example fits into the {num_bytes / 2**30:.1f} GiB of {world.device}\n"
            "  set parallel.activation_checkpointing=true, or use more devices with parallel.strategy=fsdp2"
        )
    return config if most >= _examples(config, world) else config.changed(data={"microbatch_size": most})


def out_of_memory(config: RunConfig, folder: RunFolder, world: World, step: int) -> str:
    """Return the message for a step that needed more memory than there is."""
    from pretrainkit.dist.devices import rank_memory

    num_bytes, examples = rank_memory(world.device, world.local_world_size), _examples(config, world)
    per_rank = config.data.batch_size // world.world_size
    most = None if num_bytes is None else _most(config, world, num_bytes)
    if most is None or most >= examples:  # there is no estimate, or it is wrong
        most = max(size for size in range(1, max(1, examples // 2) + 1) if per_rank % size == 0)
    change = f"data.microbatch_size={most}" if most < examples else "parallel.activation_checkpointing=true"
    path = quote(str(folder.path))
    has_saved = bool(step_folders(folder.checkpoints))
    command = f"resume {path} {change}" if has_saved else f"train {path}/config.yaml {change} --out FOLDER"
    size = "" if num_bytes is None else f", which has {num_bytes / 2**30:.1f} GiB"
    return (
        f"out of memory on {world.device}{size}: step {step} with {examples} examples in a microbatch\n"
        f"  to make the same updates with less memory: pretrainkit {command}"
    )


def _examples(config: RunConfig, world: World) -> int:
    """Return the number of examples in a microbatch."""
    per_rank = config.data.batch_size // world.world_size
    return min(config.data.microbatch_size or per_rank, per_rank)


def _most(config: RunConfig, world: World, num_bytes: int) -> int | None:
    """Return the largest microbatch that fits into `num_bytes`; None if not even one example does."""
    config = config.changed(parallel={"fit": "off"})
    device = "cpu" if world.device.type == "cpu" else "h200"  # determines the number formats of the plan
    plan = make_plan(config, num_gpus=world.world_size, device=device, dry_run=False, device_bytes=num_bytes)
    return plan.fitting.get(_strategy(config))
