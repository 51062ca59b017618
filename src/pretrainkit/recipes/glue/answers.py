"""Predictions of a model for the examples of a source, on all ranks, and their scores by the task's metrics.

Dimensions: B examples of a batch, N requested examples, R rows.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from pretrainkit.data.source import Records
from pretrainkit.dist.env import World
from pretrainkit.dist.weights import on_cpu
from pretrainkit.errors import InputError
from pretrainkit.eval.evaluator import batches_of_rank, evaluation_mode
from pretrainkit.eval.inference import Inference, InferenceRequest
from pretrainkit.recipes.capabilities import Evaluator
from pretrainkit.recipes.glue.by_kind import build_objective
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Prediction
from pretrainkit.recipes.glue.model import GlueObjective
from pretrainkit.recipes.glue.source import KINDS, TextSource, open_texts, read_place, rows_of, task_of, valid_splits
from pretrainkit.recipes.glue.tasks import TextTask, named_task
from pretrainkit.recipes.text_reader import Ints, TextReader
from pretrainkit.tasks.rates import spread
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.training.precision import Precision, resolve_precision
from pretrainkit.training.run import PrecisionConfig

_ALONE = World()


def answers_of(
    model: nn.Module,
    objective: GlueObjective,
    source: TextSource,
    rows_R: Ints,
    *,
    batch_size: int,
    precision: Precision,
    world: World = _ALONE,
) -> list[Prediction]:
    """Return the predictions for the examples of some rows of the source. Rows are numbered over all its components.
    All ranks must call this together.

    Examples of similar length share a batch; the predictions are in the order of the rows.
    """
    index_N = source.examples.examples_of(rows_R)
    records = records_of(source, index_N)
    order_N = np.argsort(source.lengths(records), kind="stable")
    numbers, num_counted = batches_of_rank(-(-len(index_N) // batch_size), world)
    mine: list[tuple[list[int], list[Prediction]]] = []
    with evaluation_mode(model), torch.no_grad():
        for turn, number in enumerate(numbers):
            chosen = order_N[number * batch_size : (number + 1) * batch_size]
            host = source.build(records.take(chosen))
            batch = {name: torch.from_numpy(array).to(precision.device) for name, array in host.items()}
            with precision.autocast():
                outputs = objective.outputs(model, batch)
            if turn < num_counted:  # the other batches are repeats, so that all ranks take part equally often
                parts = objective.by_example(outputs, host)
                predictions = [
                    source.examples.predict(int(i), part) for i, part in zip(index_N[chosen], parts, strict=True)
                ]
                mine.append((chosen.tolist(), predictions))
    answers: list[Prediction] = [None] * len(index_N)
    for theirs in world.gather_objects(mine):
        for chosen_B, prediction_B in theirs:
            for place, value in zip(chosen_B, prediction_B, strict=True):
                answers[place] = value
    return answers


def records_of(source: TextSource, index_N: Ints) -> Records:
    """Return the records of these examples, which are numbered over all components."""
    sizes = np.asarray(source.sizes, np.int64)
    ends = np.cumsum(sizes)
    component = np.searchsorted(ends, index_N, side="right")
    index = index_N - (ends - sizes)[component]
    return Records.of_first_epoch(index, component, index_N.astype(np.uint64))


def build_evaluator(config: GlueRun, reader: TextReader, world: World, precision: Precision) -> Evaluator:
    """Return an evaluator with `loss`, the task's metrics in percent, and `score`, the mean of the metrics.

    For MNLI it is the mean over both held-out sets; metrics of the mismatched one are called `mismatched_...`."""
    task, objective = task_of(config.data), build_objective(config)
    splits = [
        (prefix, open_texts(config, reader, [split])) for split, prefix in valid_splits(config.data, task).items()
    ]

    def evaluate(model: nn.Module) -> dict[str, float]:
        metrics_of_all: dict[str, float] = {}
        scores = []
        for prefix, source in splits:
            rows = np.array(spread(len(source.examples.index), config.evaluate.num_examples))
            batch_size = config.evaluate.batch_size
            predictions = answers_of(
                model, objective, source, rows, batch_size=batch_size, precision=precision, world=world
            )
            metrics = source.examples.metrics(rows, predictions)
            scores.append(metrics.pop("score"))
            metrics_of_all |= {f"{prefix}{name}": value for name, value in metrics.items()}
        return dict(sorted((metrics_of_all | {"score": sum(scores) / len(scores)}).items()))

    return evaluate


def sample(config: GlueRun, model: nn.Module, source: TextSource, num: int) -> list[dict[str, Any]]:
    """Return `num` rows, evenly spread over the held-out data, with answers computed on the CPU; see
    `Labelled.shown`."""
    model, rows = on_cpu(model), np.array(spread(len(source.examples.index), num))
    precision = resolve_precision(PrecisionConfig(compute="float32"), torch.device("cpu"))
    predictions = answers_of(model, build_objective(config), source, rows, batch_size=num, precision=precision)
    return source.examples.shown(rows, predictions)


class Answers(Inference):
    """Rows of a task or file, with a JSON object for each; see `Labelled.lines`."""

    def __init__(
        self,
        config: GlueRun,
        model: nn.Module,
        reader: TextReader,
        request: InferenceRequest,
        precision: Precision,
    ) -> None:
        """Read the rows. Raises DataError if rows or a column are missing, and InputError if the task has other
        classes."""
        if request.mode != "predict":
            raise InputError(f"mode {request.mode!r} is for models that write texts\n  leave --mode out")
        self._config, self._model, self._precision, self._request = config, model, precision, request
        task, source, split = _request_place(config, request)
        rows = [replace(row, truth=None) for row in read_place(source, split, task, needs_label=False)]
        self._source = TextSource(KINDS[task.kind]([rows], config, task, reader), source.fingerprint(split))
        self._settings = {
            "task": task.name,
            "split": split,
            "rows": self._source.fingerprint,
            "tokenizer": reader.fingerprint,
            "max_seq_length": config.data.max_seq_length,
            **({"spans": config.data.spans.model_dump()} if task.kind == "spans" else {}),
            **({"heads": config.data.heads} if task.kind == "tree" else {}),
        }

    def __len__(self) -> int:
        return len(self._source.examples.index)

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def lines(self, begin: int, end: int) -> list[dict[str, Any]]:
        rows, objective = np.arange(begin, end), build_objective(self._config)
        batch_size = self._request.batch_size
        predictions = answers_of(
            self._model, objective, self._source, rows, batch_size=batch_size, precision=self._precision
        )
        return self._source.examples.lines(rows, predictions)


def _request_place(config: GlueRun, request: InferenceRequest) -> tuple[TextTask, TaskSource, str]:
    """Return (task, source of the rows, split)."""
    own = task_of(config.data)
    if request.rows is not None:
        return own, request.rows, request.split
    assert request.task is not None
    task = own if request.task == own.name else named_task(request.task)
    if task is not own and (task.kind != own.kind or config.model.classes != (task.classes or ())):
        raise InputError(
            f"{request.task} has the classes {', '.join(task.classes or ('numbers',))}, but the model has "
            f"{', '.join(config.model.classes or ('numbers',))}\n  use a model that was trained on such a task"
        )
    data = config.data.changed(train=(), valid=()) if task.data is not None else config.data
    source, split = rows_of(data, task, request.split)[0]
    return task, source, split
