"""A run in three steps: resolve (a config to what is to be trained), assemble (its trainer), fit."""

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
from pretrainkit.running.opened import checkpoint_of, empty_model, load_model
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
    """What is to be trained: checked, bound to its data, with nothing left open."""

    recipe: Recipe[Any]
    config: RunConfig
    source: BatchSource
    """Of the training examples."""
    folder: RunFolder
    origins: Origins
    """Where each value of the config came from, for the record."""
    is_resumed: bool


def run_training(
    config: RunConfig, folder: RunFolder, origins: Origins, watcher: Watcher, device: str | None, *, resuming: bool
) -> dict[str, float]:
    """Everything between a config and the last metrics, for `train` and `resume`."""
    if resuming and (complete := _complete(folder, config, watcher)) is not None:  # before its data, which may be gone
        return complete
    run = resolve(config, folder, origins, resuming=resuming)
    if resuming and (complete := _complete(folder, run.config, watcher)) is not None:
        return complete

    import torch

    from pretrainkit.dist.env import init_world

    with init_world(device) as world:
        run = replace(run, config=with_fitting_microbatch(run.config, world))
        trainer = assemble(run, world, watcher)
        try:
            return fit(run, trainer)
        except torch.OutOfMemoryError:
            raise RunError(out_of_memory(run.config, folder, world, trainer.step)) from None


def resolve(config: RunConfig, folder: RunFolder, origins: Origins, *, resuming: bool) -> BoundRun:
    """Check a config, bind it to its data and find how long the run is, before torch is imported and compute is spent.
    Raises ConfigError, DataError with all problems that were found."""
    recipe, given = find_recipe(config.recipe), absolute_paths(config)
    if resuming:
        _require_same_state(folder, config)
        given = with_kept_tokenizer(recipe, with_encoder(recipe, given), folder)
    else:
        refuse_idle_evaluation(config, origins)
        check_initial(config)
        given = with_first_step(given)
    bound = checked(recipe, with_extra_steps(given), origins)
    source = recipe.open_data(bound, "train")
    if not resuming:
        check_new_run(recipe, bound, source)
    counted = with_num_steps(bound, build_loader(bound, source, rank=0, world_size=1))
    check_config(counted, num_ranks())
    return BoundRun(recipe, counted, source, folder, origins, resuming)


def assemble(run: BoundRun, world: World, watcher: Watcher) -> Trainer:
    """The trainer of this rank, with the state of the run where it is resumed, and the run's record; a collective.
    Raises InputError such as for a disk without room for one checkpoint, or changes that nothing would read;
    CheckpointError where there is nothing to go on from."""
    import torch

    from pretrainkit.training.precision import resolve_precision
    from pretrainkit.training.trainer import Trainer, initial_seed

    recipe, config, folder, source = run.recipe, run.config, run.folder, run.source
    evaluations = build_evaluations(recipe, config, world, folder.path) if config.has_held_out_data else []
    precision = resolve_precision(config.precision, world.device)
    if config.evaluate.probes:
        evaluations += build_probes(recipe, config, tokenizer_folder(recipe, config), world, precision)
    torch.manual_seed(initial_seed(config.seed))
    if run.is_resumed:  # a checkpoint brings the values, so that no published weights are needed that it started from
        model = empty_model(recipe, config, str(world.device))
    else:
        model = recipe.build_model(config).to(world.device)
        if config.init_from is not None:
            load_initial(model, config)
        world.on_main(folder.prepare)
    if isinstance(recipe, CachesFeatures):
        start = (lambda: load_model(folder.path).to(world.device)) if run.is_resumed else (lambda: model)
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
    except InputError:  # such as examples that cannot be made, or a disk without room for one checkpoint
        if world.is_main and not run.is_resumed:
            folder.discard()
        raise
    changes: dict[str, tuple[Any, Any]] = {}
    if run.is_resumed:
        if not trainer.restore():
            raise CheckpointError(
                f"{folder.path} has no valid checkpoint to go on from: every one is torn\n"
                "  restore one from a copy, or train again in another folder"
            )
        changes = world.on_main(lambda: _changes(folder, config))
        if changes and trainer.is_over:
            raise InputError(_idle_changes(folder, trainer, changes))
    world.on_main(lambda: _record(run, summary_of_data, trainer.step if run.is_resumed else 0, changes))
    if world.is_main:
        watcher.started(_about(trainer, summary_of_data))
    return trainer


def fit(run: BoundRun, trainer: Trainer) -> dict[str, float]:
    """Train, then write the last examples and the summary, with which a run is complete; returns the last metrics."""
    recipe, config, folder = run.recipe, run.config, run.folder
    metrics = trainer.fit()
    if not trainer.world.is_main:
        return metrics
    if config.has_held_out_examples:
        # A forward pass of a sharded model needs all ranks; what was saved last is whole.
        trained = load_model(folder.path) if config.parallel.is_sharded else trainer.plain_model
        samples = recipe.sample(config, trained, recipe.open_data(config, "valid"), num=8)
        folder.write_json("samples.json", samples)
    early = {} if trainer.stopped_early is None else {"stopped_early": trainer.stopped_early}
    baselines = recipe.baselines(config) if config.has_held_out_data else {}
    summary = {"parameters": trainer.num_parameters, "steps": trainer.step, **early, **metrics, **baselines}
    folder.write_json(SUMMARY, {name: json_value(value) for name, value in summary.items()})
    return metrics


def _about(trainer: Trainer, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a watcher is told before the first step."""
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
    """The last metrics of a run that has nothing left to do under `config`; None where something is left."""
    summary = folder.summary()
    if not summary or _changes(folder, config):
        return None
    checkpoints = step_folders(folder.checkpoints)
    last = max(checkpoints, default=None)
    if last is None or last != summary["steps"] or problem(checkpoints[last]) is not None:  # resuming says what is torn
        return None
    more = "evaluate.early_stopping=null" if "stopped_early" in summary else f"num_steps={2 * summary['steps']}"
    text = f"nothing is left to do; to train longer: pretrainkit resume {quote(str(folder.path))} {more}"
    watcher.event(summary["steps"], "complete", text)
    return {name: value for name, value in summary.items() if isinstance(value, float)}


def _changes(folder: RunFolder, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted path of each setting that `config` has otherwise than the run so far, to its old and its new value."""
    old = flatten(recorded_config(folder.config_tree()).config.model_dump(mode="json"))
    new = flatten(config.model_dump(mode="json"))
    return {path: (old.get(path), new.get(path)) for path in old | new if old.get(path) != new.get(path)}


def _require_same_state(folder: RunFolder, config: RunConfig) -> None:
    """Refuse another optimizer than the one whose state the run has."""
    path = quote(str(folder.path))
    changes = " ".join(quote(f"{name}={shown(new)}") for name, (_, new) in _changes(folder, config).items())
    command = f"pretrainkit train {path}/config.yaml init_from={path} {changes} --out FOLDER"
    before = recorded_config(folder.config_tree()).config
    require_same_state(config, before, str(folder.path), f"or start a new run with its weights alone: {command}")


def _idle_changes(folder: RunFolder, trainer: Trainer, changes: Mapping[str, Any]) -> str:
    """The message for settings that nothing would read, because the run has ended."""
    path = quote(str(folder.path))
    early = trainer.stopped_early
    end = f"ended early: {early}" if early else f"it has made all its {trainer.config.total_steps} steps"
    more = "evaluate.early_stopping=null" if early else f"num_steps={2 * trainer.step}"
    return (
        f"{folder.path} is finished at step {trainer.step}; these changes would have no effect: {', '.join(changes)}\n"
        f"  {end}\n  to train longer: pretrainkit resume {path} {more}"
    )


def num_ranks() -> int:
    """Processes of this run, as the launcher's environment says."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    return int(world_size) if world_size.isdecimal() else 1  # init_world complains about what is no number


def checked(recipe: Recipe[Any], config: RunConfig, origins: Origins | None = None) -> RunConfig:
    """The config bound to its data, or ConfigError and DataError with what does not fit on this number of ranks."""
    check_config(config, num_ranks(), origins)
    config.parallel.require_ranks(num_ranks())
    bound = recipe.bind(with_encoder(recipe, config))
    check_config(bound, num_ranks())
    return bound


def check_new_run(recipe: Recipe, config: RunConfig, source: BatchSource) -> None:
    """Refuse training data that a new run must not be started with. Raises ConfigError, DataError."""
    if isinstance(recipe, ChecksFiles):
        recipe.check_new_run(config, source)


def _sampler(
    recipe: Recipe, config: RunConfig, is_main: bool
) -> Callable[[nn.Module], Callable[[], Sequence[Sample]]] | None:
    """What draws examples after every evaluation, on the rank that does: with a copy of a model, whose weights go on to
    change, where the CPU does all of it, else the model answers at once. A sharded model can only be asked by all."""
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


def _record(run: BoundRun, data: Mapping[str, Any], step: int, changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Write what this run is: config, where its values came from, data, code; on resuming, one entry more."""
    folder, config = run.folder, run.config
    provenance = folder.provenance() or {"data": data, **environment()}
    if step:
        folder.remove_summary()
        provenance.setdefault("resumed", []).append({"step": step, "changes": changes, **environment()})
    if changes:
        told = (f"{path} from {json.dumps(old)} to {json.dumps(new)}" for path, (old, new) in changes.items())
        folder.event(step, "changed", "; ".join(told))
    folder.record(config, {**provenance, "sources": run.origins})
    keep_tokenizer(folder, tokenizer_folder(run.recipe, config))
