"""Tasks of fine-tuning as periodic evaluations of a pretraining, which stays what it is without them.

A copy of the model is asked, and random numbers are drawn from generators that are put back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrainkit.recipes.capabilities import StandsOnEncoder
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import recipes_able
from pretrainkit.training.watch import Evaluation

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.dist.env import World
    from pretrainkit.recipes.capabilities import TaskProbe
    from pretrainkit.training.evaluate_config import TaskProbeConfig
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.run import RunConfig


def build_probes(
    recipe: Recipe, config: RunConfig, tokenizer: Path | None, world: World, precision: Precision
) -> list[Evaluation]:
    """One for each of `evaluate.probes`.

    Args:
        recipe: Of the model that is trained.
        config: Bound.
        tokenizer: Folder of its tokenizer.
        world: The ranks.
        precision: Of the run.

    Raises:
        ConfigError, DataError: A task or its data are not there.
        InputError: The recipe has no text encoder.
    """
    if not config.evaluate.probes:
        return []
    tasks = next(iter(recipes_able(StandsOnEncoder).values()))
    folders = config.evaluate.probe_folders
    found = []
    for probe in config.evaluate.probes:
        opened = tasks.open_probe(probe, folders, recipe, config, tokenizer, world, precision)
        copy = partial(_copied, recipe, config, world)
        found.append(Evaluation(partial(_run, probe, opened, copy, world), probe.every_steps))
    return found


def _run(
    probe: TaskProbeConfig,
    opened: TaskProbe,
    copy: Callable[[nn.Module], nn.Module],
    world: World,
    model: nn.Module,
    tag: str,
) -> dict[str, float]:
    """Metrics of a copy of the model, by name; random numbers are drawn from generators that are put back."""
    from pretrainkit.dist.devices import RandomState, seed_generators
    from pretrainkit.rng import stream_key

    device = world.device
    before = RandomState(device)
    try:
        seed_generators(stream_key(0, "probe", probe.task), device)
        found = opened.run(copy(model))
    finally:
        before.restore()
    return {f"probe_{probe.task}/{name}": value for name, value in found.items()}


def _copied(recipe: Recipe, config: RunConfig, world: World, model: nn.Module) -> nn.Module:
    """A model of its own with the weights of `model`, whole on this rank's device; a collective."""
    import torch

    from pretrainkit.dist.weights import allocate, full_state_dict, load_full_state_dict

    weights = full_state_dict(model)
    with torch.device("meta"):
        copy = recipe.build_model(config)
    allocate(copy, str(world.device))
    load_full_state_dict(copy, weights)
    return copy
