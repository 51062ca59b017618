"""The loader of a run, and how many steps its data make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.configs import check_config, resolve_config
from pretrainkit.running.initial import require_same_state
from pretrainkit.running.opened import checkpoint_of
from pretrainkit.training.checkpoints.files import read_checkpoint
from pretrainkit.training.run import RunConfig

if TYPE_CHECKING:
    from pretrainkit.data.loader import Loader
    from pretrainkit.data.source import BatchSource


def build_loader(config: RunConfig, source: BatchSource, *, rank: int, world_size: int) -> Loader:
    """The loader of one rank. Raises DataError when the data cannot fill the run."""
    from pretrainkit.data.loader import Loader

    data = config.data
    workers, num_workers = data.loader_workers
    order = find_recipe(config.recipe).build_order(config, source)
    loader = Loader(
        source,
        order,
        batch_size=data.batch_size,
        rank=rank,
        world_size=world_size,
        microbatch_size=data.microbatch_size,
        microbatch_tokens=config.token_budget,
        prefetch=data.prefetch,
        workers=workers,
        num_workers=num_workers,
        first_step=config.first_step if config.init.data == "start" else 0,
    )
    epochs = loader.epochs_for(max(0, (config.num_steps or 0) - loader.first_step))
    if data.num_epochs is not None and epochs > data.num_epochs:
        raise ConfigError(
            f"{config.num_steps} steps of {data.batch_size} examples are {epochs:.2f} passes over {sum(source.sizes)} "
            f"examples, more than data.num_epochs={data.num_epochs}\n"
            f"  set num_steps={loader.first_step + loader.num_steps_for(data.num_epochs)} or more data"
        )
    return loader


def with_num_steps(config: RunConfig, loader: Loader) -> RunConfig:
    """The config with lengths in steps where it gives them in passes over the data."""
    if config.num_steps is None:
        assert config.data.num_epochs is not None  # one of the two is given
        num_steps = loader.first_step + max(1, loader.num_steps_for(config.data.num_epochs))
        config = config.changed(num_steps=num_steps)
    if config.evaluate.every_epochs is not None:
        every_steps = max(1, loader.num_steps_for(config.evaluate.every_epochs))
        config = config.changed(evaluate={"every_steps": every_steps, "every_epochs": None})
    check_config(config, loader.world_size)
    return config


def with_first_step(config: RunConfig) -> RunConfig:
    """The config with the step that it goes on from, where it takes over the whole state of another run."""
    if config.init_from is None or config.init.restore != "all":
        return config
    run, checkpoint = checkpoint_of(Path(config.init_from), config.init.step)
    before, advice = resolve_config(run.config_tree()).config, "or init.restore=weights to start with its weights alone"
    require_same_state(config, before, f"init_from={config.init_from}", advice)
    step = read_checkpoint(checkpoint).step
    if config.first_step not in (0, step):
        raise ConfigError(
            f"first_step={config.first_step}, but init.restore=all goes on at step {step} of {config.init_from}\n"
            "  leave first_step out, or choose another checkpoint with init.step"
        )
    return config.changed(first_step=step)


def with_extra_steps(config: RunConfig) -> RunConfig:
    """The config with num_steps where it gives the updates of this run alone."""
    if config.num_extra_steps is None:
        return config
    return config.changed(num_steps=config.first_step + config.num_extra_steps, num_extra_steps=None)
