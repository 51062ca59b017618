"""Microbatches that fit into the memory of a device: found before the first step, or named after a step that did not
fit."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from pretrainkit.errors import ConfigError
from pretrainkit.running.plan import make_plan, planned_as
from pretrainkit.training.checkpoints.files import step_folders
from pretrainkit.training.run import RunConfig

if TYPE_CHECKING:
    from pretrainkit.dist.env import World
    from pretrainkit.training.folder import RunFolder


def with_fitting_microbatch(config: RunConfig, world: World) -> RunConfig:
    """The config with `data.microbatch_size` set as `parallel.fit` asks for. Raises ConfigError where the memory of
    this device is not known, or not one example fits."""
    if config.parallel.fit == "off":
        return config
    from pretrainkit.dist.devices import rank_memory

    num_bytes = rank_memory(world.device, world.local_world_size)
    if num_bytes is None:
        raise ConfigError(
            f"parallel.fit=auto, but the memory of {world.device} is not known\n"
            "  say yourself how many examples fit: parallel.fit=off data.microbatch_size=8"
        )
    found = world.gather_objects(_most(config, world, num_bytes))  # devices may differ
    most = min(0 if one is None else one for one in found)
    if not most:
        raise ConfigError(
            f"not one example fits into the {num_bytes / 2**30:.1f} GiB of {world.device}\n"
            "  set parallel.activation_checkpointing=true, or take more devices with parallel.strategy=fsdp2"
        )
    return config if most >= _examples(config, world) else config.changed(data={"microbatch_size": most})


def out_of_memory(config: RunConfig, folder: RunFolder, world: World, step: int) -> str:
    """What to tell of a step that needed more memory than there is."""
    from pretrainkit.dist.devices import rank_memory

    num_bytes, given = rank_memory(world.device, world.local_world_size), _examples(config, world)
    per_rank = config.data.batch_size // world.world_size
    most = None if num_bytes is None else _most(config, world, num_bytes)
    if most is None or most >= given:  # there is no estimate, or it is wrong
        most = max(size for size in range(1, max(1, given // 2) + 1) if per_rank % size == 0)
    change = f"data.microbatch_size={most}" if most < given else "parallel.activation_checkpointing=true"
    path = quote(str(folder.path))
    has_saved = bool(step_folders(folder.checkpoints))
    command = f"resume {path} {change}" if has_saved else f"train {path}/config.yaml {change} --out FOLDER"
    size = "" if num_bytes is None else f", which has {num_bytes / 2**30:.1f} GiB"
    return (
        f"out of memory on {world.device}{size}: step {step} with {given} examples in a microbatch\n"
        f"  the same updates in less memory: pretrainkit {command}"
    )


def _examples(config: RunConfig, world: World) -> int:
    """In a microbatch."""
    per_rank = config.data.batch_size // world.world_size
    return min(config.data.microbatch_size or per_rank, per_rank)


def _most(config: RunConfig, world: World, num_bytes: int) -> int | None:
    """The largest microbatch that fits into so many bytes; None: not one example does."""
    config = config.changed(parallel={"fit": "off"})
    plan = make_plan(
        config, num_gpus=world.world_size, device=planned_as(world.device), dry_run=False, device_bytes=num_bytes
    )
    return plan.fitting.get("ddp" if config.parallel.strategy == "auto" else config.parallel.strategy)
