"""Evaluation of a model on held-out data."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from pretrainkit.config.loader import Origins, flatten
from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.exporting.settings import SETTINGS, read_settings
from pretrainkit.files.outputs import new_file
from pretrainkit.recipes.capabilities import BuildsOnEncoder, Evaluates
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import first_able
from pretrainkit.running.configs import load_config
from pretrainkit.running.kept_tokenizer import require_same_tokenizer, with_tokenizer
from pretrainkit.running.opened import Opened, empty_model
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.run import RunConfig
from pretrainkit.training.watch import Evaluation

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.dist.env import World
    from pretrainkit.training.evaluate_config import TaskProbeConfig
    from pretrainkit.training.precision import Precision

_log = logging.getLogger(__name__)

EVALUATED = ("data", "evaluate", "objective", "precision")
"""Parts of a config that held-out metrics depend on, besides the model."""
_USED = ("data", "evaluate", "precision")
"""Parts of a config that matter for any use of a model."""


@contextmanager
def new_table(path: Path | None) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
    """Yield a function that writes rows to the new CSV file `path`, or does nothing without a path. Raises InputError
    if the file exists."""
    if path is None:
        yield lambda rows: None
        return
    if path.exists():
        raise InputError(f"{path} exists\n  choose another --csv, or remove it first")
    with new_file(path) as aside:
        yield lambda rows: _write_table(aside, rows)


def _write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def evaluation_config(
    opened: Opened, path: str | Path, data: str | None, overrides: Iterable[str], num_examples: int | None
) -> Any:
    """Return the config for evaluating a trained model, on `data` if given.

    Raises InputError if the recipe has no objective because it only provides models for others; ConfigError or
    DataError if there is no held-out data, or it does not fit the model.
    """
    if not opened.recipe.presets:
        opened.recipe.build_objective(opened.config)
    overrides = list(overrides)
    _state_defaults(opened, Path(path))
    config = _only_held_out(overridden(opened, overrides, EVALUATED), data, overrides)
    if not config.has_held_out_data:
        carried = read_settings(Path(path, SETTINGS))
        given = " ".join(map(quote, carried.held_out)) if carried and carried.held_out else "data.valid=FOLDER"
        raise DataError(f"{path} names no held-out data\n  use: pretrainkit evaluate {quote(str(path))} {given}")
    if num_examples is not None:
        config = config.changed(evaluate=config.evaluate.limited_to(num_examples))
    require_same_tokenizer(opened, path, config.data.valid)
    return config


def build_evaluations(recipe: Recipe, config: RunConfig, world: World, folder: Path | None) -> list[Evaluation]:
    """Return the evaluation of held-out losses, and further evaluations of the recipe."""
    from pretrainkit.training.precision import resolve_precision

    precision = resolve_precision(config.precision, world.device)
    held_out = _evaluator(recipe, config, world, precision)
    return [
        *(recipe.more_evaluations(config, world, precision, folder) if isinstance(recipe, Evaluates) else ()),
        Evaluation(lambda model, tag: held_out(model), config.evaluate.every_steps),
    ]


def build_probes(
    recipe: Recipe, config: RunConfig, tokenizer: Path | None, world: World, precision: Precision
) -> list[Evaluation]:
    """Return an evaluation for each of `evaluate.probes` of a bound config; `tokenizer` is the folder of the model's
    tokenizer.

    Probes do not change the pretraining: they use a copy of the model and restore the states of random generators.
    Raises ConfigError or DataError if a task or its data is missing, and InputError if the recipe has no text encoder.
    """
    from pretrainkit.dist.devices import RandomState, seed_generators
    from pretrainkit.dist.weights import full_state_dict, load_full_state_dict
    from pretrainkit.rng import stream_key

    tasks = first_able(BuildsOnEncoder)

    def evaluation(probe: TaskProbeConfig) -> Evaluation:
        probed = tasks.open_probe(probe, config.evaluate.probe_folders, recipe, config, tokenizer, world, precision)

        def run(model: nn.Module, tag: str) -> dict[str, float]:
            before = RandomState(world.device)
            try:
                seed_generators(stream_key(0, "probe", probe.task), world.device)
                weights = full_state_dict(model)  # all ranks must call it
                copy = empty_model(recipe, config, str(world.device))
                load_full_state_dict(copy, weights)
                metrics = probed(copy)
            finally:
                before.restore()
            return {f"probe_{probe.task}/{name}": value for name, value in metrics.items()}

        return Evaluation(run, probe.every_steps)

    return [evaluation(probe) for probe in config.evaluate.probes]


def evaluated(evaluations: Iterable[Evaluation], model: nn.Module, tag: str) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for evaluation in evaluations:
        metrics |= evaluation.run(model, tag)
    return metrics


def overridden(opened: Opened, overrides: Iterable[str], parts: Sequence[str] = _USED) -> Any:
    """Return the config of a trained model with other settings; all of them must be in `parts` of the config. Raises
    ConfigError for settings of other parts, or settings that need a different model."""
    overrides, config = list(overrides), opened.config
    if fixed := [word for word in overrides if word.split(".")[0] not in parts]:
        raise ConfigError(
            f"{', '.join(fixed)} cannot be set for a trained model\n"
            f"  set only fields of {', '.join(parts[:-1])} and {parts[-1]}"
        )
    if overrides:
        config = load_config(config.model_dump(mode="json"), overrides)
        if any(override.startswith("objective.") for override in overrides):
            _require_same_model(opened, config, overrides)
    return config if opened.tokenizer is None else with_tokenizer(opened.recipe, config, opened.tokenizer)


def _state_defaults(opened: Opened, path: Path) -> None:
    """Log the settings for evaluating a model of another project, which does not define them itself."""
    if (path / SETTINGS).is_file() or not (path / "config.json").is_file():
        return
    tree, usual = opened.config.model_dump(mode="json"), DataConfig.model_fields
    own = {name: value for name, value in tree["data"].items() if name not in usual}
    leaves = flatten({"data": own, "objective": tree["objective"]})
    stated = " ".join(f"{name}={json.dumps(leaf, separators=(',', ':'))}" for name, leaf in leaves.items())
    _log.warning(
        "%s contains no settings of its training. It is evaluated with these, unless you set others:\n  %s",
        *(path, stated),
    )


def _require_same_model(opened: Opened, config: RunConfig, overrides: Iterable[str]) -> None:
    """Raise ConfigError if an objective is for a model with other parts."""
    import torch

    with torch.device("meta"):
        expected = opened.recipe.build_model(config).state_dict().keys()
    if expected != opened.model.state_dict().keys():
        words = ", ".join(word for word in overrides if word.startswith("objective."))
        raise ConfigError(f"{words}: this objective is for a model with other layers than this one\n  leave it out")


def refuse_idle_evaluation(config: RunConfig, origins: Origins) -> None:
    """Raise ConfigError if the command line sets an evaluation interval but there is no held-out data. Presets may set
    one."""
    settings = [
        f"evaluate.{name}={value}"
        for name in ("every_steps", "every_epochs")
        if (value := getattr(config.evaluate, name)) is not None and origins.get(f"evaluate.{name}") == "command line"
    ]
    if settings and not config.has_held_out_data:
        raise ConfigError(
            f"{settings[0]}, but there is nothing to evaluate on\n"
            "  set held-out data with data.valid=..., or leave this setting out"
        )


def _evaluator(
    recipe: Recipe[Any], config: RunConfig, world: World, precision: Precision
) -> Callable[[nn.Module], dict[str, float]]:
    """Return a function that computes metrics of a model on the first `evaluate.num_examples` of a fixed shuffle of the
    held-out data.

    Every example is scored once, in the same batches for any number of ranks.
    """
    from pretrainkit.data.order import Order
    from pretrainkit.eval.evaluator import evaluate_records

    if isinstance(recipe, Evaluates) and (own := recipe.build_evaluator(config, world, precision)) is not None:
        return own
    source = recipe.open_data(config, "valid")
    objective = recipe.build_objective(config)
    order = Order(source.sizes, seed=0)
    num_examples, size = min(config.evaluate.num_examples, sum(source.sizes)), config.evaluate.batch_size
    return lambda model: evaluate_records(
        objective, model, source.build, order, num_examples, batch_size=size, precision=precision, world=world
    )


def _only_held_out(config: RunConfig, data: str | None, overrides: Iterable[str]) -> RunConfig:
    """Return the config with `data`, or the held-out data of an override, instead of all held-out data of the run."""
    names, own = config.data.held_out_fields, type(config.data)
    words = {word.split("=")[0].removeprefix("data."): word for word in overrides if word.startswith("data.")}
    overridden_fields = {name: words[name] for name in names if name in words}
    nonempty = {name: word for name, word in overridden_fields.items() if getattr(config.data, name)}
    if len(nonempty) > 1:
        raise ConfigError(f"{' and '.join(nonempty.values())} both define the held-out data\n  set only one of them")
    if data is not None and overridden_fields:
        first = next(iter(overridden_fields.values()))
        raise ConfigError(f"{data} and {first} both define the held-out data\n  set only one of them")
    if data is None and not nonempty:
        return config
    update = {name: own.model_fields[name].default for name in names if name not in nonempty}
    if data is not None:
        update["valid"] = own.model_validate({**config.data.model_dump(), "valid": data}).valid
    return config.changed(data=update)
