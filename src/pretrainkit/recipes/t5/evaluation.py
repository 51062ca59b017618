"""Evaluations of a run: held-out losses of the mixture and of each task or denoiser, task metrics on the answers of the
model, and held-out examples for the report.

Dimensions: K target tokens.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pretrainkit.data.order import Order
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.dist.env import World
from pretrainkit.dist.weights import on_cpu
from pretrainkit.errors import ConfigError
from pretrainkit.eval.evaluator import evaluate_records, evaluation_mode
from pretrainkit.eval.task_evaluator import TaskEvaluator, most_frequent_target
from pretrainkit.recipes.capabilities import Evaluator
from pretrainkit.recipes.t5.catalogue.labelled import UNKNOWN
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.denoising import TextIds
from pretrainkit.recipes.t5.inputs import read_batch
from pretrainkit.recipes.t5.objective import T5Objective
from pretrainkit.recipes.t5.predictor import Predictor
from pretrainkit.recipes.t5.source import DenoisingSource, open_source
from pretrainkit.recipes.t5.task_source import TaskBatches, run_tasks, warn_of_lacking
from pretrainkit.recipes.t5.texts import decode
from pretrainkit.tasks.rates import spread
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer
from pretrainkit.training.precision import Precision
from pretrainkit.training.watch import Evaluation

FOLDER = "evaluations"
"""Folder of the model's answers in the run folder."""
COMPONENT_METRICS = ("nll_per_target_token", "accuracy")
"""Metrics that are reported for each component."""
_logger = logging.getLogger(__name__)


def task_evaluations(config: T5Run, world: World, precision: Precision, folder: Path | None) -> list[Evaluation]:
    """Return the evaluation of `evaluate.infer`; empty if the run has no task with metrics and the split.

    Raises ConfigError or DataError if examples cannot be made, a metric cannot judge them, or no task has the split."""
    evaluator, infer = _evaluator(config, world), config.evaluate.infer
    if evaluator is None or infer is None:
        return []
    if infer.split is not None and world.is_main:
        for task in run_tasks(config)[0]:
            if task.metrics and infer.split not in task.splits:
                message = "task %s has no split %s (evaluate.infer.split), so it is not evaluated"
                _logger.warning(message, task.name, infer.split)
    for judged in evaluator.tasks if world.is_main else ():
        # Unlabelled rows have the target UNKNOWN. An answer that is not a class is UNKNOWN too, and would be correct.
        if num := sum(example.get("targets_pretokenized") == UNKNOWN for example in judged.examples):
            message = "task %s: %d of %d rows of %s have no label (their target is %s), so its metrics mean little"
            _logger.warning(message, judged.task.name, num, len(judged.examples), judged.split, UNKNOWN)
    decoding = infer.decoding
    if decoding.max_length is None:
        decoding = decoding.model_copy(update={"max_length": infer.target_length or evaluator.max_lengths["targets"]})
    end_id = evaluator.tasks[0].task.features["targets"].vocabulary.eos_id
    out = None if folder is None else folder / FOLDER

    def run(model: nn.Module, tag: str) -> dict[str, float]:
        predictor = Predictor(
            config, model, decoding, batch_size=infer.batch_size, end_id=end_id, autocast=precision.autocast
        )
        return evaluator.evaluate(predictor, folder=out, tag=tag, num_written=infer.num_written)

    return [Evaluation(run, infer.every_steps or config.evaluate.every_steps)]


def majority_metrics(config: T5Run) -> dict[str, float]:
    """Return `majority_TASK/METRIC` for a model that always answers the most frequent training target of the task.

    Empty if no task is evaluated or has a training split."""
    evaluator = _evaluator(config, World())
    metrics: dict[str, float] = {}
    for judged in () if evaluator is None else evaluator.tasks:
        if config.data.train_split in judged.task.splits:
            text = most_frequent_target(judged.task, config.data.train_split, caches=config.data.caches)
            constant = judged.metrics_of_constant(text)
            metrics |= {f"majority_{judged.task.name}/{name}": value for name, value in constant.items()}
    return metrics


def _evaluator(config: T5Run, world: World) -> TaskEvaluator | None:
    """Return the evaluator of the tasks with metrics and the split; None if there are no such tasks."""
    infer = config.evaluate.infer
    if config.data.task is None or infer is None:
        return None
    split = infer.split or config.data.valid_split
    judged = [task for task in run_tasks(config)[0] if task.metrics]
    tasks = [task for task in judged if split in task.splits]
    if infer.split is not None and judged and not tasks:
        splits = ", ".join(dict.fromkeys(name for task in judged for name in task.splits))
        raise ConfigError(
            f"evaluate.infer.split={split}, but no task of {config.data.task!r} has that split\n  use one of: {splits}"
        )
    if split is None or not tasks:
        return None
    if config.model.kind == "encoder_only":
        _logger.warning("an encoder-only model cannot answer: the metrics of %s are left out", config.data.task)
        return None
    limits = {"inputs": infer.input_length, "targets": infer.target_length}
    lengths = {name: length for name, length in limits.items() if length is not None}
    return TaskEvaluator(
        tasks, split, lengths=lengths, num_examples=infer.num_examples, caches=config.data.caches, world=world
    )


def build_evaluator(config: T5Run, world: World, precision: Precision) -> Evaluator | None:
    """Return an evaluator for the metrics of the mixture and, as `metric/NAME`, `COMPONENT_METRICS` of each component.

    The mixture is evaluated on `evaluate.num_examples` examples, in proportion to the sizes of its components; each
    component on `num_examples_per_task`, or an equal share of `num_examples`. Return None for a single component, for
    which the default evaluation suffices."""
    if world.is_main:
        warn_of_lacking(config, "valid")
    source = open_source(config, "valid")
    if len(source.sizes) == 1:
        return None
    objective, size = T5Objective(config), config.evaluate.batch_size
    whole = Order(source.sizes, seed=0)
    most = config.evaluate.num_examples
    share = config.evaluate.num_examples_per_task or max(1, most // len(source.sizes))

    def scored(model: nn.Module, order: Order, component: int | None, num_examples: int) -> dict[str, float]:
        def build(records: Records) -> dict[str, np.ndarray]:
            own = records.source if component is None else np.full(len(records), component)
            return source.build(replace(records, source=own))

        return evaluate_records(
            objective, model, build, order, num_examples, batch_size=size, precision=precision, world=world
        )

    def run(model: nn.Module) -> dict[str, float]:
        metrics = scored(model, whole, None, min(most, sum(source.sizes)))
        for component, (name, num) in enumerate(zip(source.names, source.sizes, strict=True)):
            alone = scored(model, Order([num], seed=0), component, min(share, num))
            metrics |= {f"{metric}/{name}": alone[metric] for metric in COMPONENT_METRICS}
        return metrics

    return run


def sample(config: T5Run, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, str]]:
    """Return `num` examples, evenly spread over the first component or over tasks; none without the tokenizer.

    Each has `masked` (absent for language models), `predicted` (the most probable piece at each position, given the
    true ones before it) and `truth`; for tasks `task` (if several), `input`, `predicted` (the greedy answer) and
    `truth`."""
    if isinstance(source, TaskBatches):
        return [] if config.model.kind == "encoder_only" else _answered(config, model, source, num)
    if not isinstance(source, DenoisingSource):
        return []
    folder, size = Path(source.components[0].shards.tokenizer_folder), source.sizes[0]
    if not folder.is_dir() or not size:
        return []
    tokenizer, ids = load_tokenizer(folder), source.components[0].denoiser.ids
    examples = []
    for index in spread(size, num):
        records = Records.of_first_epoch([index])
        inputs, targets = source.examples(records)
        sequences = {} if inputs is None else {"masked": inputs.values.tolist()}
        sequences["predicted"] = _most_probable(config, model, source.build(records))
        sequences["truth"] = targets.values.tolist()
        examples.append({name: readable(tokens, tokenizer, ids) for name, tokens in sequences.items()})
    return examples


def _answered(config: T5Run, model: nn.Module, source: TaskBatches, num: int) -> list[dict[str, str]]:
    """Return examples of `num` tasks in the order of the mixture; if there are fewer tasks, several of each."""
    tasks = [task for task in source.tasks if len(task)][:num]
    if not tasks:
        return []
    shares = [num // len(tasks) + (number < num % len(tasks)) for number in range(len(tasks))]
    picked = [(task, index) for task, share in zip(tasks, shares, strict=True) for index in spread(len(task), share)]
    vocabulary = tasks[0].features["targets"].vocabulary
    examples = [task.example(index) for task, index in picked]
    answers = Predictor(config, on_cpu(model), end_id=vocabulary.eos_id).predict(examples)
    rows = []
    for (task, _), example, answer in zip(picked, examples, answers, strict=True):
        texts = {"task": task.name} if len(source.tasks) > 1 else {}
        if "inputs" in example:
            texts["input"] = decode(example["inputs"], vocabulary)
        texts |= {"predicted": decode(answer, vocabulary), "truth": decode(example["targets"], vocabulary)}
        rows.append(texts)
    return rows


def readable(tokens: Sequence[int], tokenizer: Tokenizer, ids: TextIds) -> str:
    """Return the text of `tokens`, with `<extra_id_N>` for sentinels and without the end mark."""
    names = {sentinel: f"<extra_id_{number}>" for number, sentinel in enumerate(ids.sentinels)}
    parts: list[str] = []
    kept = (token for token in tokens if token != ids.end)
    for is_text, group in groupby(kept, key=lambda token: token < tokenizer.vocab_size and token not in names):
        run = list(group)
        parts += [tokenizer.readable(run)] if is_text else [names.get(token, "?") for token in run]
    return " ".join(part for part in parts if part)


@torch.no_grad()
def _most_probable(config: T5Run, model: nn.Module, batch: dict[str, np.ndarray]) -> list[int]:
    """Return the most probable id of each target token, computed on the CPU."""
    model = on_cpu(model)
    inputs, _ = read_batch({name: torch.from_numpy(array) for name, array in batch.items()}, config.model.kind)
    with evaluation_mode(model):
        return model(inputs).argmax(-1).tolist()
