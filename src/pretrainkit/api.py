"""The Python API. The command line is built on it.

These functions print nothing, and import torch only when they need it. Code that several of them share is in `running`.
`device` is a name such as "cpu" or "cuda"; None chooses the best device. `progress` and `watcher` receive the progress
of the work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import ValidationError

from pretrainkit.config.explain import explain
from pretrainkit.config.loader import Origins
from pretrainkit.errors import CheckpointError, ConfigError, InputError
from pretrainkit.eval.inference import InferenceRequest, RequestOptions
from pretrainkit.eval.probe_config import ProbeConfig, ProbeOptions
from pretrainkit.files.manifest import fingerprint
from pretrainkit.recipes.capabilities import (
    BuildsOnEncoder,
    DataCheck,
    EncodesImages,
    Evaluates,
    GenerateOptions,
    Infers,
)
from pretrainkit.recipes.registry import able, find_recipe, recipes_able
from pretrainkit.running.configs import check_config, load_config, recorded_config, resolve_config
from pretrainkit.running.doctor import diagnose
from pretrainkit.running.exchange import (
    difference_from_huggingface,
    export,
    import_config,
    import_model,
    read_foreign_model,
)
from pretrainkit.running.held_out import (
    EVALUATED,
    build_evaluations,
    evaluated,
    evaluation_config,
    new_table,
    overridden,
)
from pretrainkit.running.hours import with_steps_for
from pretrainkit.running.initial import build_loader, with_num_steps
from pretrainkit.running.opened import Opened, load_model, open_model
from pretrainkit.running.pictures import (
    decode_tokens,
    image_decoder,
    open_image_tokenizer,
    open_renderer,
    render,
    tokenize_images,
)
from pretrainkit.running.plan import make_plan
from pretrainkit.running.run import run_training
from pretrainkit.training.checkpoints.files import step_folders
from pretrainkit.training.folder import EvaluationLog, RunFolder
from pretrainkit.training.run import PrecisionConfig, RunConfig
from pretrainkit.training.watch import Watcher

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from pretrainkit.project.new import Project
    from pretrainkit.workers.processes import Progress

__all__ = [
    "Opened",
    "batches",
    "build_loader",
    "build_model",
    "check_config",
    "check_data",
    "decode_tokens",
    "diagnose",
    "difference_from_huggingface",
    "evaluate",
    "evaluate_checkpoints",
    "export",
    "generate",
    "import_config",
    "import_model",
    "infer",
    "load_config",
    "load_model",
    "make_plan",
    "new_project",
    "open_image_tokenizer",
    "open_model",
    "open_renderer",
    "predict",
    "probe",
    "read_foreign_model",
    "render",
    "resolve_config",
    "resume",
    "tokenize_images",
    "train",
    "with_num_steps",
]


def check_data(config: RunConfig, *, num: int = 2, deep: bool = False, progress: Progress | None = None) -> DataCheck:
    """Check the training data of a config, without training. Return sizes, epochs, shares of a mixture, lengths,
    languages, held-out examples that are also in the training data, examples as the model reads them, and the
    statistics and checks of its recipe.

    Args:
        num: Number of examples to show of each component.
        deep: True to read every record first, including held-out data. If some are unusable, return only these
            problems.

    Raises:
        ConfigError, DataError: Config and data do not match.
    """
    from pretrainkit.running.data_check import check_data
    from pretrainkit.workers.processes import Quiet

    return check_data(config, num, deep, progress or Quiet())


def build_model(config: RunConfig, device: str = "cpu") -> nn.Module:
    """Return the newly initialized model of a config, a plain `nn.Module`. On "meta" it has shapes but no memory."""
    import torch

    from pretrainkit.training.trainer import initial_seed

    torch.manual_seed(initial_seed(config.seed))
    with torch.device(device):
        return find_recipe(config.recipe).build_model(config)


def batches(config: RunConfig, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Yield the batches (of all ranks together) of the steps from `start_step` to `num_steps`, exactly as in `train`.

    A batch is a dict of NumPy arrays.
    """
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
    hours: float | None = None,
) -> dict[str, float]:
    """Train a new run in the folder `out`, and return the last metrics.

    Args:
        out: A new or empty folder.
        origins: Origin of each value of the config, which is recorded in the run.
        hours: Train as many steps as fit into this time on this device, as measured by a trial of up to 20 seconds.
        resume: True to resume with this config if `out` has a checkpoint, for schedulers that repeat a command. The
            config may only change the settings that `resume` may change.

    Raises:
        ConfigError, DataError: Config, data and options do not match. Nothing was computed.
        Interrupted: Stopped by a signal; the state was saved.
    """
    folder = RunFolder(out)
    resuming, origins, watcher = resume and folder.has_checkpoint, origins or {}, watcher or Watcher()
    if hours is not None:
        if not resuming:
            folder.require_new()
        config, origins = with_steps_for(config, origins, hours, folder, watcher, device)
    return run_training(config, folder, origins, watcher, device, resuming=resuming)


def new_project(
    recipe: str,
    data: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    hours: float | None = None,
    go: bool = False,
    progress: Progress | None = None,
) -> Project:
    """Create a project from raw data: examine the data, choose all settings with a reason for each, and write
    config.yaml, run.sh and README.md to `out`. An existing project of the same data is not changed.

    Args:
        data: Files, folders and globs.
        hours: Time for training; None: half an hour.
        go: True to also run the project, up to its report. Finished stages are not repeated.

    Raises:
        DataError: The data cannot be used.
        InputError: `out` contains anything but this project.
    """
    from pretrainkit.project.new import new_project as create_project
    from pretrainkit.project.new import run_project

    paths = [data] if isinstance(data, str | Path) else list(data)
    project = create_project(recipe, paths, out, hours=hours, progress=progress)
    if go:
        run_project(project)
    return project


def resume(
    run: str | Path, overrides: Iterable[str] = (), *, watcher: Watcher | None = None, device: str | None = None
) -> dict[str, float]:
    """Resume a run exactly from its newest valid checkpoint.

    Overrides may change settings that do not affect earlier steps, such as `num_steps` or `checkpoint.every_steps`.
    Changes of the data, the seed or the batch raise an error.
    """
    folder = RunFolder(run)
    resolved = recorded_config(folder.config_tree(), overrides)
    old = folder.provenance().get("sources", {})
    origins = {k: o if o == "command line" else old.get(k, o) for k, o in resolved.origins.items()}
    if not folder.has_checkpoint:
        raise CheckpointError(
            f"{run} has no checkpoint, so it cannot be resumed\n"
            "  remove the folder and train again, with a smaller checkpoint.every_steps"
        )
    return run_training(resolved.config, folder, origins, watcher or Watcher(), device, resuming=True)


def evaluate(
    path: str | Path,
    data: str | None = None,
    overrides: Iterable[str] = (),
    *,
    num_examples: int | None = None,
    device: str | None = None,
    averaged: bool = False,
    csv: str | Path | None = None,
) -> dict[str, float]:
    """Return the held-out metrics of a run, checkpoint or export.

    Args:
        data: Held-out data that replaces `data.valid` of its config.
        overrides: Settings of evaluate, data, objective and precision (`data.NAME=VALUE`) that replace its own.
        num_examples: Maximum number of examples; None: as in its config.
        averaged: True to use the averaged weights that `ema_decay` keeps, instead of the last weights.
        csv: New file for a table of the metrics. The recipe decides on its columns, such as those of CLIP_benchmark.

    Raises:
        ConfigError: An override changes a setting that cannot be changed after training.
        InputError: The file `csv` exists.
    """
    from pretrainkit.dist.env import init_world

    opened = open_model(path, averaged=averaged)
    config = evaluation_config(opened, path, data, overrides, num_examples)
    with init_world(device) as world, new_table(None if csv is None or world.rank else Path(csv)) as write:
        metrics = evaluated(build_evaluations(opened.recipe, config, world, None), opened.model.to(world.device), "")
        recipe, name = opened.recipe, str(path)
        write(
            recipe.metric_rows(config, metrics, name) if isinstance(recipe, Evaluates) else [{"model": name, **metrics}]
        )
    return metrics


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
    """Return the held-out metrics of all checkpoints of a run, by step. Results of an earlier call with the same
    settings are not computed again. The other options are those of `evaluate`.

    Args:
        out: File to which each result is appended as a JSON line; None: RUN/evaluations/checkpoints.jsonl.
        progress: Called with step and metrics of each checkpoint, also if they are from an earlier call.

    Raises:
        CheckpointError: The run has no checkpoint, or one is damaged. Results of those before it are kept.
    """
    from pretrainkit.dist.env import init_world

    folders = step_folders(RunFolder(run).checkpoints)
    if not folders:
        raise CheckpointError(
            f"{run} has no checkpoints\n  give the folder of a run that has some, or evaluate a single model"
        )
    first = open_model(next(iter(folders.values())), averaged=averaged)
    config = evaluation_config(first, run, data, overrides, num_examples)
    parts = {name: value for name, value in config.model_dump(mode="json").items() if name in EVALUATED}
    if config.objective == first.config.objective:
        del parts["objective"]  # logs of earlier versions do not have it
    default = RunFolder(run).path / "evaluations" / "checkpoints.jsonl"
    log = EvaluationLog(default if out is None else Path(out), fingerprint([parts, averaged])[:16])
    with init_world(device) as world:
        evaluations = None
        for step, folder in folders.items():
            if step not in world.on_main(lambda: list(log.metrics_by_step)):
                evaluations = evaluations or build_evaluations(first.recipe, config, world, None)
                model = open_model(folder, averaged=averaged).model.to(world.device)
                metrics = evaluated(evaluations, model, f"{step:06d}")
                world.on_main(partial(log.add, step, metrics))
            if world.is_main:
                progress(step, log.metrics_by_step[step])
        known = world.on_main(lambda: list(log.metrics_by_step.items()))
        return {step: metrics for step, metrics in known if step in folders}


def generate(
    path: str | Path,
    prompts: Iterable[str],
    *,
    averaged: bool = False,
    device: str | None = None,
    **options: Unpack[GenerateOptions],
) -> list[dict[str, Any]]:
    """Return the answers of a trained model to each prompt: BERT fills in masked words, CLIP finds images, T5 answers,
    4M generates modalities from a caption or other modalities.

    Args:
        path: A run, checkpoint or export.
        averaged: True to use the averaged weights that `ema_decay` keeps.
        options: Options that the model's recipe accepts. Others raise an error.

    Returns:
        A dict of plain values per prompt. Its "text" is printed by the command line.
    """
    from pretrainkit.dist.env import init_world

    given: dict[str, Any] = dict(options)
    if "given" in given:
        warnings.warn("the option `given` of generate is called `inputs` now", DeprecationWarning, stacklevel=2)
        given["inputs"] = given.pop("given")
    with init_world(device) as world:
        if "then" in given:
            models = [open_model(further, averaged=averaged) for further in given["then"]]
            given["then"] = [(model.config, model.model.to(world.device), model.tokenizer) for model in models]
        if "image_tokenizers" in given:
            given["image_decoders"] = dict(map(image_decoder, given.pop("image_tokenizers")))
        opened = open_model(path, averaged=averaged)
        opened.model.to(world.device)
        return opened.generate(prompts, **given)


def infer(
    path: str | Path | Opened,
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
    **request: Unpack[RequestOptions],
) -> Path:
    """Write the predictions of a trained model for all examples of a task, or all rows of a file, as JSON lines.

    The same call continues an interrupted one, and does nothing if it is finished.

    Args:
        path: A run, checkpoint or export, or a model from `open_model`.
        out: A file such as answers.jsonl. For a mixture a folder, with NAME.jsonl for each of its tasks that has the
            split (a colon in a name becomes a hyphen).
        task: Name of a task or mixture, which a module of the run's `data.modules` or of `modules` defines.
        split: Split of the task.
        input: Instead of a task: a file of rows, see `pretrainkit.tasks.row_files.open_rows`, or another kind of file
            that the model was trained on, such as .conllu.
        overrides: Settings `data....=` and `precision....=` that replace those of its config.
        modules: Additional modules that define tasks.
        shard: (index from 0, number of shards). The file name gets the index. Concatenated in order, the files are
            equal to the output without shards.
        chunk_batches: Number of batches between two points from which an interrupted call continues.
        overwrite: True to replace the output of another call.
        averaged: True to use the averaged weights that `ema_decay` keeps.
        request: See `pretrainkit.eval.inference.InferenceRequest`.

    Returns:
        `out`, or the file of the shard. Its manifest is beside each file and is written last.

    Raises:
        InputError: The recipe does not support inference, both or neither of `task` and `input` are given, or `out` was
            written by another call.
    """
    from pretrainkit.dist.env import init_world
    from pretrainkit.dist.weights import weights_fingerprint
    from pretrainkit.eval.inference import folder_of_mixture, write_lines
    from pretrainkit.tasks.user_modules import import_modules
    from pretrainkit.training.precision import resolve_precision
    from pretrainkit.workers.processes import Quiet

    if (task is None) == (input is None):
        raise InputError("give either a task or an input\n  such as --task NAME --split test, or --input rows.jsonl")
    if chunk_batches < 1:
        raise InputError(f"chunk_batches is {chunk_batches}, but must be at least 1")
    if averaged and isinstance(path, Opened):
        raise InputError("averaged=True for a model that is open already: pass it to open_model")
    import_modules(modules)
    opened = path if isinstance(path, Opened) else open_model(path, averaged=averaged)
    recipe = able(opened.recipe, Infers)
    config = overridden(opened, overrides)
    rows = None if input is None else recipe.open_rows(config, str(input), split)
    template = InferenceRequest(task=task, split=split, rows=rows, **request)
    tokenizer = opened.tokenizer_or_none()
    names = None if task is None else recipe.tasks_of_mixture(config, tokenizer, task, split)
    with init_world(device) as world:
        if world.world_size > 1:
            raise InputError(
                "infer runs in a single process\n  start several processes with --shard 0/4, --shard 1/4, and so on"
            )
        weights = weights_fingerprint(opened.model)
        model = opened.model.to(world.device)
        precision = resolve_precision(config.precision, world.device)

        def write(request: InferenceRequest, file: Path) -> Path:
            return write_lines(
                recipe.open_inference(config, model, tokenizer, request, precision),
                file,
                extra_settings={"weights": weights, "precision": str(precision.compute_dtype).removeprefix("torch.")},
                chunk_size=chunk_batches * request.batch_size,
                shard=shard,
                overwrite=overwrite,
                progress=progress or Quiet(),
            )

        if names is None:
            return write(template, Path(out))
        folder = folder_of_mixture(Path(out), str(task))
        for name in names:
            write(replace(template, task=name), folder / f"{name.replace(':', '-')}.jsonl")
        return folder


class InferOptions(RequestOptions, total=False):
    """Options of `infer`, except task and input."""

    split: str
    overrides: Iterable[str]
    modules: Iterable[str]
    shard: tuple[int, int]
    chunk_batches: int
    overwrite: bool
    device: str | None
    averaged: bool
    progress: Progress | None


def predict(
    path: str | Path,
    out: str | Path,
    *,
    input: str | Path | None = None,
    task: str | None = None,
    **options: Unpack[InferOptions],
) -> Path:
    """Write the predictions of a fine-tuned model for the rows of a file or the examples of a task. This is `infer`
    with the task of the run as default.

    Args:
        input: A file of rows with the columns that the run was trained on.
        task: A task of GLUE instead of `input`; None: the task of the run.
        options: Options of `infer`.

    Raises:
        InputError: The model is not fine-tuned.
    """
    opened = open_model(path, averaged=options.pop("averaged", False))
    config: Any = opened.config
    if not isinstance(opened.recipe, BuildsOnEncoder):
        verb = "infer" if isinstance(opened.recipe, Infers) else "generate"
        raise InputError(
            f"{path} is a model of recipe {config.recipe!r}, not a fine-tuned model\n"
            f"  fine-tune it: pretrainkit finetune TASK --from RUN; or use it as it is: pretrainkit {verb}"
        )
    if input is None and task is None:
        task = config.data.task or "own"
    return infer(opened, out, task=task, input=input, **options)


def probe(
    path: str, data: str | Path, *, device: str | None = None, **settings: Unpack[ProbeOptions]
) -> dict[str, float | dict[str, float]]:
    """Measure how well the features of a frozen image encoder separate classes, by linear probes and nearest
    neighbours.

    Args:
        path: A run, checkpoint or export; or `timm:NAME`, an encoder of timm with its published weights.
        data: A folder with train/CLASS/IMAGE and val/CLASS/IMAGE.
        settings: See `pretrainkit.eval.probe_config.ProbeConfig`.

    Returns:
        Accuracies in percent by name, see `pretrainkit.eval.probe.probe`.

    Raises:
        ConfigError: A setting is unknown or has an invalid value.
    """
    try:
        config = ProbeConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError([f"probe: {problem}" for problem in explain(error, ProbeConfig)]) from None

    from pretrainkit.dist.env import init_world
    from pretrainkit.eval.probe import probe as probe_encoder
    from pretrainkit.training.precision import resolve_precision

    with init_world(device) as world:
        if world.world_size > 1:
            raise InputError("a probe runs in a single process\n  start it without a launcher")
        recipes = [] if Path(path).exists() else recipes_able(EncodesImages).values()
        encoders = (recipe.published_image_encoder(path) for recipe in recipes)
        encoder = next(filter(None, encoders), None)
        if encoder is None:
            opened = open_model(path)
            encoder = able(opened.recipe, EncodesImages).image_encoder(opened.config, opened.model)
        encoder.module.to(world.device)
        return probe_encoder(encoder, Path(data), config, resolve_precision(PrecisionConfig(), world.device))
