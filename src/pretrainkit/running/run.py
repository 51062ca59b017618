"""A run in three steps: resolve (bind a config to its data), assemble (build its trainer), fit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from pretrainkit.config.base import shown
from pretrainkit.config.loader import Origins, flatten
from pretrainkit.config.paths import absolute_paths
from pretrainkit.errors import CheckpointError, InputError, RunError
from pretrainkit.recipes.capabilities import CachesFeatures, ChecksFiles
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.configs import check_config, check_initial, recorded_config
from pretrainkit.running.held_out import build_evaluations, build_probes, refuse_idle_evaluation
from pretrainkit.running.initial import (
    build_loader,
    load_initial,
    require_same_state,
    with_encoder,
    with_extra_steps,
    with_first_step,
    with_num_steps,
)
from pretrainkit.running.kept_tokenizer import keep_tokenizer, tokenizer_folder, with_kept_tokenizer
from pretrainkit.running.opened import ReadModel, checkpoint_of, empty_model, load_model, model_on_meta
from pretrainkit.running.plan import out_of_memory, with_fitting_microbatch
from pretrainkit.training.checkpoints.files import problem, step_folders
from pretrainkit.training.folder import SUMMARY, RunFolder, environment, json_value
from pretrainkit.training.run import RunConfig
from pretrainkit.training.watch import Sample, Watcher

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.source import BatchSource
    from pretrainkit.dist.env import World
    from pretrainkit.training.trainer import Trainer


@dataclass(frozen=True)
class BoundRun:
    """A config that is checked and bound to its data, with no field left open."""

    recipe: Recipe[Any]
    config: RunConfig
    source: BatchSource
    """Source of the training examples."""
    folder: RunFolder
    origins: Origins
    """Source of each config value, for the record."""
    is_resumed: bool
    initial: ReadModel | None = None
    """The model of `init_from`, if the config was bound to it."""


def run_training(
    config: RunConfig, folder: RunFolder, origins: Origins, watcher: Watcher, device: str | None, *, resuming: bool
) -> dict[str, float]:
    """Do the work of `train` or `resume`: train with a config and return the last metrics."""
    if resuming and (complete := _complete(folder, config, watcher)) is not None:  # first: the data may no longer exist
        return complete
    run = resolve(config, folder, origins, resuming=resuming)
    if resuming and (complete := _complete(folder, run.config, watcher)) is not None:
        return complete

    import torch

    from pretrainkit.dist.env import init_world

    with init_world(device) as world:
        run = replace(run, config=with_fitting_microbatch(run.config, world))
        trainer = assemble(run, world, watcher)
        run = replace(run, initial=None)  # to free its memory
        try:
            return fit(run, trainer)
        except torch.OutOfMemoryError:
            raise RunError(out_of_memory(run.config, folder, world, trainer.step)) from None


def resolve(config: RunConfig, folder: RunFolder, origins: Origins, *, resuming: bool) -> BoundRun:
    """Check a config, bind it to its data and determine the number of steps, before torch is imported and compute is
    spent. Raises ConfigError or DataError with all problems."""
    recipe, unbound = find_recipe(config.recipe), absolute_paths(config)
    if resuming:
        _require_same_state(folder, config)
        unbound = with_kept_tokenizer(recipe, with_encoder(recipe, unbound)[0], folder)
    else:
        refuse_idle_evaluation(config, origins)
        check_initial(config)
        unbound = with_first_step(unbound)
    bound, initial = checked(recipe, with_extra_steps(unbound), origins)
    source = recipe.open_data(bound, "train")
    if not resuming:
        check_new_run(recipe, bound, source)
    counted = with_num_steps(bound, build_loader(bound, source, rank=0, world_size=1))
    check_config(counted, num_ranks())
    return BoundRun(recipe, counted, source, folder, origins, resuming, initial)


def assemble(run: BoundRun, world: World, watcher: Watcher) -> Trainer:
    """Return the trainer of this rank, with restored state if the run is resumed, and record the run. All ranks must
    call it.

    Raises InputError, such as if the disk is too small for a checkpoint or changes would have no effect, and
    CheckpointError if there is no checkpoint to resume from.
    """
    from pretrainkit.training.precision import resolve_precision
    from pretrainkit.training.trainer import Trainer

    recipe, config, folder, source = run.recipe, run.config, run.folder, run.source
    evaluations = build_evaluations(recipe, config, world, folder.path) if config.has_held_out_data else []
    precision = resolve_precision(config.precision, world.device)
    if config.evaluate.probes:
        evaluations += build_probes(recipe, config, tokenizer_folder(recipe, config), world, precision)
    model = _starting_model(run, world)
    if not run.is_resumed:
        world.on_main(folder.prepare)
    if isinstance(recipe, CachesFeatures):

        def start() -> nn.Module:
            if run.is_resumed:
                return load_model(folder.path).to(world.device)
            return _new_model(run).to(world.device) if config.parallel.is_sharded else model

        source = recipe.with_cached_features(config, source, start, folder.cache, world, precision)
    try:
        summary_of_data = source.summary() if world.is_main else {}
        trainer = Trainer(
            config,
            folder,
            world,
            model,
            recipe.build_objective(config),
            build_loader(config, source, rank=world.rank, world_size=world.world_size),
            evaluations,
            watcher,
            _sampler(recipe, config, world.is_main),
        )
        if config.init_from is not None and config.init.restore == "all" and not run.is_resumed:
            trainer.continue_from(checkpoint_of(Path(config.init_from), config.first_step)[1])
    except InputError:  # such as invalid examples, or a disk that is too small for a checkpoint
        if world.is_main and not run.is_resumed:
            folder.discard()
        raise
    changes: dict[str, tuple[Any, Any]] = {}
    if run.is_resumed:
        if not trainer.restore():
            raise CheckpointError(
                f"{folder.path} has no valid checkpoint to resume from: all are damaged\n"
                "  restore one from a copy, or train again in another folder"
            )
        changes = world.on_main(lambda: _changes(folder, config))
        if changes and trainer.is_over:
            raise InputError(_idle_changes(folder, trainer, changes))
    hardware = {"device": trainer.peak.device_name, "ranks": world.world_size, "precision": trainer.precision.name}
    step = trainer.step if run.is_resumed else 0
    world.on_main(lambda: _record(run, {**environment(), **hardware}, summary_of_data, step, changes))
    if world.is_main:
        watcher.started(_start_info(trainer, summary_of_data))
    return trainer


def _starting_model(run: BoundRun, world: World) -> nn.Module:
    """Return this rank's model, not yet parallelized. Of a model that will be sharded, only rank 0 has values, on its
    host: sharding takes them from there, a block at a time, so that no GPU and no other host holds the whole model."""
    if run.is_resumed:  # the checkpoint has all values, so the published weights that it started from are not needed
        if run.config.parallel.is_sharded:
            return model_on_meta(run.recipe, run.config)
        return empty_model(run.recipe, run.config, str(world.device))
    if not run.config.parallel.is_sharded:
        return _new_model(run).to(world.device)
    whole: list[nn.Module] = []
    world.on_main(lambda: whole.append(_new_model(run)))  # so that an error there ends all ranks
    return whole[0] if whole else model_on_meta(run.recipe, run.config)


def _new_model(run: BoundRun) -> nn.Module:
    """Return the model on the CPU with the values that it starts training with."""
    import torch

    from pretrainkit.training.trainer import initial_seed

    torch.manual_seed(initial_seed(run.config.seed))
    model = run.recipe.build_model(run.config)
    if run.config.init_from is not None:
        load_initial(model, run.config, run.initial)
    return model


def fit(run: BoundRun, trainer: Trainer) -> dict[str, float]:
    """Train, then write the last examples, and the summary, which marks a run as complete. Returns the last metrics."""
    recipe, config, folder = run.recipe, run.config, run.folder
    metrics = trainer.fit()
    if not trainer.world.is_main:
        return metrics
    if config.has_held_out_examples:
        # A forward pass of a sharded model needs all ranks; the last checkpoint has the whole model.
        trained = load_model(folder.path) if config.parallel.is_sharded else trainer.plain_model
        samples = recipe.sample(config, trained, recipe.open_data(config, "valid"), num=8)
        folder.write_json("samples.json", samples)
    early = {} if trainer.stopped_early is None else {"stopped_early": trainer.stopped_early}
    baselines = recipe.baselines(config) if config.has_held_out_data else {}
    summary = {"parameters": trainer.num_parameters, "steps": trainer.step, **early, **metrics, **baselines}
    folder.write_json(SUMMARY, {name: json_value(value) for name, value in summary.items()})
    return metrics


def _start_info(trainer: Trainer, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the information for a watcher before the first step."""
    config, loader = trainer.config, trainer.loader
    num_steps = config.total_steps - loader.first_step
    return {
        "folder": str(trainer.folder.path),
        "parameters": trainer.num_parameters,
        "device": str(trainer.world.device),
        "ranks": trainer.world.world_size,
        "precision": trainer.precision.name,
        "peak": trainer.peak.describe(),
        "examples": sum(loader.source.sizes),
        "epochs": loader.epochs_for(num_steps),
        "first_step": trainer.step,
        "num_steps": config.total_steps,
        "mixture": data.get("mixture", []),
        "num_examples": num_steps * config.data.batch_size,
    }


def _complete(folder: RunFolder, config: RunConfig, watcher: Watcher) -> dict[str, float] | None:
    """Return the last metrics of a run that is complete under `config`; None if there is work left."""
    summary = folder.summary()
    if not summary or _changes(folder, config):
        return None
    checkpoints = step_folders(folder.checkpoints)
    last = max(checkpoints, default=None)
    if last is None or last != summary["steps"] or problem(checkpoints[last]) is not None:  # resuming reports problems
        return None
    more = "evaluate.early_stopping=null" if "stopped_early" in summary else f"num_steps={2 * summary['steps']}"
    text = f"nothing is left to do; to train longer: pretrainkit resume {quote(str(folder.path))} {more}"
    watcher.event(summary["steps"], "complete", text)
    return {name: value for name, value in summary.items() if isinstance(value, float)}


def _changes(folder: RunFolder, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Map the dotted path of each setting that differs between `config` and the run so far to its old and new value."""
    old = flatten(recorded_config(folder.config_tree()).config.model_dump(mode="json"))
    new = flatten(config.model_dump(mode="json"))
    return {path: (old.get(path), new.get(path)) for path in old | new if old.get(path) != new.get(path)}


def _require_same_state(folder: RunFolder, config: RunConfig) -> None:
    """Raise ConfigError for an optimizer that cannot use the run's optimizer state."""
    path = quote(str(folder.path))
    changes = " ".join(quote(f"{name}={shown(new)}") for name, (_, new) in _changes(folder, config).items())
    command = f"pretrainkit train {path}/config.yaml init_from={path} {changes} --out FOLDER"
    before = recorded_config(folder.config_tree()).config
    require_same_state(config, before, str(folder.path), f"or start a new run from its weights alone: {command}")


def _idle_changes(folder: RunFolder, trainer: Trainer, changes: Mapping[str, Any]) -> str:
    """Return the message for settings that have no effect, because the run has ended."""
    path = quote(str(folder.path))
    early = trainer.stopped_early
    end = f"it ended early: {early}" if early else "it has made all steps"
    more = "evaluate.early_stopping=null" if early else f"num_steps={2 * trainer.step}"
    return (
        f"{folder.path} is finished at step {trainer.step}; these changes would have no effect: {', '.join(changes)}\n"
        f"  {end}\n  to train longer: pretrainkit resume {path} {more}"
    )


def num_ranks() -> int:
    """Return the number of processes of this run, from the launcher's environment."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    return int(world_size) if world_size.isdecimal() else 1  # init_world reports invalid values


def checked(
    recipe: Recipe[Any], config: RunConfig, origins: Origins | None = None
) -> tuple[RunConfig, ReadModel | None]:
    """Return the config bound to its data, and the model that was read for that. Raises ConfigError or DataError if it
    does not fit this number of ranks."""
    check_config(config, num_ranks(), origins)
    config.parallel.require_ranks(num_ranks())
    config, read = with_encoder(recipe, config)
    bound = recipe.bind(config)
    check_config(bound, num_ranks())
    return bound, read


def check_new_run(recipe: Recipe, config: RunConfig, source: BatchSource) -> None:
    """Raise ConfigError or DataError for training data that a new run must not use."""
    if isinstance(recipe, ChecksFiles):
        recipe.check_new_run(config, source)


def _sampler(
    recipe: Recipe, config: RunConfig, is_main: bool
) -> Callable[[nn.Module], Callable[[], Sequence[Sample]]] | None:
    """Return the function that shows examples after each evaluation, on the main rank only. None: nothing to show.

    If the CPU does all the work, it uses a copy of the model, whose weights continue to change; otherwise the model
    answers immediately. A sharded model cannot be used by one rank alone."""
    num = config.evaluate.num_samples
    if not (is_main and num) or config.parallel.is_sharded or not config.has_held_out_examples:
        return None
    from pretrainkit.dist.weights import on_cpu

    source = recipe.open_data(config, "valid")
    if recipe.samples_on_cpu:
        return lambda model: partial(recipe.sample, config, on_cpu(model), source, num)

    def sample(model: nn.Module) -> Callable[[], Sequence[Sample]]:
        samples = recipe.sample(config, model, source, num)
        return lambda: samples

    return sample


def _record(
    run: BoundRun, place: Mapping[str, Any], data: Mapping[str, Any], step: int, changes: Mapping[str, tuple[Any, Any]]
) -> None:
    """Write the record of this run: config, source of its values, data, code, machine. Resuming adds an entry."""
    folder, config = run.folder, run.config
    provenance = folder.provenance() or {"data": data, **place}
    if step:
        folder.remove_summary()
        provenance.setdefault("resumed", []).append({"step": step, "changes": changes, **place})
    if changes:
        descriptions = (f"{path} from {json.dumps(old)} to {json.dumps(new)}" for path, (old, new) in changes.items())
        folder.event(step, "changed", "; ".join(descriptions))
    described = {"folder": str(folder.path.resolve()), "directions": dict(run.recipe.directions)}
    described["percentages"] = list(run.recipe.percentages)
    folder.record(config, {**provenance, **described, "sources": run.origins})
    keep_tokenizer(folder, tokenizer_folder(run.recipe, config))
