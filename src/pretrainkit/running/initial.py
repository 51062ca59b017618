"""Start of a run: its loader, first step and number of steps; fresh models, and initial weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrainkit.config.base import architecture, shown
from pretrainkit.errors import CheckpointError, ConfigError
from pretrainkit.recipes.capabilities import BuildsOnEncoder, FitsWeights
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.configs import check_config, resolve_config
from pretrainkit.running.kept_tokenizer import require_same_tokenizer
from pretrainkit.running.opened import ReadModel, checkpoint_of, existing_folder, read_model
from pretrainkit.training.checkpoints.files import read_checkpoint
from pretrainkit.training.run import RunConfig

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.loader import Loader
    from pretrainkit.data.source import BatchSource

_log = logging.getLogger(__name__)


def build_loader(config: RunConfig, source: BatchSource, *, rank: int, world_size: int) -> Loader:
    """Return the loader of one rank. Raises DataError if a batch needs more examples than there are, and ConfigError if
    the run has more steps than data.num_epochs allows."""
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
            f"  set num_steps={loader.first_step + loader.num_steps_for(data.num_epochs)}, or use more data"
        )
    return loader


def with_num_steps(config: RunConfig, loader: Loader) -> RunConfig:
    """Return the config with lengths in steps instead of passes over the data."""
    if config.num_steps is None:
        assert config.data.num_epochs is not None  # one of the two is set
        num_steps = loader.first_step + max(1, loader.num_steps_for(config.data.num_epochs))
        config = config.changed(num_steps=num_steps)
    if config.evaluate.every_epochs is not None:
        every_steps = max(1, loader.num_steps_for(config.evaluate.every_epochs))
        config = config.changed(evaluate={"every_steps": every_steps, "every_epochs": None})
    check_config(config, loader.world_size)
    return config


def with_first_step(config: RunConfig) -> RunConfig:
    """Return the config with the first step of a run that continues from the whole state of another run."""
    if config.init_from is None or config.init.restore != "all":
        return config
    run, checkpoint = checkpoint_of(Path(config.init_from), config.init.step)
    before, advice = resolve_config(run.config_tree()).config, "or init.restore=weights to load only its weights"
    require_same_state(config, before, f"init_from={config.init_from}", advice)
    step = read_checkpoint(checkpoint).step
    if config.first_step not in (0, step):
        raise ConfigError(
            f"first_step={config.first_step}, but init.restore=all continues at step {step} of {config.init_from}\n"
            "  leave first_step out, or choose another checkpoint with init.step"
        )
    return config.changed(first_step=step)


def with_extra_steps(config: RunConfig) -> RunConfig:
    """Return the config with num_steps computed from the updates of this run alone, if num_extra_steps is set."""
    if config.num_extra_steps is None:
        return config
    return config.changed(num_steps=config.first_step + config.num_extra_steps, num_extra_steps=None)


def with_encoder(recipe: Recipe, config: RunConfig) -> tuple[RunConfig, ReadModel | None]:
    """Return the config with its pretrained encoder, if its recipe needs one, and the model that was read for that. A
    config that was bound before has it."""
    if not isinstance(recipe, BuildsOnEncoder) or config.init_from is None or recipe.has_encoder(config):
        return config, None
    read = _read_initial(config)
    return recipe.with_encoder(config, read.config.recipe, read.config, read.tokenizer), read


def _read_initial(config: RunConfig) -> ReadModel:
    init = config.init
    # A run that is still training may have saved again since its step was read.
    step = (config.first_step if init.restore == "all" else None) or init.step
    assert config.init_from is not None
    return read_model(existing_folder(config.init_from), step, init.recipe, init.averaged)


def require_same_state(config: RunConfig, before: Any, there: str, advice: str) -> None:
    """Raise ConfigError if the optimizer of `config` cannot use the optimizer state of the run with the config
    `before`.

    `there` names the place of that state in the message; `advice` is an alternative to using the same settings."""
    if differing := config.optimizer.other_state(before.optimizer):
        differences = "; ".join(
            f"{path}={shown(old)} there, {shown(new)} here" for path, (old, new) in differing.items()
        )
        same = " ".join(f"{path}={shown(old)}" for path, (old, _) in differing.items())
        raise ConfigError(
            f"{there} has the state of another optimizer: {differences}\n  set {same} to continue with it, {advice}"
        )


def load_initial(model: nn.Module, config: RunConfig, read: ReadModel | None = None) -> None:
    """Copy the weights of `init_from` into a fresh model. The training data must have the same tokenizer. `read` is the
    model there, if `with_encoder` has read it."""
    from pretrainkit.dist.weights import copy_beginnings
    from pretrainkit.training.initial import plan_initial

    assert config.init_from is not None
    opened = (read or _read_initial(config)).opened(config.init_from)
    recipe = find_recipe(config.recipe)
    if isinstance(recipe, BuildsOnEncoder):
        recipe.load_encoder(config, model, opened.recipe.name, opened.config, opened.model)
        return
    is_classifier = isinstance(opened.recipe, BuildsOnEncoder) and (Path(config.init_from) / "config.json").is_file()
    if is_classifier and config.init.recipe is None and not config.init.rename:
        raise CheckpointError(
            f"init_from={config.init_from} is a classifier (recipe {opened.recipe.name!r}), and recipe {recipe.name!r} "
            f"is trained\n  set init.recipe to {recipe.name} to read only its encoder"
        )
    given_config = opened.config
    weights: Mapping[str, Any] = opened.model.state_dict()
    if opened.recipe.name == recipe.name and isinstance(recipe, FitsWeights):
        given_config, weights = recipe.fitted_weights(config, given_config, weights)
    expected, available = (
        {name: tuple(tensor.shape) for name, tensor in state.items()} for state in (model.state_dict(), weights)
    )
    architectures = architecture(config.model), architecture(given_config.model)
    plan = plan_initial(expected, available, config.init, f"init_from={config.init_from}", architectures)
    if not config.init.grow:
        require_same_tokenizer(opened, config.init_from, config.data.train)
    copy_beginnings(model, {name: weights[source] for name, source in plan.sources.items()})
    for effect, names in (("keep their random values", plan.drawn), ("of the checkpoint are not used", plan.ignored)):
        if names:
            _log.warning("init_from: %d tensors %s, such as %s", len(names), effect, ", ".join(names[:3]))
