"""What a run starts from: fresh models, and weights of others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pretrainkit.config.base import architecture, shown
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.capabilities import FitsWeights, StandsOnEncoder
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.kept_tokenizer import require_same_tokenizer
from pretrainkit.running.opened import existing_folder, open_model, read_model

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.training.run import RunConfig

_log = logging.getLogger(__name__)


def with_encoder(recipe: Recipe, config: RunConfig) -> RunConfig:
    """The config of a recipe that stands on an encoder, with what it is; a config that was bound before says that."""
    if not isinstance(recipe, StandsOnEncoder) or config.init_from is None or recipe.has_encoder(config):
        return config
    init, path = config.init, existing_folder(config.init_from)
    found, _, tokenizer = read_model(path, init.step, init.recipe, init.averaged)
    return recipe.with_encoder(config, found.recipe, found, tokenizer)


def require_same_state(config: RunConfig, before: Any, there: str, advice: str) -> None:
    """Refuse to go on from the state that the run with the config `before` keeps `there`, where the optimizer of
    `config` keeps another one. `advice`: what else to do than to give the same settings. Raises ConfigError."""
    if differing := config.optimizer.other_state(before.optimizer):
        told = "; ".join(f"{path}={shown(old)} there, {shown(new)} here" for path, (old, new) in differing.items())
        same = " ".join(f"{path}={shown(old)}" for path, (old, _) in differing.items())
        raise ConfigError(
            f"{there} has the state of another optimizer: {told}\n  set {same} to go on with it, {advice}"
        )


def load_initial(model: nn.Module, config: RunConfig) -> None:
    """Copy the weights of `init_from` into a fresh model, for data of the same tokenizer."""
    from pretrainkit.dist.weights import copy_beginnings
    from pretrainkit.training.initial import plan_initial

    assert config.init_from is not None
    # A run that is still training may have saved since its step was looked at.
    step = config.first_step if config.init.restore == "all" else config.init.step
    opened = open_model(config.init_from, step=step, recipe=config.init.recipe, averaged=config.init.averaged)
    recipe = find_recipe(config.recipe)
    if isinstance(recipe, StandsOnEncoder):
        recipe.load_encoder(config, model, opened.recipe.name, opened.config, opened.model)
        return
    given_config = opened.config
    found: Mapping[str, Any] = opened.model.state_dict()
    if opened.recipe.name == recipe.name and isinstance(recipe, FitsWeights):
        given_config, found = recipe.fitted_weights(config, given_config, found)
    wanted, given = (
        {name: tuple(tensor.shape) for name, tensor in state.items()} for state in (model.state_dict(), found)
    )
    architectures = architecture(config.model), architecture(given_config.model)
    plan = plan_initial(wanted, given, config.init, f"init_from={config.init_from}", architectures)
    if not config.init.grow:
        require_same_tokenizer(opened, config.init_from, config.data.train)
    copy_beginnings(model, {name: found[source] for name, source in plan.sources.items()})
    for what, names in (("stay as they were drawn", plan.drawn), ("of the checkpoint are not read", plan.ignored)):
        if names:
            _log.warning("init_from: %d tensors %s, such as %s", len(names), what, ", ".join(names[:3]))
