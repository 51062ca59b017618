"""Examples of tasks and mixtures for the T5 recipe: inputs and targets as the tasks' steps make them.

Dimensions: B examples.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.recipe import Split
from pretrainkit.recipes.t5.config import HELD_OUT, T5Run, round_vocab
from pretrainkit.recipes.t5.denoising import DenoisingConfig
from pretrainkit.recipes.t5.features import lay_out
from pretrainkit.recipes.t5.ragged import Ragged, ragged
from pretrainkit.recipes.t5.task_denoising import PARTNER, Denoise, denoising_steps, whole_texts
from pretrainkit.tasks.identity import identity
from pretrainkit.tasks.rates import mean_lengths, shares
from pretrainkit.tasks.steps import BoundTask
from pretrainkit.tasks.supply import HeldOut, RunSteps, RunVocabulary, Supply
from pretrainkit.tasks.task import REGISTRY, Feature, Task, TaskRegistry, check_alike
from pretrainkit.tasks.user_modules import import_modules
from pretrainkit.tasks.vocabulary import ByteVocabulary, SentencePieceVocabulary, Vocabulary, check_equal
from pretrainkit.tasks.vocabulary_folder import BYTES, open_vocabulary, tokenizer_place
from pretrainkit.training.folder import CONFIG, RunFolder

_FEATURES = {"inputs", "targets"}
_COMPARABLE = (SentencePieceVocabulary, ByteVocabulary)
"""Vocabularies that are equal if their fingerprints are. A tokenizer.json may have the ids of another kind."""
_logger = logging.getLogger(__name__)


class TaskBatches(BatchSource):
    """All examples of one task, or of the tasks of a mixture.

    The randomness of an example is a function of the seed, the task's name, the epoch and the index. Held-out examples
    always have the first epoch and seed 0.
    """

    def __init__(
        self, config: T5Run, split: Split, tasks: Sequence[BoundTask], weights: Sequence[float], identity_of_tasks: str
    ) -> None:
        """`identity_of_tasks`: fingerprint of the tasks' steps and data."""
        self.config, self.split, self.tasks = config, split, tuple(tasks)
        self.names = [task.name for task in self.tasks]
        self.weights: list[float] = list(weights)
        self._identity = identity_of_tasks
        self.has_inputs = "inputs" in self.tasks[0].features

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.tasks))

    @cached_property
    def fingerprint(self) -> str:
        data = self.config.data
        parts = [self.split, self._identity, f"{data.input_length} {data.target_length} {self.config.seed}"]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return statistics for logs and the report; mean lengths are from some examples of each task."""
        means = [mean_lengths(task, ("inputs", "targets")) for task in self.tasks]
        lengths = [(mean["inputs"], mean["targets"]) for mean in means]
        rows = shares(self.names, self.weights, self.sizes, lengths)
        return {**super().summary(), "split": self.tasks[0].split, "mixture": rows}

    @property
    def faster_loading(self) -> str | None:
        """Advice to preprocess tasks once."""
        registry = registry_of(self.config)
        markers = {task.name: registry.get_task(task.name).cache_marker for task in self.tasks if not task.is_cached}
        names = " ".join(name for name, marker in markers.items() if marker is not None)
        return (
            f"preprocess once: pretrainkit tasks cache {names} --out FOLDER, and data.caches=FOLDER" if names else None
        )

    def lengths(self, records: Records) -> NDArray[np.int64]:
        """Return a (B,) upper bound, because the length of an example is known only after it is computed."""
        data = self.config.data
        return np.full(len(records), data.input_length * self.has_inputs + data.target_length, np.int64)

    def examples(self, records: Records) -> tuple[Ragged | None, Ragged]:
        """Return inputs (None without inputs) and targets before their layout in rows; two per record for pairs."""
        epochs = records.epoch.tolist() if self.split == "train" else [0] * len(records)
        examples = [
            self.tasks[source].example(index, epoch)
            for source, index, epoch in zip(records.source.tolist(), records.index.tolist(), epochs, strict=True)
        ]
        examples = [part for row in examples for part in ((row, row[PARTNER]) if PARTNER in row else (row,))]
        targets = ragged([example["targets"] for example in examples])
        return (ragged([example.get("inputs", ()) for example in examples]) if self.has_inputs else None), targets

    def build(self, records: Records) -> dict[str, np.ndarray]:
        component = None if self.split != "train" or self._numbers is None else self._numbers[records.source]
        inputs, targets = self.examples(records)
        mask_id = next(iter(self.tasks[0].features["targets"].vocabulary.sentinel_ids), -1)
        is_paired = len(targets) > len(records)
        return lay_out(self.config, inputs, targets, mask_id=mask_id, component=component, is_paired=is_paired)

    @cached_property
    def _numbers(self) -> NDArray[np.int64] | None:
        """The numbers of the tasks in the whole mixture; None if it has a single task."""
        names = task_names(self.config)
        return np.array([names.index(name) for name in self.names]) if len(names) > 1 else None


def with_vocabulary(config: T5Run, size: int, owner: str, origin: str) -> tuple[T5Run, list[str]]:
    """Return the config with `model.vocab_size`, and its problems. An open size becomes that of the `size` ids of
    `owner`, which come from `origin`."""
    if config.model.vocab_size is None:
        config = config.changed(model={"vocab_size": round_vocab(size)})
    problems = config.problems()
    if (config.model.vocab_size or 0) < size:
        problems.append(
            f"model.vocab_size is {config.model.vocab_size}, but {owner} {size} ids\n"
            f"  set model.vocab_size={round_vocab(size)}, or null to take it from {origin}"
        )
    return config, problems


def task_names(config: T5Run) -> list[str]:
    """Return the names of all tasks of the mixture except those left out, including those of rate 0."""
    _import_modules(config)
    registry = REGISTRY.supplied(Supply(left_out=frozenset(config.data.leave_out)))
    return list(registry.task_names(str(config.data.task)))


def bind_tasks(config: T5Run) -> T5Run:
    """Fill in `model.vocab_size` from the tasks' vocabulary, and check the config against them.

    Raises ConfigError for an unknown task or if model and tasks do not match; DataError without the training split."""
    data = config.data
    if data.tokenizer is None and config.init_from is not None and leaves_vocabulary_open(config):
        config = config.changed(data={"tokenizer": _tokenizer_of(Path(config.init_from))})
    tasks, vocabulary, _ = run_tasks(config)
    _check_model(config, tasks[0], vocabulary)
    _warn_of_unused(config)
    warn_of_lacking(config, "train")
    config, problems = with_vocabulary(config, vocabulary.size, "the tasks' vocabulary has", "the tasks")
    for task in tasks:
        names = set(task.features)
        if not names <= _FEATURES or "targets" not in names:
            problems.append(
                f"task {task.name!r} has the features {', '.join(sorted(names))}, but T5 needs inputs and targets\n"
                "  rename them in a step of the task"
            )
        if "inputs" not in names and config.model.kind != "decoder_only":
            problems.append(
                f"task {task.name!r} has no inputs, but model.kind={config.model.kind} needs them\n"
                "  set model.kind=decoder_only model.num_encoder_layers=null"
            )
    problems += _pair_problems(config, tasks)
    if problems:
        raise ConfigError(problems)
    return config


def warn_of_lacking(config: T5Run, split: Split) -> None:
    """Warn of tasks without the split. Opening the data does not warn, because a run opens it many times."""
    data = config.data
    name, effect = (data.train_split, "left out") if split == "train" else (data.valid_split, "not evaluated")
    tasks = () if data.task is None or name is None else run_tasks(config)[0]
    lacking = [task.name for task in tasks if name not in task.splits]
    if len(lacking) < len(tasks):  # if all lack it, that is an error
        for task_name in lacking:
            _logger.warning("%s: task %s has no split %s and is %s", data.task, task_name, name, effect)


def _warn_of_unused(config: T5Run) -> None:
    """Warn of settings that have no effect, because none of the tasks leaves them to the run."""
    data, default = config.data, DenoisingConfig()
    if not leaves_vocabulary_open(config) and data.tokenizer is not None:
        message = "data.tokenizer=%s has no effect: the tasks of %s have their own vocabulary"
        _logger.warning(message, data.tokenizer, data.task)
    steps = [step for name in task_names(config) for step in REGISTRY.get_task(name).preprocessors]
    if any(isinstance(step, RunSteps) for step in steps):
        return
    names = DenoisingConfig.model_fields.keys() - {"num_sentinels"}
    for name in sorted(name for name in names if getattr(data.denoising, name) != getattr(default, name)):
        message = "data.denoising.%s has no effect: the tasks of %s define their own objective"
        _logger.warning(message, name, data.task)


def _pair_problems(config: T5Run, tasks: Sequence[Task]) -> list[str]:
    """Return the settings and tasks that conflict with tasks whose examples share rows in pairs."""
    paired = [
        task.name for task in tasks if any(isinstance(step, Denoise) and step.is_paired for step in task.preprocessors)
    ]
    if not paired:
        return []
    problems = []
    if len(paired) < len(tasks):
        others = [task.name for task in tasks if task.name not in paired]
        problems.append(f"{paired[0]} makes pairs that share a row, {others[0]} does not\n  train on only one of them")
    if config.data.packing:
        problems.append("data.packing=true, but pairs already fill their rows\n  set data.packing=false")
    if config.model.kind != "encoder_decoder":
        problems.append(
            f"task {paired[0]!r} makes pairs for an encoder and a decoder, but model.kind={config.model.kind}\n"
            "  use c4_prefix_lm_objective_decoder_architecture, or another objective"
        )
    return problems


def open_tasks(config: T5Run, split: Split) -> TaskBatches:
    """Return the examples of a split of a config bound by `bind_tasks`. Held-out data is of all tasks with the split,
    including those of rate 0. Raises DataError if no task has the split, or files are missing."""
    tasks, _, registry = run_tasks(config)
    data, name = config.data, str(config.data.task)
    split_name = data.train_split if split == "train" else data.valid_split
    lengths = {"inputs": data.input_length, "targets": data.target_length}
    if split_name is None:
        raise DataError("data.valid_split=null, so there is no held-out data\n  set it to a split of the tasks")
    if split == "train":
        bound = registry.bind(name, split_name, lengths, seed=config.seed, caches=data.caches, is_quiet=True)
        members, weights = bound.tasks, bound.weights
    else:
        with_split = [task for task in tasks if split_name in task.splits]
        members = tuple(task.bind(split_name, lengths, caches=data.caches) for task in with_split)
        weights = (1.0,) * len(members)
    if not members:
        or_none = ", or to null for no held-out data" if split == "valid" else ""
        raise DataError(
            f"no task of {name!r} has the split {split_name!r}\n  set data.{split}_split to one that they have{or_none}"
        )
    if empty := [member.name for member in members if not len(member)]:
        raise DataError(
            f"task {empty[0]!r} has no examples in {split_name!r}\n  check its files and its filters, or leave it out"
        )
    kept = {member.name for member in members}
    parts = [
        f"{task.name} {task.fingerprint(split_name)} {[identity(step) for step in task.preprocessors]}"
        for task in tasks
        if task.name in kept
    ]
    return TaskBatches(config, split, members, weights, "\n".join(parts))


def run_tasks(config: T5Run) -> tuple[tuple[Task, ...], Vocabulary, TaskRegistry]:
    """Return the tasks of a run, including those of rate 0, the vocabulary of their features, and the registry."""
    registry = registry_of(config)
    tasks = registry.tasks(str(config.data.task))
    check_alike(tasks)
    vocabularies = {name: feature.vocabulary for name, feature in tasks[0].features.items() if name in _FEATURES}
    if len(set(vocabularies.values())) > 1:
        raise ConfigError(
            f"inputs and targets of {tasks[0].name!r} have different vocabularies, but a T5 has one embedding table\n"
            "  give both features the same vocabulary"
        )
    if "targets" not in vocabularies:
        raise ConfigError(f"task {tasks[0].name!r} has no feature 'targets'\n  rename a feature to targets")
    return tasks, vocabularies["targets"], registry


def declared_features(config: T5Run) -> Mapping[str, Feature]:
    """Return the features of a run's tasks without reading data; the vocabulary may be left open."""
    _import_modules(config)
    return REGISTRY.get_task(REGISTRY.task_names(str(config.data.task))[0]).features


def registry_of(config: T5Run) -> TaskRegistry:
    """Return all tasks and mixtures, of the recipe and of the user, with the run's settings. Raises DataError if the
    tokenizer is missing."""
    _import_modules(config)
    data = config.data
    vocabulary = None if data.tokenizer is None else open_vocabulary(data.tokenizer, data.denoising.num_sentinels)
    is_alone = config.model.kind == "decoder_only"
    objective = partial(denoising_steps, whole_texts(data.denoising) if is_alone else data.denoising)
    is_cut = data.valid_split == HELD_OUT and data.held_out_share is not None
    cut = HeldOut(HELD_OUT, data.train_split, data.held_out_share or 0.0) if is_cut else None
    return REGISTRY.supplied(Supply(vocabulary, data.task_folders, objective, frozenset(data.leave_out), cut))


def leaves_vocabulary_open(config: T5Run) -> bool:
    """Return True if a task of the run leaves its vocabulary to the run."""
    features = [feature for name in task_names(config) for feature in REGISTRY.get_task(name).features.values()]
    return any(isinstance(feature.vocabulary, RunVocabulary) for feature in features)


def _tokenizer_of(model: Path) -> str:
    """Return the value of `data.tokenizer` for the model of a run, checkpoint or export."""
    for folder in (model, model.parent.parent):
        tree = RunFolder(folder).config_tree() if (folder / CONFIG).is_file() else {}
        if tree.get("data", {}).get("tokenizer") == BYTES:
            return BYTES
    return str(tokenizer_place(model))


def _check_model(config: T5Run, task: Task, vocabulary: Vocabulary) -> None:
    """Raise ConfigError if the initial model of the run was trained with another vocabulary. A model without a
    tokenizer beside it is not checked."""
    if config.init_from is None:
        return
    try:
        place = _tokenizer_of(Path(config.init_from))
    except DataError:
        return
    model_vocabulary = open_vocabulary(place, config.data.denoising.num_sentinels)
    is_known = isinstance(vocabulary, _COMPARABLE) and isinstance(model_vocabulary, _COMPARABLE)
    if is_known or type(model_vocabulary) is type(vocabulary):
        check_equal(task.name, vocabulary, model_vocabulary)


def _import_modules(config: T5Run) -> None:
    import_modules(["pretrainkit.recipes.t5.catalogue", *config.data.modules])
