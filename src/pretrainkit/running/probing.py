"""Tasks of fine-tuning as periodic evaluations of a pretraining, which stays what it is without them.

A copy of the model is asked, and random numbers are drawn from generators that are put back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrainkit.recipes.capabilities import StandsOnEncoder
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import first_able
from pretrainkit.running.opened import empty_model
from pretrainkit.training.watch import Evaluation

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.dist.env import World
    from pretrainkit.training.evaluate_config import TaskProbeConfig
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.run import RunConfig


def build_probes(
    recipe: Recipe, config: RunConfig, tokenizer: Path | None, world: World, precision: Precision
) -> list[Evaluation]:
    """One for each of `evaluate.probes` of a bound config; `tokenizer` is the folder of the model's. Raises ConfigError
    or DataError where a task or its data are not there, InputError where the recipe has no text encoder."""
    from pretrainkit.dist.devices import RandomState, seed_generators
    from pretrainkit.dist.weights import full_state_dict, load_full_state_dict
    from pretrainkit.rng import stream_key

    tasks = first_able(StandsOnEncoder)

    def evaluation(probe: TaskProbeConfig) -> Evaluation:
        probed = tasks.open_probe(probe, config.evaluate.probe_folders, recipe, config, tokenizer, world, precision)

        def run(model: nn.Module, tag: str) -> dict[str, float]:
            before = RandomState(world.device)
            try:
                seed_generators(stream_key(0, "probe", probe.task), world.device)
                weights = full_state_dict(model)  # a collective
                copy = empty_model(recipe, config, str(world.device))
                load_full_state_dict(copy, weights)
                found = probed(copy)
            finally:
                before.restore()
            return {f"probe_{probe.task}/{name}": value for name, value in found.items()}

        return Evaluation(run, probe.every_steps)

    return [evaluation(probe) for probe in config.evaluate.probes]
