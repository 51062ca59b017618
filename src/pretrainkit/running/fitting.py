"""Memory of a rank by strategy, and the settings with which a step fits into the memory of a device."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import astuple, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pretrainkit.errors import InputError
from pretrainkit.training.run import RunConfig

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.training.fake_step import StepMemory

DEVICES: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "b200": ("NVIDIA B200", 180e9),
        "h200": ("NVIDIA H200", 141e9),
        "h100": ("NVIDIA H100", 80e9),
        "a100": ("NVIDIA A100", 80e9),
        "a100-40": ("NVIDIA A100", 40e9),
        "l40s": ("NVIDIA L40S", 48e9),
        "a10": ("NVIDIA A10", 24e9),
        "l4": ("NVIDIA L4", 24e9),
        "h20": ("NVIDIA H20", 96e9),
        "a40": ("NVIDIA A40", 48e9),
        "v100": ("Tesla V100-SXM2-32GB", 32e9),
        "v100-16": ("Tesla V100-SXM2-16GB", 16e9),
        "t4": ("Tesla T4", 16e9),
        "rtx5090": ("NVIDIA GeForce RTX 5090", 32e9),
        "rtx4090": ("NVIDIA GeForce RTX 4090", 24e9),
        "rtx3090": ("NVIDIA GeForce RTX 3090", 24e9),
    }
)
"""Devices by name: the name in `peak_flops`, and the bytes of memory according to the datasheet."""
MEMORY_SHARE = 0.9
"""Share of a device's memory that a plan may use; the rest is for torch, NCCL and fragmentation."""
UNFITTED: Mapping[str, Any] = MappingProxyType(
    {
        "data.microbatch_size": None,
        "data.microbatch_tokens": None,
        "parallel.strategy": "auto",
        "parallel.shard_ranks": None,
        "parallel.activation_checkpointing": False,
    }
)
"""Settings that `choose_fit` decides, by dotted path, with the values from which it starts."""
_STRATEGIES = ("ddp", "hsdp", "fsdp2")
"""Strategies, ordered by the amount of data that the ranks exchange, smallest first."""
_MAX_ADVISED_RANKS = 1024


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank in bytes, under one strategy."""

    weights: float
    gradients: float
    optimizer: float
    averages: float
    """Averaged weights (`ema_decay`)."""
    activations: float
    """Activations of one microbatch at the peak of forward and backward pass, or the peak of the update if larger."""
    gathered: float
    """Weights and gradients of other ranks that are gathered temporarily."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(astuple(self))


@dataclass(frozen=True)
class MeasuredStep:
    """Memory and work of a step, measured with one size of microbatches and computed from that for all others."""

    model: nn.Module
    memory: StepMemory
    """Memory with a microbatch of `examples`."""
    examples: int
    """Configured size of a microbatch."""
    activations_per_example: float
    """Memory of the activations of one example, in bytes."""
    flops_per_example: float
    tokens_per_example: float
    per_rank: int
    """Examples of a rank in a step."""
    num_ranks: int
    shard_ranks: int
    """Ranks that share one copy of the model under HSDP."""
    has_averages: bool
    precision: str
    """Number format of matrix products."""

    def needed(self, examples: int) -> dict[str, RankMemory]:
        """Return the memory of a rank by strategy, with microbatches of this size."""
        activations = self.memory.activations - self.activations_per_example * (self.examples - examples)
        if examples >= self.per_rank:  # with one microbatch, activations are freed while gradients are allocated
            activations = max(0, activations - self.memory.gradients)
        step = replace(self.memory, activations=int(activations))
        return memory_by_strategy(self.model, step, self.num_ranks, self.shard_ranks, self.has_averages, self.precision)

    def fitting(self, num_bytes: float) -> dict[str, int]:
        """Return the largest microbatch that fits into `num_bytes`, by strategy. A strategy is missing if not even one
        example fits."""
        fitting = dict[str, int]()
        for examples in (size for size in range(1, self.per_rank + 1) if self.per_rank % size == 0):
            for strategy, memory in self.needed(examples).items():
                if memory.total < num_bytes:
                    fitting[strategy] = examples
        return fitting

    def strategies(self, config: RunConfig) -> list[str]:
        """Return the strategies that `config` allows. HSDP within one machine is FSDP2."""
        if config.parallel.strategy != "auto":
            return [config.parallel.strategy]
        known = self.needed(1)
        is_several_machines = self.shard_ranks < self.num_ranks
        return [name for name in _STRATEGIES if name in known and (name != "hsdp" or is_several_machines)]


def memory_by_strategy(
    model: nn.Module, step: StepMemory, num_ranks: int, shard_ranks: int, has_averages: bool, precision: str
) -> dict[str, RankMemory]:
    """Return the memory of a rank under DDP, under FSDP2 over all ranks, and under HSDP, which is FSDP2 over
    `shard_ranks` with copies on the others.

    A sharded rank gathers the weights of two blocks at a time, the second in advance. It keeps those outside the blocks
    during the whole step. The gradients of one group are whole before they are scattered.
    """
    blocks = [num_values(block) for block in model.blocks()]  # type: ignore[operator]
    numbers = num_values(model)
    rest = numbers - sum(blocks)
    width = 2 if precision in ("bfloat16", "float16") else 4
    in_flight = (min(len(blocks), 2) * max(blocks, default=0) + rest) * width + 4 * max([*blocks, rest])
    averages = 4 * numbers if has_averages else 0
    temporary = max(step.activations, step.update)
    memory = {"ddp": RankMemory(step.weights, step.gradients, step.optimizer, averages, temporary, 0)}
    for name, shards in (("fsdp2", num_ranks), ("hsdp", shard_ranks)):
        if shards > 1 and num_ranks % shards == 0:
            # Autocast keeps a copy of each weight in the compute format; sharding gathers such a copy anyway.
            copies = (numbers - rest) * width if width == 2 else 0
            memory[name] = RankMemory(
                step.weights / shards,
                step.gradients / shards,
                step.optimizer / shards,
                averages / shards,
                max(temporary - copies, temporary / 2),
                in_flight,
            )
    return memory


def num_values(module: nn.Module) -> int:
    """Return the number of parameter elements."""
    return sum(parameter.numel() for parameter in module.parameters())


@dataclass(frozen=True)
class Fit:
    """Settings that were chosen to fit into the memory of a device."""

    settings: dict[str, Any]
    """Settings to change, by dotted path. Empty: the config fits as it is."""
    reasons: list[str]
    """The settings that were tried, in order, each with the reason why it does not fit; the last is the choice."""


def unfitted(config: RunConfig, kept: Container[str]) -> RunConfig:
    """Return the config with its settings in `UNFITTED` reset to the values there, except for those in `kept`."""
    return with_settings(config, {path: value for path, value in UNFITTED.items() if path not in kept})


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Return the config with these values, by path of `UNFITTED`. Recipes ignore those that they do not have."""
    for path, value in settings.items():
        part, name = path.split(".")
        if name in type(getattr(config, part)).model_fields:
            config = config.changed(**{part: {name: value}})
    return config


def changed_settings(before: RunConfig, after: RunConfig) -> dict[str, Any]:
    """Return the settings of `UNFITTED` that differ between two configs, with the values of `after`."""
    changes = dict[str, Any]()
    for path in UNFITTED:
        part, name = path.split(".")
        old, new = (getattr(getattr(config, part), name, None) for config in (before, after))
        if old != new and {old, new} != {"auto", "ddp"}:  # these two are the same
            changes[path] = new
    return changes


def choose_fit(
    config: RunConfig,
    kept: Container[str],
    measured: Callable[[bool], MeasuredStep],
    num_bytes: float,
    gpus_per_node: int,
) -> tuple[RunConfig, MeasuredStep, list[str]]:
    """Return `config`, which is `unfitted`, with settings that fit into `num_bytes` and change the run least: first
    smaller microbatches, then sharding, then activation checkpointing. Also return its step, and the reasons.

    Args:
        kept: Dotted paths of settings that stay as they are.
        measured: Function that measures the step with activation checkpointing or without.
        gpus_per_node: Devices of a machine; only for advice.

    Raises:
        InputError: Nothing fits. The message says how much memory is missing, and what would fit.
    """
    size, own = config.data.microbatch_size, config.parallel.activation_checkpointing
    reasons, least = list[str](), list[tuple[float, str]]()
    for recomputes in (own,) if "parallel.activation_checkpointing" in kept else (False, True):
        step = measured(recomputes)
        fitting = step.fitting(num_bytes)
        for strategy in step.strategies(config):
            name = f"{strategy} and activation checkpointing" if recomputes else strategy
            if (most := fitting.get(strategy, 0)) >= (size or 1):
                examples = min(size or most, step.per_rank)
                slower = "; a step takes up to a third longer than planned" if recomputes else ""
                reasons.append(f"{name}: {_choice(step, strategy, examples)}{slower}")
                microbatch = size if examples == step.per_rank else examples
                parallel = {"strategy": strategy, "activation_checkpointing": recomputes}
                return config.changed(data={"microbatch_size": microbatch}, parallel=parallel), step, reasons
            needed = step.needed(size or 1)[strategy].total
            reasons.append(f"{name}: {_need(size or 1, needed)}")
            least.append((needed, name))
    needed, name = min(least)
    remedies = [
        *_larger_devices(needed),
        *_more_devices(config, step, num_bytes, gpus_per_node),
        *_fewer_settings(config, kept, measured, num_bytes, gpus_per_node),
    ]
    advice = "\n  ".join(remedies) or "use a smaller model or shorter examples"
    raise InputError(
        f"nothing fits into {gib(num_bytes)}: with {name}, {_need(size or 1, needed)}, so "
        f"{gib(needed - num_bytes)} are missing\n"
        f"  {advice}"
    )


def _larger_devices(needed: float) -> list[str]:
    fitting = [(num_bytes, name) for name, (_, num_bytes) in DEVICES.items() if MEMORY_SHARE * num_bytes > needed]
    return [f"use larger devices: --hardware {min(fitting)[1]}"] if fitting else []


def _more_devices(config: RunConfig, step: MeasuredStep, num_bytes: float, gpus_per_node: int) -> list[str]:
    """Return the advice to use more devices: the smallest number, on whole machines, with which something fits."""
    size = config.data.microbatch_size or 1
    for number in range(step.num_ranks + 1, _MAX_ADVISED_RANKS + 1):
        is_whole = number <= gpus_per_node or number % gpus_per_node == 0
        if is_whole and config.data.batch_size % (number * size) == 0:
            shards = config.parallel.shard_ranks or min(number, gpus_per_node)
            per_rank = config.data.batch_size // number
            needed = replace(step, per_rank=per_rank, num_ranks=number, shard_ranks=shards).needed(size)
            strategies = needed if config.parallel.strategy == "auto" else {config.parallel.strategy} & needed.keys()
            if any(needed[name].total < num_bytes for name in strategies):
                return [f"use more devices: --gpus {number}"]
    return []


def _fewer_settings(
    config: RunConfig,
    kept: Container[str],
    measured: Callable[[bool], MeasuredStep],
    num_bytes: float,
    gpus_per_node: int,
) -> list[str]:
    """Return the advice to leave out settings, if something fits without them."""
    recomputes = config.parallel.activation_checkpointing
    is_set = {
        "data.microbatch_size": config.data.microbatch_size is not None,
        "parallel.strategy": config.parallel.strategy != "auto",
        "parallel.activation_checkpointing": "parallel.activation_checkpointing" in kept and not recomputes,
    }
    names = [path for path in is_set if is_set[path]]
    if not names:
        return []
    try:
        choose_fit(unfitted(config, ()), (), measured, num_bytes, gpus_per_node)
    except InputError:
        return []
    return [f"leave out {' and '.join(names)}, so that --fit chooses"]


def _choice(step: MeasuredStep, strategy: str, examples: int) -> str:
    needed, whole = (step.needed(size)[strategy].total for size in (examples, step.per_rank))
    if examples == step.per_rank:
        return f"all {_need(examples, needed)}" if examples > 1 else _need(examples, needed)
    return (
        f"microbatches of {_need(examples, needed)}; all {step.per_rank:,} examples of a rank would need {gib(whole)}"
    )


def _need(examples: int, num_bytes: float) -> str:
    return f"{'one example needs' if examples == 1 else f'{examples:,} examples need'} {gib(num_bytes)}"


def gib(num_bytes: float) -> str:
    """Format bytes in GiB."""
    return f"{num_bytes / 2**30:,.1f} GiB"
