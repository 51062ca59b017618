"""A run: everything between a config and its last metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from pretrainkit.config.base import shown
from pretrainkit.config.loader import Origins, flatten
from pretrainkit.config.paths import absolute_paths
from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.recipes.capabilities import CachesFeatures, ChecksFiles
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.configs import check_config, check_initial, recorded_config
from pretrainkit.running.held_out import build_evaluations, refuse_idle_evaluation
from pretrainkit.running.initial import fresh_model, load_initial, require_same_state, with_encoder
from pretrainkit.running.kept_tokenizer import keep_tokenizer, tokenizer_folder, with_kept_tokenizer
from pretrainkit.running.loader import build_loader, with_extra_steps, with_first_step, with_num_steps
from pretrainkit.running.opened import checkpoint_of, load_model
from pretrainkit.running.probing import build_probes
from pretrainkit.training.checkpoints.files import problem, step_folders
from pretrainkit.training.folder import SUMMARY, RunFolder, environment, json_value
from pretrainkit.training.run import RunConfig
from pretrainkit.training.samples import Sample
from pretrainkit.training.watch import Watcher

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.source import BatchSource
    from pretrainkit.training.trainer import Trainer


def run_training(
    config: RunConfig, folder: RunFolder, origins: Origins, watcher: Watcher, device: str | None, *, resuming: bool
) -> dict[str, float]:
    """Everything between a config and the last metrics, for `train` and `resume`."""
    recipe = find_recipe(config.recipe)
    if resuming:
        if (complete := _complete(folder, config, watcher)) is not None:  # before its data, which may be gone
            return complete
        _require_same_state(folder, config)
        config = with_kept_tokenizer(recipe, with_encoder(recipe, absolute_paths(config)), folder)
    else:
        refuse_idle_evaluation(config, origins)
        check_initial(config)
        config = with_first_step(config)
    config = with_extra_steps(config)
    config = checked(recipe, absolute_paths(config), origins)  # before torch, which takes a second and a half to import

    import torch

    from pretrainkit.dist.env import init_world
    from pretrainkit.training.precision import resolve_precision
    from pretrainkit.training.trainer import Trainer, initial_seed

    world = init_world(device)
    try:
        source = recipe.open_data(config, "train")
        if not resuming:
            check_new_run(recipe, config, source)
        loader = build_loader(config, source, rank=world.rank, world_size=world.world_size)
        config = with_num_steps(config, loader)
        if resuming and (complete := world.on_main(lambda: _complete(folder, config, watcher))) is not None:
            return complete
        evaluations = build_evaluations(recipe, config, world, folder.path) if config.has_held_out_data else []
        precision = resolve_precision(config.precision, world.device)
        if config.evaluate.probes:
            evaluations += build_probes(recipe, config, tokenizer_folder(recipe, config), world, precision)
        torch.manual_seed(initial_seed(config.seed))
        model = fresh_model(recipe, config, world, filled_later=resuming)
        if config.init_from is not None and not resuming:
            load_initial(model, config)
        if not resuming:
            world.on_main(folder.prepare)
        start = (lambda: load_model(folder.path).to(world.device)) if resuming else (lambda: model)
        if isinstance(recipe, CachesFeatures):
            cached = recipe.with_cached_features(config, source, start, folder.cache, world, precision)
            if cached is not source:
                source, loader = cached, build_loader(config, cached, rank=world.rank, world_size=world.world_size)
        objective = recipe.build_objective(config)
        try:
            summary_of_data = source.summary() if world.is_main else {}
            sample = _sampler(recipe, config, world.is_main)
            trainer = Trainer(config, folder, world, model, objective, loader, evaluations, watcher, sample)
            if config.init_from is not None and config.init.restore == "all" and not resuming:
                trainer.go_on_from(checkpoint_of(Path(config.init_from), config.first_step)[1])
        except InputError:  # such as examples that cannot be made, or a disk without room for one checkpoint
            if world.is_main and not resuming:
                folder.discard()
            raise
        if resuming and not trainer.restore():
            raise CheckpointError(
                f"{folder.path} has no valid checkpoint to go on from: every one is torn\n"
                "  restore one from a copy, or train again in another folder"
            )
        changes = world.on_main(lambda: _changes(folder, config)) if resuming else {}
        if changes and trainer.is_over:
            raise InputError(_idle_changes(folder, trainer, changes))
        world.on_main(
            lambda: _record(folder, config, origins, summary_of_data, trainer.step if resuming else 0, changes)
        )
        if world.is_main:
            watcher.started(
                {
                    "folder": str(folder.path),
                    "parameters": trainer.num_parameters,
                    "device": str(world.device),
                    "ranks": world.world_size,
                    "precision": trainer.precision.name,
                    "peak": trainer.peak.describe(),
                    "examples": sum(source.sizes),
                    "epochs": loader.epochs_for(config.total_steps - loader.first_step),
                    "first_step": trainer.step,
                    "num_steps": config.total_steps,
                    "mixture": summary_of_data.get("mixture", []),
                    "num_examples": (config.total_steps - loader.first_step) * config.data.batch_size,
                }
            )
        metrics = trainer.fit()
        if world.is_main and config.has_held_out_examples:
            # A forward pass of a sharded model needs all ranks; what was saved last is whole.
            trained = load_model(folder.path) if config.parallel.is_sharded else trainer.plain_model
            samples = recipe.sample(config, trained, recipe.open_data(config, "valid"), num=8)
            folder.write_json("samples.json", samples)
        if world.is_main:  # the last file that is written: with it the run is complete
            early = {} if trainer.stopped_early is None else {"stopped_early": trainer.stopped_early}
            baselines = recipe.baselines(config) if config.has_held_out_data else {}
            summary = {"parameters": trainer.num_parameters, "steps": trainer.step, **early, **metrics, **baselines}
            folder.write_json(SUMMARY, {name: json_value(value) for name, value in summary.items()})
        return metrics
    finally:
        world.close()


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


def checked(recipe: Recipe, config: Any, origins: Origins | None = None) -> Any:
    """The config bound to its data, or ConfigError and DataError with what does not fit on this number of ranks."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    num_ranks = int(world_size) if world_size.isdecimal() else 1  # init_world complains about what is no number
    check_config(config, num_ranks, origins)
    config.parallel.require_ranks(num_ranks)
    config = recipe.bind(with_encoder(recipe, config))
    check_config(config, num_ranks)
    return config


def check_new_run(recipe: Recipe, config: Any, source: BatchSource) -> None:
    """Refuse training data that a new run must not be started with. Raises ConfigError, DataError."""
    if isinstance(recipe, ChecksFiles):
        recipe.check_new_run(config, source)


def _sampler(recipe: Recipe, config: RunConfig, is_main: bool) -> Callable[[nn.Module], Sequence[Sample]] | None:
    """What shows examples after every evaluation, on the rank that does. A sharded model can only be asked by all."""
    num = config.evaluate.num_samples
    if not (is_main and num) or config.parallel.is_sharded or not config.has_held_out_examples:
        return None
    source = recipe.open_data(config, "valid")
    return lambda model: recipe.sample(config, model, source, num)


def _record(
    folder: RunFolder,
    config: RunConfig,
    origins: Origins,
    data: Mapping[str, Any],
    step: int,
    changes: Mapping[str, tuple[Any, Any]],
) -> None:
    """Write what this run is: config, where its values came from, data, code; on resuming, one entry more."""
    provenance = folder.provenance() or {"data": data, **environment()}
    if step:
        folder.remove_summary()
        provenance.setdefault("resumed", []).append({"step": step, "changes": changes, **environment()})
    if changes:
        told = (f"{path} from {json.dumps(old)} to {json.dumps(new)}" for path, (old, new) in changes.items())
        folder.event(step, "changed", "; ".join(told))
    folder.record(config, {**provenance, "sources": origins})
    keep_tokenizer(folder, tokenizer_folder(find_recipe(config.recipe), config))
