"""The Python API: everything the command line does goes through here. Quiet; torch is imported when it is needed."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from pretrainkit.config.base import architecture
from pretrainkit.config.loader import Origins, Resolved, resolve
from pretrainkit.config.paths import absolute_paths
from pretrainkit.errors import CheckpointError, ConfigError, DataError, InputError
from pretrainkit.recipes.registry import Recipes, entries, find_recipe
from pretrainkit.training.folder import RunFolder, environment, json_value
from pretrainkit.training.recipe import DataCheck, Evaluation, ImportedConfig, ImportedModel, Recipe
from pretrainkit.training.run import RunConfig, SourceConfig
from pretrainkit.training.watch import Watcher

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from pretrainkit.corpus.parallel import Progress
    from pretrainkit.data.loader import Loader
    from pretrainkit.data.source import BatchSource
    from pretrainkit.dist.env import World


_log = logging.getLogger(__name__)

_NOT_OF_TOKENIZERS = (
    ".*",
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.h5",
    "*.msgpack",
    "*.ot",
    "onnx",
    "*.onnx",
)
"""Files of weights, as they lie beside tokenizers."""


_EVALUATED = ("data", "evaluate", "precision")
"""Parts of a config that held-out metrics depend on, besides the model."""


@dataclass(frozen=True)
class Opened:
    """A trained model with all that is needed to use it."""

    model: nn.Module
    """In evaluation mode, float32, on CPU."""
    config: Any
    """Its recipe's config, bound to its data."""
    recipe: Recipe
    tokenizer: Path | None
    """Folder of its tokenizer, where it was found beside the model."""

    def generate(self, prompts: Iterable[str], **options: Any) -> list[dict[str, Any]]:
        """What the model answers to each prompt; see `pretrainkit.api.generate`."""
        for name in options:
            if name not in self.recipe.generate_options:
                raise InputError(
                    f"recipe {self.recipe.name!r} has no option {name!r} to generate with\n"
                    f"  it has {', '.join(self.recipe.generate_options)}"
                )
        return self.recipe.generate(self.config, self.model, self._tokenizer(), list(prompts), **options)

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float]:
        """How likely the model holds each answer to be: the log-probability of the second text given the first."""
        return self.recipe.score(self.config, self.model, self._tokenizer(), list(pairs))

    def _tokenizer(self) -> Path | None:
        if self.tokenizer is None and not self.recipe.has_own_vocabulary(self.config):
            raise DataError("there is no tokenizer beside the model\n  a run keeps it in RUN/tokenizer")
        return self.tokenizer


def resolve_config(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Resolved:
    """The config of a preset, YAML file or mapping with `path=value` overrides, and where each value came from.

    Raises:
        ConfigError: Every problem found.
    """
    return resolve(source, overrides, Recipes())


def load_config(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Any:
    """As `resolve_config`, the config alone: `load_config("bert/tiny", ["data.batch_size=64"])`."""
    return resolve_config(source, overrides).config


def import_config(
    path: str | Path, recipe: str | None = None, settings: Iterable[str] = (), nproc: int = 1
) -> ImportedConfig:
    """A config file of the system that a recipe succeeds, as a config or command of ours.

    Args:
        path: The file.
        recipe: Who reads it; None: the only recipe that can.
        settings: `dotted.key=value` in that system's own keys.
        nproc: Ranks it is meant for.
    """
    readers = [entry.name for entry in entries().values() if entry.load().reads_configs_of]
    name = recipe or (readers[0] if len(readers) == 1 else None)
    if name is None:
        raise InputError(f"who reads {path}? give one of: {', '.join(f'--recipe {reader}' for reader in readers)}")
    return find_recipe(name).import_config(Path(path), settings, nproc)


def check_config(config: RunConfig, world_size: int = 1) -> None:
    """Refuse combinations that cannot work on `world_size` ranks. Raises ConfigError with all of them."""
    if problems := config.problems(world_size):
        raise ConfigError(problems)


def check_data(config: Any, *, num: int = 2) -> DataCheck:
    """What the training data of a config are: sizes, passes, shares of a mixture, and what its recipe adds. Nothing is
    trained or written.

    Args:
        config: From `load_config`.
        num: Examples to show of each component.

    Raises:
        ConfigError, DataError: Config and data do not fit each other.
    """
    from pretrainkit.data.shares import table

    recipe = find_recipe(config.recipe)
    config = _checked(recipe, absolute_paths(config))
    source = recipe.open_data(config, "train")
    loader = build_loader(config, source, rank=0, world_size=1)
    config = with_num_steps(config, loader)
    steps, size, summary = config.total_steps, config.data.batch_size, source.summary()
    figures: dict[str, Any] = {
        "training examples": sum(source.sizes),
        "training": f"{steps:,} steps of {size:,} examples, {loader.epochs_for(steps):.2f} epochs",
    }
    if config.has_held_out_data:
        figures["held-out examples"] = sum(recipe.open_data(config, "valid").sizes)
    if len(rows := summary.get("mixture", [])) > 1:
        figures["mixture"] = "\n".join(table(rows, steps * size))
    more = recipe.check_data(config, source, summary, loader.global_records, num)
    return DataCheck(figures | more.figures, more.notes, more.examples)


def build_model(config: Any, device: str = "cpu") -> nn.Module:
    """The freshly initialised model of a config, a plain `nn.Module`. On "meta" it has shapes but no memory."""
    import torch

    from pretrainkit.training.trainer import initial_seed

    torch.manual_seed(initial_seed(config.seed))
    with torch.device(device):
        return find_recipe(config.recipe).build_model(config)


def batches(config: Any, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """The global batches as dicts of NumPy arrays, exactly what `train` feeds, from `start_step` to `num_steps`."""
    recipe = find_recipe(config.recipe)
    config = recipe.bind(config)
    loader = build_loader(config, recipe.open_data(config, "train"), rank=0, world_size=1)
    for step in range(max(start_step, loader.first_step), with_num_steps(config, loader).total_steps):
        yield loader.global_batch(step)


def train(
    config: RunConfig,
    out: str | Path,
    *,
    origins: Origins | None = None,
    watcher: Watcher | None = None,
    device: str | None = None,
    resume: bool = False,
) -> dict[str, float]:
    """Train from the start in the run folder `out`; returns the last metrics.

    Args:
        config: From `load_config`.
        out: A new or empty folder.
        origins: Where each value of the config came from, for the record.
        watcher: Told what happens.
        device: Such as "cpu" or "cuda"; None: the best there is.
        resume: Go on, with this config, when `out` already holds a checkpoint: for schedulers, which give the same
            command again. A config that changes the past is refused, as in `resume`.

    Raises:
        ConfigError, DataError: What was given does not hold together; nothing was computed.
        Interrupted: Stopped by a signal; the state was saved.
    """
    folder = RunFolder(out)
    resuming = resume and folder.has_checkpoint
    return _run(config, folder, origins or {}, watcher or Watcher(), device, resuming=resuming)


def resume(
    run: str | Path, overrides: Iterable[str] = (), *, watcher: Watcher | None = None, device: str | None = None
) -> dict[str, float]:
    """Go on with a run exactly where its newest valid checkpoint is.

    Overrides may change what does not touch the past, such as `num_steps` or `checkpoint.every_steps`; a change of the
    data, seed or batch is refused.
    """
    folder = RunFolder(run)
    resolved = resolve_config(folder.config_tree(), overrides)
    old = folder.provenance().get("sources", {})
    origins = {k: o if o == "command line" else old.get(k, o) for k, o in resolved.origins.items()}
    if not folder.has_checkpoint:
        raise CheckpointError(
            f"{run} has no checkpoint to go on from\n"
            "  remove the folder and train again, with a smaller checkpoint.every_steps"
        )
    return _run(resolved.config, folder, origins, watcher or Watcher(), device, resuming=True)


def evaluate(
    path: str | Path,
    data: str | None = None,
    overrides: Iterable[str] = (),
    *,
    num_examples: int | None = None,
    device: str | None = None,
    averaged: bool = False,
) -> dict[str, float]:
    """Held-out metrics of a run, checkpoint or export.

    Args:
        path: What to evaluate.
        data: Token shards, or sets of pairs; None: `data.valid` of its config.
        overrides: Settings `evaluate....=`, `data....=` and `precision....=` other than in its config.
        num_examples: At most so many; None: as its config says.
        device: None: the best there is.
        averaged: The average of the weights that `ema_decay` keeps, instead of the last ones.

    Raises:
        ConfigError: An override of something that cannot be changed any more.
    """
    from pretrainkit.dist.env import init_world

    opened = open_model(path, averaged=averaged)
    config = _evaluation_config(opened, path, data, overrides, num_examples)
    world = init_world(device)
    try:
        return _evaluated(_evaluations(opened.recipe, config, world, None), opened.model.to(world.device), "")
    finally:
        world.close()


def evaluate_checkpoints(
    run: str | Path,
    data: str | None = None,
    overrides: Iterable[str] = (),
    *,
    out: str | Path | None = None,
    num_examples: int | None = None,
    device: str | None = None,
    averaged: bool = False,
    progress: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None,
) -> dict[int, dict[str, float]]:
    """Held-out metrics of all checkpoints of a run, by step. What an earlier call with the same settings found is kept.

    Args:
        run: The run folder.
        data: As of `evaluate`.
        overrides: As of `evaluate`.
        out: Where each is added as a JSON line; None: RUN/evaluations/checkpoints.jsonl.
        num_examples: As of `evaluate`.
        device: As of `evaluate`.
        averaged: As of `evaluate`.
        progress: Told step and metrics of each, also of those that were known.

    Raises:
        CheckpointError: There is none, or one is torn; those before it are done.
    """
    from pretrainkit.corpus.manifest import fingerprint
    from pretrainkit.dist.env import init_world
    from pretrainkit.training.checkpoint_files import step_folders
    from pretrainkit.training.evaluation_log import EvaluationLog

    folders = step_folders(RunFolder(run).checkpoints)
    if not folders:
        raise CheckpointError(
            f"{run} has no checkpoints\n  give a run folder; one model alone is evaluated without this"
        )
    first = open_model(next(iter(folders.values())), averaged=averaged)
    config = _evaluation_config(first, run, data, overrides, num_examples)
    parts = {name: value for name, value in config.model_dump(mode="json").items() if name in _EVALUATED}
    default = RunFolder(run).path / "evaluations" / "checkpoints.jsonl"
    log = EvaluationLog(default if out is None else Path(out), fingerprint([parts, averaged])[:16])
    world = init_world(device)
    try:
        evaluations = None
        for step, folder in folders.items():
            if step not in world.on_main(lambda: list(log.metrics_by_step)):
                evaluations = evaluations or _evaluations(first.recipe, config, world, None)
                model = open_model(folder, averaged=averaged).model.to(world.device)
                metrics = _evaluated(evaluations, model, f"{step:06d}")
                world.on_main(partial(log.add, step, metrics))
            if world.is_main:
                progress(step, log.metrics_by_step[step])
        known = world.on_main(lambda: list(log.metrics_by_step.items()))
        return {step: metrics for step, metrics in known if step in folders}
    finally:
        world.close()


def open_model(
    path: str | Path, *, step: int | None = None, recipe: str | None = None, averaged: bool = False
) -> Opened:
    """A model with all that is needed to use it, from a run folder, a checkpoint folder, or an export.

    Args:
        path: The folder.
        step: Of a run folder: this checkpoint instead of the newest valid one.
        recipe: Of a Hugging Face folder: who reads it; None: the recipe that knows its `model_type`.
        averaged: Of a run or checkpoint: the average of the weights that `ema_decay` keeps.

    Raises:
        CheckpointError, DataError: Missing, torn, or not ours; or there is no average.
    """
    path = _existing(path)
    config, weights, tokenizer = _read_model(path, step, recipe, averaged)
    found = find_recipe(config.recipe)
    model = _with_weights(found, config, weights, path)
    return Opened(model, config, found, tokenizer if tokenizer.is_dir() else None)


def _existing(path: str | Path) -> Path:
    """Raises DataError where there is no such folder."""
    if not Path(path).is_dir():
        raise DataError(f"there is no folder {path}\n  give a run, a checkpoint (RUN/checkpoints/step-…) or an export")
    return Path(path)


def _with_weights(recipe: Recipe, config: Any, weights: Mapping[str, Any], path: str | Path) -> nn.Module:
    """The model of a config in evaluation mode on CPU, with the weights that came from `path`."""
    import torch

    from pretrainkit.dist.weights import allocate, require_same_tensors

    with torch.device("meta"):
        model = recipe.build_model(config)
    allocate(model, "cpu")
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name in weights}
    require_same_tensors(wanted, {name: tuple(weights[name].shape) for name in wanted}, str(path))
    missing, unexpected = model.load_state_dict(dict(weights), strict=False)
    if missing or unexpected:
        raise CheckpointError(
            f"the weights in {path} do not fit recipe {config.recipe!r}\n"
            f"  missing: {missing[:4]}\n  unexpected: {unexpected[:4]}"
        )
    return model.eval()


def _read_model(
    path: Path, step: int | None, recipe: str | None, averaged: bool
) -> tuple[Any, Mapping[str, Any], Path]:
    """(config, weights, folder where the tokenizer would be)."""
    from pretrainkit.dist.weights import require_same_architecture
    from pretrainkit.exporting.native import WEIGHTS
    from pretrainkit.exporting.safetensors import read_tensors
    from pretrainkit.training.checkpoint import read_weights
    from pretrainkit.training.checkpoint_files import read_checkpoint

    is_export = (path / "config.json").is_file() or (path / WEIGHTS).is_file()
    if averaged and is_export:
        raise CheckpointError(f"{path} is an export: it holds one set of weights\n  ask the run it came from")
    if (path / "config.json").is_file():  # Hugging Face
        reader = find_recipe(recipe or _recipe_of_export(path))
        config, weights = reader.import_huggingface(path)
        return config, weights, path
    if (path / WEIGHTS).is_file():  # our own export
        return load_config(RunFolder(path).config_tree()), read_tensors(path), path / "tokenizer"
    run, checkpoint = _checkpoint_of(path, step)
    config = load_config(run.config_tree())
    weights = read_weights(checkpoint)
    saved = read_checkpoint(checkpoint).meta.get("architecture", {})
    require_same_architecture(architecture(config.model), saved, f"checkpoint {checkpoint}")
    if averaged:
        weights |= read_weights(checkpoint, "ema.")
    return config, weights, run.path / "tokenizer"


def _checkpoint_of(path: Path, step: int | None) -> tuple[RunFolder, Path]:
    """(run, checkpoint) of a run folder, where None is the newest step, or of a checkpoint in it."""
    from pretrainkit.exporting.native import WEIGHTS
    from pretrainkit.training.checkpoint_files import folder_name, newest_valid

    if not path.is_dir():
        raise DataError(f"there is no folder {path}\n  give a run or a checkpoint (RUN/checkpoints/step-…)")
    if (path / WEIGHTS).is_file():
        raise CheckpointError(
            f"{path} holds weights alone\n  give a run, or a checkpoint in it (RUN/checkpoints/step-…)"
        )
    is_checkpoint = (path / "meta.json").is_file()
    run = RunFolder(path.parent.parent if is_checkpoint else path)
    checkpoint = path if is_checkpoint else newest_valid(run.checkpoints)
    if step is not None:
        checkpoint = run.checkpoints / folder_name(step)
    if checkpoint is None or not checkpoint.is_dir():
        run.config_tree()  # raises where this is no run at all
        raise CheckpointError(
            f"{path} has no valid checkpoint{'' if step is None else f' of step {step}'}\n"
            "  train it further, or give a checkpoint or an export that is whole"
        )
    return run, checkpoint


def load_model(path: str | Path) -> nn.Module:
    """The trained model of a run, checkpoint or export: a plain `nn.Module` in evaluation mode on CPU."""
    return open_model(path).model


def generate(
    path: str | Path, prompts: Iterable[str], *, averaged: bool = False, **options: Any
) -> list[dict[str, Any]]:
    """What a trained model answers to each prompt: BERT fills in masked words, CLIP finds images, T5 answers.

    Args:
        path: A run, checkpoint or export.
        prompts: Texts.
        averaged: The average of the weights that `ema_decay` keeps.
        options: The recipe's `generate_options`.

    Returns:
        Per prompt a dict of plain values; "text" is what the command line prints.
    """
    return open_model(path, averaged=averaged).generate(prompts, **options)


def infer(
    path: str | Path,
    out: str | Path,
    *,
    task: str | None = None,
    split: str = "test",
    input: str | Path | None = None,
    overrides: Iterable[str] = (),
    modules: Iterable[str] = (),
    shard: tuple[int, int] = (0, 1),
    chunk_batches: int = 20,
    overwrite: bool = False,
    device: str | None = None,
    averaged: bool = False,
    progress: Progress | None = None,
    **request: Any,
) -> Path:
    """Ask a trained model about all examples of a task, or all rows of a file; JSON lines go to the file `out`.

    The same call goes on where an interrupted one stopped, and does nothing where it is finished.

    Args:
        path: A run, checkpoint or export.
        out: A file such as answers.jsonl.
        task: Name of a task; its module is one of the run's `data.modules`, or of `modules`.
        split: Of the task.
        input: Instead of a task: a file of rows, see `pretrainkit.data.row_files.open_rows`.
        overrides: Settings `data....=` and `precision....=` other than in its config.
        modules: More modules that define tasks.
        shard: This part of so many, from 0; `out` gets its number. Parts joined in order are the whole.
        chunk_batches: A resume point after every so many batches.
        overwrite: Replace what another call wrote to `out`.
        device: None: the best there is.
        averaged: The average of the weights that `ema_decay` keeps.
        progress: Told how far the work is.
        request: Fields of `pretrainkit.training.inference.InferenceRequest`: mode, inputs, targets, lengths, fields,
            has_ids, batch_size, decoding.

    Returns:
        The file. Beside it lies its manifest, which is written last.

    Raises:
        InputError: The recipe cannot, both or neither of `task` and `input` were given, or `out` is of another call.
    """
    from pretrainkit.corpus.parallel import Quiet
    from pretrainkit.data.row_files import open_rows
    from pretrainkit.dist.env import init_world
    from pretrainkit.dist.weights import weights_fingerprint
    from pretrainkit.eval.infer import write_lines
    from pretrainkit.training.inference import InferenceRequest
    from pretrainkit.training.precision import resolve_precision

    if (task is None) == (input is None):
        raise InputError("give either a task or an input\n  such as --task NAME --split test, or --input rows.jsonl")
    if chunk_batches < 1:
        raise InputError(f"chunk_batches is {chunk_batches}; it is a number of batches, at least 1")
    asked = InferenceRequest(task=task, split=split, rows=None if input is None else open_rows(input, split), **request)
    from pretrainkit.data.user_modules import import_modules

    import_modules(modules)
    opened = open_model(path, averaged=averaged)
    config = _overridden(opened, overrides)
    if opened.tokenizer is None and not opened.recipe.has_own_vocabulary(config):
        raise DataError(f"there is no tokenizer beside {path}\n  a run keeps it in RUN/tokenizer")
    world = init_world(device)
    try:
        if world.world_size > 1:
            raise InputError("infer runs in one process\n  start several with --shard 0/4, --shard 1/4, and so on")
        weights = weights_fingerprint(opened.model)
        model = opened.model.to(world.device)
        precision = resolve_precision(config.precision, world.device)
        inference = opened.recipe.open_inference(config, model, opened.tokenizer, asked, precision)
        return write_lines(
            inference,
            Path(out),
            asked={"weights": weights, "precision": str(precision.compute_dtype).removeprefix("torch.")},
            chunk_size=chunk_batches * asked.batch_size,
            shard=shard,
            overwrite=overwrite,
            progress=progress or Quiet(),
        )
    finally:
        world.close()


def predict(
    path: str | Path, out: str | Path, *, input: str | Path | None = None, task: str | None = None, **options: Any
) -> Path:
    """What a fine-tuned model answers to the rows of a file, or of a split of a task: `infer` for recipe glue.

    Args:
        path: A run, checkpoint or export.
        out: A file such as answers.jsonl.
        input: A file of rows with the columns that the run was trained on.
        task: Instead: a task of GLUE; None: that of the run.
        options: Others of `infer`, such as split.

    Raises:
        InputError: The model is not fine-tuned, or there is neither an input nor a task.
    """
    config = _read_model(_existing(path), None, None, False)[0]
    if config.recipe != "glue":
        raise InputError(
            f"{path} is a model of recipe {config.recipe!r}, not a fine-tuned one\n"
            "  train it further: pretrainkit finetune TASK --from RUN; or ask it with pretrainkit infer"
        )
    if input is None and task is None:
        task = config.data.task or "own"
    return infer(path, out, task=task, input=input, **options)


def probe(
    path: str, data: str | Path, *, device: str | None = None, **settings: Any
) -> dict[str, float | dict[str, float]]:
    """How well the frozen image encoder of a model tells classes apart: linear probes and nearest neighbours.

    Args:
        path: A run, checkpoint or export; or `timm:NAME`, an encoder of timm with its published weights.
        data: A folder with train/CLASS/IMAGE and val/CLASS/IMAGE.
        device: None: the best there is.
        settings: Fields of `pretrainkit.eval.probe_config.ProbeConfig`.

    Returns:
        Accuracies in percent by name, see `pretrainkit.eval.probe.probe`.

    Raises:
        ConfigError: Unknown or impossible settings.
    """
    from pydantic import ValidationError

    from pretrainkit.eval.probe_config import ProbeConfig

    try:
        config = ProbeConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(
            [f"probe: {'.'.join(map(str, one['loc']))} is {one['input']!r}: {one['msg']}" for one in error.errors()]
        ) from None

    from pretrainkit.dist.env import init_world
    from pretrainkit.eval.probe import probe as probe_encoder
    from pretrainkit.training.precision import resolve_precision
    from pretrainkit.training.run import PrecisionConfig

    world = init_world(device)
    try:
        if world.world_size > 1:
            raise InputError("probing runs in one process\n  start it without a launcher")
        if path.startswith("timm:"):
            from pretrainkit.recipes.clip.image_encoder import timm_encoder

            encoder = timm_encoder(path.removeprefix("timm:"))
        else:
            opened = open_model(path)
            encoder = opened.recipe.image_encoder(opened.config, opened.model)
        encoder.module.to(world.device)
        return probe_encoder(encoder, Path(data), config, resolve_precision(PrecisionConfig(), world.device))
    finally:
        world.close()


def export(path: str | Path, format: str, out: str | Path, *, averaged: bool = False) -> Path:
    """Write the weights of a run or checkpoint for others: `export("runs/x", "huggingface", "out")`.

    Formats: "huggingface" (what `transformers` loads); "safetensors" (config.yaml, model.safetensors, tokenizer/); and
    the recipe's `export_formats`, whose `out` is a file.
    `averaged`: the average of the weights that `ema_decay` keeps.

    Raises:
        InputError: Unknown format, `out` exists or cannot be written.
    """
    from pretrainkit.exporting.folder import new_file
    from pretrainkit.exporting.native import write_native

    opened = open_model(path, averaged=averaged)
    if format in opened.recipe.export_formats:
        with new_file(Path(out)) as aside:
            opened.recipe.export_file(opened.config, opened.model, format, aside)
    elif format == "huggingface":
        opened.recipe.export_huggingface(opened.config, opened.model, opened.tokenizer, Path(out))
    elif format == "safetensors":
        write_native(opened.config, opened.model, opened.tokenizer, Path(out))
    else:
        known = ", ".join(("huggingface", "safetensors", *opened.recipe.export_formats))
        raise InputError(f"unknown export format {format!r} of recipe {opened.recipe.name!r}\n  formats: {known}")
    return Path(out)


def import_model(
    path: str | Path,
    recipe: str,
    out: str | Path,
    *,
    format: str = "huggingface",
    config: str | Path | None = None,
    tokenizer: str | Path | None = None,
) -> Path:
    """Read a model of another library into ours, which `init_from`, `evaluate` and `generate` take.

    The whole model is built and checked before anything is written.

    Args:
        path: "huggingface": a folder that transformers wrote. Other formats: a file, or what the format has.
        recipe: Which recipe the model belongs to.
        out: The new folder.
        format: "huggingface", or one of the recipe's `file_formats`.
        config: Preset or YAML file that says the architecture of a file; None: as the file says, or the usual one.
        tokenizer: Folder of the model's tokenizer, where none lies beside it; a copy is kept.

    Raises:
        InputError: Unknown format, the file is broken or of another architecture, or `out` exists.
    """
    from pretrainkit.exporting.native import write_native

    given = None if tokenizer is None else _tokenizer_given(Path(tokenizer))
    if format != "huggingface":
        reader = find_recipe(recipe)
        found = read_foreign_model(path, recipe, format=format, config=config)
        model = _with_weights(reader, found.config, found.state, path)
        write_native(found.config, model, given, Path(out))
        return Path(out)
    if config is not None:
        raise InputError(f"config={config} is for files; {path} says its own architecture\n  leave it out")
    if not (Path(path) / "config.json").is_file():
        raise DataError(
            f"{path} is not a folder that transformers wrote: it has no config.json\n"
            "  runs, checkpoints and exports of ours are read as they are, by init_from=, evaluate and generate"
        )
    opened = open_model(path, recipe=recipe)
    write_native(opened.config, opened.model, given or opened.tokenizer, Path(out))
    return Path(out)


def difference_from_huggingface(path: str | Path) -> float:
    """The largest difference between the outputs of a run, checkpoint or export and those of transformers for the same
    weights, on random inputs in float32.

    Raises:
        InputError: The recipe has no such comparison, or the model no Hugging Face form.
    """
    from tempfile import TemporaryDirectory

    from pretrainkit.exporting.torchvision_shim import import_transformers

    opened = open_model(path)
    import_transformers()
    with TemporaryDirectory() as folder:
        opened.recipe.export_huggingface(opened.config, opened.model, None, Path(folder, "model"))
        return opened.recipe.difference_from_huggingface(opened.config, opened.model, Path(folder, "model"))


def read_foreign_model(
    path: str | Path, recipe: str, *, format: str, config: str | Path | None = None
) -> ImportedModel:
    """What `import_model` would make of a file of another system, with the names of its tensors; writes nothing."""
    reader = find_recipe(recipe)
    if format not in reader.file_formats:
        known = ", ".join(("huggingface", *reader.file_formats))
        raise InputError(f"recipe {recipe!r} does not read the format {format!r}\n  formats: {known}")
    return reader.import_file(Path(path), format, None if config is None else load_config(config))


def _tokenizer_given(folder: Path) -> Path:
    if _tokenizer_fingerprint(folder) is None:
        raise DataError(f"{folder} is no folder of a tokenizer\n  give one with tokenizer.json or sentencepiece.model")
    return folder


# ---- what the functions above share ----


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


def with_num_steps(config: Any, loader: Loader) -> Any:
    """The config with lengths in steps where it gives them in passes over the data."""
    if config.num_steps is None:
        num_steps = loader.first_step + max(1, loader.num_steps_for(config.data.num_epochs))
        config = config.model_copy(update={"num_steps": num_steps})
    if config.evaluate.every_epochs is not None:
        every = {"every_steps": max(1, loader.num_steps_for(config.evaluate.every_epochs)), "every_epochs": None}
        config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update=every)})
    check_config(config, loader.world_size)
    return config


def _run(
    config: RunConfig, folder: RunFolder, origins: Origins, watcher: Watcher, device: str | None, *, resuming: bool
) -> dict[str, float]:
    """Everything between a config and the last metrics, for `train` and `resume`."""
    recipe = find_recipe(config.recipe)
    if resuming:
        config = _with_kept_tokenizer(recipe, config, folder)
    else:
        _refuse_idle_evaluation(config, origins)
        config = _with_first_step(config)
    config = _with_extra_steps(config)
    config = _checked(recipe, absolute_paths(config))  # before torch, which takes a second and a half to import

    import torch

    from pretrainkit.dist.env import init_world
    from pretrainkit.training.precision import resolve_precision
    from pretrainkit.training.trainer import Trainer, initial_seed

    world = init_world(device)
    try:
        source = recipe.open_data(config, "train")
        loader = build_loader(config, source, rank=world.rank, world_size=world.world_size)
        config = with_num_steps(config, loader)
        evaluations = _evaluations(recipe, config, world, folder.path) if config.has_held_out_data else []
        torch.manual_seed(initial_seed(config.seed))
        model = _fresh_model(recipe, config, world, filled_later=resuming)
        if config.init_from is not None and not resuming:
            _load_initial(model, config)
        precision = resolve_precision(config.precision, world.device)
        if not resuming:
            world.on_main(folder.prepare)
        start = (lambda: load_model(folder.path).to(world.device)) if resuming else (lambda: model)
        cached = recipe.with_cached_features(config, source, start, folder.cache, world, precision)
        if cached is not source:
            source, loader = cached, build_loader(config, cached, rank=world.rank, world_size=world.world_size)
        objective = recipe.build_objective(config)
        try:
            trainer = Trainer(config, folder, world, model, objective, loader, evaluations, watcher)
            if config.init_from is not None and config.init.restore == "all" and not resuming:
                trainer.go_on_from(_checkpoint_of(Path(config.init_from), config.first_step)[1])
        except InputError:  # such as a disk without room for one checkpoint
            if world.is_main and not resuming:
                folder.discard()
            raise
        if resuming and not trainer.restore():
            raise CheckpointError(
                f"{folder.path} has no valid checkpoint to go on from: every one is torn\n"
                "  restore one from a copy, or train again in another folder"
            )
        if trainer.stopped_early is not None:
            raise InputError(
                f"{folder.path} ended early at step {trainer.step}: {trainer.stopped_early}\n"
                f"  to go on all the same: pretrainkit resume {quote(str(folder.path))} evaluate.early_stopping=null"
            )
        if trainer.step >= config.total_steps:
            raise InputError(
                f"{folder.path} is finished: step {trainer.step} of {config.total_steps}\n"
                f"  to train longer: pretrainkit resume {quote(str(folder.path))} num_steps={2 * trainer.step}"
            )
        summary_of_data = source.summary() if world.is_main else {}
        world.on_main(lambda: _record(folder, config, origins, summary_of_data, trainer.step if resuming else 0))
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
        if world.is_main and config.has_held_out_data:
            summary = {
                "parameters": trainer.num_parameters,
                "steps": trainer.step,
                **metrics,
                **recipe.baselines(config),
            }
            folder.write_json("summary.json", {name: json_value(value) for name, value in summary.items()})
        # What is held out may be classes of images alone, which are no examples of the training.
        if (
            world.is_main
            and config.has_held_out_data
            and any(config.data.model_dump(include={*recipe.held_out_fields}).values())
        ):
            # A forward pass of a sharded model needs all ranks; what was saved last is whole.
            is_sharded = config.parallel.strategy == "fsdp2"
            trained = load_model(folder.path) if is_sharded else trainer.plain_model
            samples = recipe.sample(config, trained, recipe.open_data(config, "valid"), num=8)
            folder.write_json("samples.json", samples)
        return metrics
    finally:
        world.close()


def _fresh_model(recipe: Recipe, config: Any, world: World, *, filled_later: bool) -> nn.Module:
    """The model on this rank's device; without values where a checkpoint brings them, so that a resumed run needs no
    published weights that it started from."""
    import torch

    from pretrainkit.dist.weights import allocate

    if not filled_later:
        return recipe.build_model(config).to(world.device)
    with torch.device("meta"):
        model = recipe.build_model(config)
    return allocate(model, str(world.device))


def _checked(recipe: Recipe, config: Any) -> Any:
    """The config bound to its data, or ConfigError and DataError with what does not fit on this number of ranks."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    num_ranks = int(world_size) if world_size.isdecimal() else 1  # init_world complains about what is no number
    check_config(config, num_ranks)
    if not config.has_training_data:
        raise ConfigError(
            "data.train is empty: there is nothing to train on\n  give token shards: data.train=FOLDER\n"
            "  made by: pretrainkit tokenizer encode CORPUS --tokenizer DIR --out FOLDER"
        )
    if config.parallel.strategy == "fsdp2" and num_ranks == 1:
        raise ConfigError("parallel.strategy=fsdp2 needs more than one rank\n  start with --launch local --nproc 2")
    config = recipe.bind(_with_encoder(recipe, config))
    check_config(config, num_ranks)
    return config


def _with_encoder(recipe: Recipe, config: Any) -> Any:
    """The config of a recipe that stands on an encoder, with what it is; a config that was bound before says that."""
    if not recipe.stands_on_encoder or config.init_from is None or config.model.encoder is not None:
        return config
    found, _, tokenizer = _read_model(_existing(config.init_from), config.init.step, None, config.init.averaged)
    return recipe.with_encoder(config, found.recipe, found, tokenizer if tokenizer.is_dir() else None)


def _record(folder: RunFolder, config: RunConfig, origins: Origins, data: Mapping[str, Any], step: int) -> None:
    """Write what this run is: config, where its values came from, data, code; when it goes on, one entry more."""
    provenance = folder.provenance() or {"data": data, **environment()}
    if step:
        provenance.setdefault("resumed", []).append({"step": step, **environment()})
    folder.record(config, {**provenance, "sources": origins})
    _keep_tokenizer(folder, find_recipe(config.recipe).tokenizer_folder(config))


def _evaluation_config(
    opened: Opened, path: str | Path, data: str | None, overrides: Iterable[str], num_examples: int | None
) -> Any:
    """The config of a trained model for evaluating it, on `data` where some is given.

    Raises:
        ConfigError, DataError: There is no held-out data, or it does not fit the model.
    """
    overrides = list(overrides)
    config = _only_held_out(opened.recipe, _overridden(opened, overrides), overrides)
    if data is not None:
        config = _with_held_out(opened.recipe, config, data, overrides)
    if not config.has_held_out_data:
        raise DataError(
            f"{path} names no held-out data\n  give some: pretrainkit evaluate {quote(str(path))} --data FOLDER"
        )
    if num_examples is not None:
        config = config.model_copy(update={"evaluate": config.evaluate.limited_to(num_examples)})
    _require_same_tokenizer(opened, path, config.data.valid)
    return config


def _evaluated(evaluations: Iterable[Evaluation], model: nn.Module, tag: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for evaluation in evaluations:
        found |= evaluation.run(model, tag)
    return found


def _evaluations(recipe: Recipe, config: Any, world: World, folder: Path | None) -> list[Evaluation]:
    """Held-out losses, and what else the recipe evaluates."""
    from pretrainkit.training.precision import resolve_precision

    precision = resolve_precision(config.precision, world.device)
    held_out = _evaluator(recipe, config, world, precision)
    return [
        *recipe.more_evaluations(config, world, precision, folder),
        Evaluation(lambda model, tag: held_out(model), config.evaluate.every_steps),
    ]


def _evaluator(recipe: Recipe, config: Any, world: World, precision: Any) -> Any:
    """A function of the model: metrics on the first `evaluate.num_examples` of a fixed shuffle of the held-out data.

    Every one of them is scored once, in the same batches, whatever the number of ranks.
    """
    import numpy as np

    from pretrainkit.data.order import Order
    from pretrainkit.eval.evaluator import dealt
    from pretrainkit.eval.evaluator import evaluate as evaluate_batches

    if (own := recipe.build_evaluator(config, world, precision)) is not None:
        return own
    source = recipe.open_data(config, "valid")
    objective = recipe.build_objective(config)
    order = Order(source.sizes, weights=[None] * len(source.sizes), mode="shuffle", seed=0, batch_size=1)
    num_examples, size = min(config.evaluate.num_examples, sum(source.sizes)), config.evaluate.batch_size
    numbers, num_counted = dealt(-(-num_examples // size), world)

    def held_out() -> Iterator[dict[str, np.ndarray]]:
        for number in numbers:
            yield source.build(order.records(np.arange(number * size, min((number + 1) * size, num_examples))))

    return lambda model: evaluate_batches(
        objective, model, held_out(), precision=precision, world=world, num_counted=num_counted
    )


def _with_first_step(config: Any) -> Any:
    """The config with the step that it goes on from, where it takes over the whole state of another run."""
    if config.init_from is None or config.init.restore != "all":
        return config
    from pretrainkit.training.checkpoint_files import read_checkpoint

    step = read_checkpoint(_checkpoint_of(Path(config.init_from), config.init.step)[1]).step
    if config.first_step not in (0, step):
        raise ConfigError(
            f"first_step={config.first_step}, but init.restore=all goes on at step {step} of {config.init_from}\n"
            "  leave first_step out, or choose another checkpoint with init.step"
        )
    return config.model_copy(update={"first_step": step})


def _with_extra_steps(config: Any) -> Any:
    """The config with num_steps where it gives the updates of this run alone."""
    if config.num_extra_steps is None:
        return config
    num_steps = config.first_step + config.num_extra_steps
    return config.model_copy(update={"num_steps": num_steps, "num_extra_steps": None})


def _load_initial(model: nn.Module, config: Any) -> None:
    """Copy the weights of `init_from` into a fresh model, for data of the same tokenizer."""
    from pretrainkit.dist.weights import copy_beginnings
    from pretrainkit.training.initial import plan_initial

    # A run that is still training may have saved since its step was looked at.
    step = config.first_step if config.init.restore == "all" else config.init.step
    opened = open_model(config.init_from, step=step, averaged=config.init.averaged)
    if find_recipe(config.recipe).stands_on_encoder:
        recipe = find_recipe(config.recipe)
        recipe.load_encoder(config, model, opened.recipe.name, opened.config, opened.model)
        return
    found = opened.model.state_dict()
    wanted, given = (
        {name: tuple(tensor.shape) for name, tensor in state.items()} for state in (model.state_dict(), found)
    )
    plan = plan_initial(
        wanted,
        given,
        config.init,
        f"init_from={config.init_from}",
        (architecture(config.model), architecture(opened.config.model)),
    )
    if not config.init.grow:
        _require_same_tokenizer(opened, config.init_from, config.data.train)
    copy_beginnings(model, {name: found[source] for name, source in plan.sources.items()})
    for what, names in (("stay as they were drawn", plan.drawn), ("of the checkpoint are not read", plan.ignored)):
        if names:
            _log.warning("init_from: %d tensors %s, such as %s", len(names), what, ", ".join(names[:3]))


def _require_same_tokenizer(opened: Opened, path: str | Path, sources: Iterable[SourceConfig]) -> None:
    """Refuse token shards whose ids mean other pieces than the model's. Without copies of both, nothing is known."""
    own = _tokenizer_fingerprint(opened.tokenizer) if opened.tokenizer is not None else None
    for source in sources:
        theirs = _tokenizer_fingerprint(Path(source.path) / "tokenizer")
        if own is not None and theirs is not None and own != theirs:
            raise DataError(
                f"{source.path} was made with another tokenizer ({theirs[:12]}) than the model in {path} ({own[:12]})\n"
                "  encode the text with the model's: "
                f"pretrainkit tokenizer encode CORPUS --tokenizer {opened.tokenizer} --out FOLDER"
            )


def _tokenizer_fingerprint(folder: Path) -> str | None:
    from pretrainkit.tokenizers.folder import MODEL, TOKENIZER_JSON, model_fingerprint

    is_there = any((folder / name).is_file() for name in (MODEL, TOKENIZER_JSON))
    return model_fingerprint(folder) if is_there else None


def _keep_tokenizer(folder: RunFolder, origin: Path | None) -> None:
    """Copy the tokenizer of the training data into the run, so that the run can be used when the data is gone."""
    from pretrainkit.exporting.folder import new_folder

    target = folder.path / "tokenizer"
    if origin is not None and origin.is_dir() and not target.exists():
        with new_folder(target) as aside:  # the folder may be that of a whole model
            shutil.copytree(origin, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_OF_TOKENIZERS))


def _with_kept_tokenizer(recipe: Recipe, config: RunConfig, folder: RunFolder) -> RunConfig:
    """The config with the run's own copy of its tokenizer where the original is gone."""
    kept = folder.path / "tokenizer"
    try:
        recipe.tokenizer_folder(config)
    except DataError:
        if not kept.is_dir():
            raise
        return recipe.with_tokenizer(config, kept.resolve())
    return config


def _refuse_idle_evaluation(config: RunConfig, origins: Origins) -> None:
    """Presets say when to evaluate, whether or not there is something to evaluate on; who asks for it must have it."""
    asked = [
        f"evaluate.{name}={value}"
        for name in ("every_steps", "every_epochs")
        if (value := getattr(config.evaluate, name)) is not None and origins.get(f"evaluate.{name}") == "command line"
    ]
    if asked and not config.has_held_out_data:
        raise ConfigError(
            f"{asked[0]}, but there is nothing to evaluate on\n  give held-out data, data.valid=..., or leave it out"
        )


def _overridden(opened: Opened, overrides: Iterable[str]) -> Any:
    """The config of a trained model with other settings of what it is used on."""
    overrides, config = list(overrides), opened.config
    if fixed := [word for word in overrides if word.split(".")[0] not in ("evaluate", "data", "precision")]:
        raise ConfigError(
            f"{', '.join(fixed)}: a trained model is what it is\n"
            "  evaluation can change settings of evaluate, data and precision"
        )
    if overrides:
        config = load_config(config.model_dump(mode="json"), overrides)
    return config if opened.tokenizer is None else opened.recipe.with_tokenizer(config, opened.tokenizer)


def _with_held_out(recipe: Recipe, config: Any, data: str, overrides: Iterable[str]) -> Any:
    """The config with `data` held out, in place of whatever it says is."""
    if both := [*_held_out_words(recipe, overrides).values()]:
        raise ConfigError(f"--data {data} and {both[0]} both say what to evaluate on\n  give one of them")
    update = _without_held_out(recipe, config) | {"valid": _sources(config, data)}
    return config.model_copy(update={"data": config.data.model_copy(update=update)})


def _only_held_out(recipe: Recipe, config: Any, overrides: Iterable[str]) -> Any:
    """The config with what an override says is held out in place of what the run said."""
    given = {name: word for name, word in _held_out_words(recipe, overrides).items() if getattr(config.data, name)}
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given.values())} both say what to evaluate on\n  give one of them")
    if not given:
        return config
    update = {name: empty for name, empty in _without_held_out(recipe, config).items() if name not in given}
    return config.model_copy(update={"data": config.data.model_copy(update=update)})


def _held_out_words(recipe: Recipe, overrides: Iterable[str]) -> dict[str, str]:
    """Those of `Recipe.held_out_fields` that are overridden, and the words that do."""
    words = {word.split("=")[0].removeprefix("data."): word for word in overrides if word.startswith("data.")}
    return {name: words[name] for name in recipe.held_out_fields if name in words}


def _without_held_out(recipe: Recipe, config: Any) -> dict[str, Any]:
    """Fields of the data's config that say nothing is held out."""
    return {name: type(config.data).model_fields[name].default for name in recipe.held_out_fields}


def _sources(config: Any, path: str) -> Any:
    return type(config.data).model_validate({**config.data.model_dump(), "valid": path}).valid


def _recipe_of_export(folder: Path) -> str:
    """The recipe that reads the `model_type` of a Hugging Face folder."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    for entry in entries().values():
        if kind in entry.load().huggingface_types:
            return entry.name
    raise DataError(f"{folder}/config.json says model_type {kind!r}, which no recipe reads")
