"""Tasks of recipe glue as periodic evaluations of a pretraining, which stays what it is without them.

A copy of the model is asked, and random numbers are drawn from generators that are put back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrainkit.recipes.recipe import Recipe
from pretrainkit.training.watch import Evaluation

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.dist.env import World
    from pretrainkit.recipes.glue.probing import TaskProbe
    from pretrainkit.training.precision import Precision


def build_probes(
    recipe: Recipe, config: Any, tokenizer: Path | None, world: World, precision: Precision
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
    from pretrainkit.recipes.glue.probing import open_probe

    folders = config.evaluate.probe_folders
    return [
        _evaluation(open_probe(probe, folders, recipe, config, tokenizer, world, precision))
        for probe in config.evaluate.probes
    ]


def _evaluation(probe: TaskProbe) -> Evaluation:
    def run(model: nn.Module, tag: str) -> dict[str, float]:
        found = _isolated(probe, model)
        return {f"probe_{probe.probe.task}/{name}": value for name, value in found.items()}

    return Evaluation(run, probe.probe.every_steps)


def _isolated(probe: TaskProbe, model: nn.Module) -> dict[str, float]:
    import torch

    from pretrainkit.rng import stream_key

    device = probe.world.device
    is_gpu = device.type != "cpu"
    with torch.random.fork_rng([device.index or 0] if is_gpu else [], device_type=device.type if is_gpu else "cuda"):
        torch.manual_seed(stream_key(0, "probe", probe.probe.task))
        return probe.run(_copied(probe, model))


def _copied(probe: TaskProbe, model: nn.Module) -> nn.Module:
    """A model of its own with the weights of `model`, whole on this rank's device; a collective."""
    import torch

    from pretrainkit.dist.weights import allocate, full_state_dict, load_full_state_dict

    weights = full_state_dict(model)
    with torch.device("meta"):
        copy = probe.recipe.build_model(probe.encoder_config)
    allocate(copy, str(probe.world.device))
    load_full_state_dict(copy, weights)
    return copy
