"""Evaluation of a model by the metrics of tasks: the model answers or scores every example of a split once.

The evaluator creates the examples and reads their targets when it is built, and keeps them. It also calls the metrics
once with the true answers, so that an invalid metric fails before the training.

The contract is that of SeqIO's evaluator (https://arxiv.org/abs/2203.17189). Results do not depend on the batch size or
the number of ranks.
"""

import json
import logging
import numbers
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrainkit.dist.env import World
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.eval.evaluator import batches_of_rank
from pretrainkit.files.manifest import atomic_file
from pretrainkit.tasks.rates import spread
from pretrainkit.tasks.steps import Example, Lengths, name_of
from pretrainkit.tasks.task import MetricKind, Task, metric_kind

MEAN = "mean_over_tasks"
"""Name of the mean over tasks; the value of a task is the mean of its metrics."""
_ALONE = World()
_NUM_COUNTED = 4096
"""Number of examples of a split among which the most frequent target is determined."""
_MANY_LOST = 0.1
_SENTINEL = re.compile(r"<extra_id_\d+>")
_logger = logging.getLogger(__name__)
T = TypeVar("T")


class TaskModel(Protocol):
    """A model that answers examples. Each rank passes its share of the examples, equally many on all ranks."""

    def predict(self, examples: Sequence[Example]) -> Sequence[NDArray[np.integer]]:
        """Return the ids of an answer to each example; ids after an EOS are ignored."""

    def score(self, examples: Sequence[Example]) -> NDArray[np.floating]:
        """Return (N,): the log-likelihood of each example's targets, summed over their tokens."""


class EvaluatedTask:
    """A task with the examples on which models are evaluated."""

    def __init__(
        self,
        task: Task,
        split: str,
        *,
        lengths: Lengths | None = None,
        num_examples: int | None = None,
        caches: Sequence[str | Path] = (),
    ) -> None:
        """Create the examples. Raises DataError if the split has none, or they cannot be created.

        Args:
            task: Task with at least one metric and this split.
            lengths: Maximum number of tokens by feature; None: no limit. A warning reports what is cut off.
            num_examples: Number of first examples to use; None: all.
            caches: As in `Task.bind`.
        """
        self.task, self.split = task, split
        bound = task.bind(split, lengths, caches=caches)
        num = len(bound) if num_examples is None else min(num_examples, len(bound))
        if not num:
            raise DataError(f"task {task.name!r} has no examples in {split!r}\n  check its files, or leave it out")
        self.examples = [bound.example(index) for index in range(num)]
        self.kinds: dict[Callable[..., Any], MetricKind] = {metric: metric_kind(metric) for metric in task.metrics}
        if lengths:
            self._warn_of_cuts(lengths, caches)

    @property
    def max_lengths(self) -> dict[str, int]:
        """Maximum number of tokens of each feature."""
        return {
            name: max((len(example[name]) for example in self.examples if name in example), default=0)
            for name, feature in self.task.features.items()
            if feature.rank == 1
        }

    @cached_property
    def targets(self) -> list[Any]:
        """The targets that metrics receive, in the order of the examples."""
        texts = (_text(self.task, example, "targets") for example in self.examples)
        return [
            self.processed(text, example, is_target=True) for text, example in zip(texts, self.examples, strict=True)
        ]

    def processed(self, text: str, example: Example, *, is_target: bool) -> Any:
        """Return a text as metrics receive it, processed by the task's postprocessor."""
        if self.task.postprocess is None:
            return text
        try:
            return self.task.postprocess(text, example=example, is_target=is_target)
        except Exception as error:
            role = "target" if is_target else "answer"
            raise DataError(
                f"task {self.task.name!r}: its postprocessor failed on the {role} {text[:80]!r}\n"
                f"  {type(error).__name__}: {error}\n  it must accept any text, because models may answer anything"
            ) from error

    def answers(self, predicted: Sequence[Sequence[int]]) -> tuple[list[str], list[Any]]:
        """Return the texts of predicted ids, and their values for metrics."""
        vocabulary = self.task.features["targets"].vocabulary
        texts = [vocabulary.decode(ids) for ids in predicted]
        pairs = zip(texts, self.examples, strict=True)
        return texts, [self.processed(text, example, is_target=False) for text, example in pairs]

    def metrics_of_constant(self, text: str) -> dict[str, float]:
        """Return the metrics if every answer is `text`."""
        return self.metrics([self.processed(text, example, is_target=False) for example in self.examples], None, None)

    def metrics(
        self, answers: Sequence[Any] | None, scores: Sequence[float] | None, values: Sequence[float] | None
    ) -> dict[str, float]:
        """Return all metrics of the task whose arguments are available; `values` are the scores of the answers. Raises
        ConfigError if two metrics have the same key, and DataError if a metric fails or returns anything but
        numbers."""
        metrics: dict[str, float] = {}
        arguments: dict[MetricKind, tuple[Any, ...]] = {
            "predictions": (self.targets, answers),
            "scores": (self.targets, scores),
            "predictions and values": (self.targets, answers, None if values is None else {"scores": values}),
        }
        for metric, kind in self.kinds.items():
            if any(part is None for part in arguments[kind]):
                continue
            values_of_metric = self._called(metric, arguments[kind])
            if twice := sorted(metrics.keys() & values_of_metric.keys()):
                raise ConfigError(
                    f"two metrics of task {self.task.name!r} return {twice[0]!r}\n  leave one of them out, or rename it"
                )
            metrics |= values_of_metric
        return metrics

    def _called(self, metric: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, float]:
        description = f"task {self.task.name!r}: its metric {name_of(metric)}"
        try:
            values = metric(*arguments)
        except (ConfigError, DataError):
            raise
        except Exception as error:
            raise DataError(f"{description} failed\n  {type(error).__name__}: {error}") from error
        if not isinstance(values, Mapping):
            raise DataError(f"{description} returned {values!r}\n  it must return a dict of numbers by name")
        wrong = [name for name, value in values.items() if not isinstance(value, numbers.Real)]
        if wrong:
            raise DataError(
                f"{description} returned {wrong[0]} = {values[wrong[0]]!r}\n  it must return a dict of numbers by name"
            )
        return {str(name): float(value) for name, value in values.items()}

    def _warn_of_cuts(self, lengths: Lengths, caches: Sequence[str | Path]) -> None:
        whole = None
        for name, limit in lengths.items():
            full = [i for i, example in enumerate(self.examples) if len(example.get(name, ())) >= limit]
            if not full:
                continue
            if whole is None:
                whole = self.task.bind(self.split, None, caches=caches)
            try:
                num_cut = sum(len(whole.example(index).get(name, ())) > limit for index in full)
            except DataError:  # its steps need a length
                continue
            if num_cut:
                _logger.warning(
                    "task %s: %d of %d %s are longer than %d tokens and were cut; leave the length out to keep them",
                    *(self.task.name, num_cut, len(self.examples), name, limit),
                )


class TaskEvaluator:
    """Evaluates models on several tasks. All ranks create one and call it together.

    Tasks without a metric or without the split are skipped with a note. Other arguments are as in `EvaluatedTask`.
    Raises DataError or ConfigError if examples cannot be created, or a metric fails.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        split: str,
        *,
        lengths: Lengths | None = None,
        num_examples: int | None = None,
        caches: Sequence[str | Path] = (),
        world: World = _ALONE,
    ) -> None:
        self.world = world
        chosen = [task for task in tasks if _can_evaluate(task, split, tell=world.is_main)]
        self.tasks = [
            EvaluatedTask(task, split, lengths=lengths, num_examples=num_examples, caches=caches) for task in chosen
        ]
        for task in self.tasks:
            self.world.on_main(partial(_check_metrics, task))

    @property
    def max_lengths(self) -> dict[str, int]:
        """Maximum number of tokens of each feature in any task."""
        max_lengths: dict[str, int] = {}
        for task in self.tasks:
            max_lengths |= {name: max(length, max_lengths.get(name, 0)) for name, length in task.max_lengths.items()}
        return max_lengths

    def evaluate(
        self, model: TaskModel, *, folder: Path | None = None, tag: str = "", num_written: int | None = None
    ) -> dict[str, float]:
        """Return all metrics as `TASK/METRIC`, and with several tasks `MEAN`; the same on all ranks.

        Args:
            model: Model in evaluation mode.
            folder: Folder to which rank 0 writes the answers as `TASK-TAG.jsonl`; None: they are not written.
            tag: Part of the names of these files, such as the step.
            num_written: Number of first examples to write; 0: no file; None: all.
        """
        all_metrics: dict[str, float] = {}
        means: list[float] = []
        for task in self.tasks:
            metrics = self._of_task(task, model, folder, tag, num_written)
            all_metrics |= {f"{task.task.name}/{name}": value for name, value in metrics.items()}
            if metrics:
                means.append(sum(metrics.values()) / len(metrics))
        return ({MEAN: sum(means) / len(means)} if len(means) > 1 else {}) | all_metrics

    def _of_task(
        self, task: EvaluatedTask, model: TaskModel, folder: Path | None, tag: str, num_written: int | None
    ) -> dict[str, float]:
        kinds = set(task.kinds.values())
        predicted = scores = values = None
        if kinds - {"scores"}:
            predicted = self._of_all(
                lambda part: [np.asarray(ids).tolist() for ids in model.predict(part)], task.examples
            )
        if "scores" in kinds:
            scores = self._scores(model, task.examples)
        if "predictions and values" in kinds:
            assert predicted is not None
            answered = zip(task.examples, predicted, strict=True)
            values = self._scores(model, [example | {"targets": np.array(ids, np.int32)} for example, ids in answered])

        def compute_metrics() -> dict[str, float]:
            texts, answers = (None, None) if predicted is None else task.answers(predicted)
            if folder is not None and num_written != 0:
                path = folder / f"{task.task.name.replace(':', '/')}-{tag}.jsonl"
                _write(path, task, texts, answers, scores, num_written)
            return task.metrics(answers, scores, values)

        return self.world.on_main(compute_metrics)

    def _scores(self, model: TaskModel, examples: Sequence[Example]) -> list[float]:
        return self._of_all(lambda part: np.asarray(model.score(part), float).tolist(), examples)

    def _of_all(self, answer: Callable[[Sequence[Example]], list[T]], examples: Sequence[Example]) -> list[T]:
        """Return the answers of all ranks to all examples, in order.

        Long examples are spread over the ranks. Ranks get equally many examples, so the last ones may be answered
        twice.
        """
        order = sorted(range(len(examples)), key=lambda index: -len(examples[index].get("inputs", ())))
        mine = [order[place] for place in batches_of_rank(len(order), self.world)[0]]
        answers = answer([examples[index] for index in mine])
        if len(answers) != len(mine):
            raise ValueError(f"the model returned {len(answers)} answers to {len(mine)} examples")
        answer_by_index: dict[int, T] = {}
        for indices, theirs in self.world.gather_objects((mine, answers)):
            answer_by_index |= zip(indices, theirs, strict=True)
        return [answer_by_index[index] for index in range(len(examples))]


def most_frequent_target(task: Task, split: str, *, caches: Sequence[str | Path] = ()) -> str:
    """Return the most frequent target text of a split, among examples spread evenly over it; in a tie the first one.
    Raises DataError if the split does not exist or is empty."""
    bound = task.bind(split, caches=caches)
    if not len(bound):
        raise DataError(f"task {task.name!r} has no examples in {split!r}\n  check its files, or leave it out")
    chosen = (bound.example(index) for index in spread(len(bound), _NUM_COUNTED))
    return Counter(_text(task, example, "targets") for example in chosen).most_common(1)[0][0]


def _text(task: Task, example: Example, name: str) -> str:
    """Return the text of a feature before tokenization, or else its decoded ids; empty if the task has no such
    feature."""
    before = example.get(f"{name}_pretokenized")
    if isinstance(before, str):
        return before
    return task.features[name].vocabulary.decode(example.get(name, ())) if name in task.features else ""


def _can_evaluate(task: Task, split: str, *, tell: bool) -> bool:
    if split not in task.splits:
        if tell:
            _logger.warning("task %s has no split %s and is not evaluated", task.name, split)
        return False
    if not task.metrics and tell:
        _logger.info("task %s has no metrics and is not evaluated", task.name)
    return bool(task.metrics)


def _check_metrics(task: EvaluatedTask) -> None:
    """Call every metric once, with the true answers, and report targets that no answer can equal."""
    truths = [example.get("targets", ()) for example in task.examples]
    zeros = [0.0] * len(truths)
    texts, answers = task.answers(truths)
    task.metrics(answers, zeros, zeros)
    targets = [_text(task.task, example, "targets") for example in task.examples]
    plain = [tuple(_SENTINEL.sub("", text).strip() for text in pair) for pair in zip(targets, texts, strict=True)]
    lost = [(target, text) for target, text in plain if not target.startswith(text)]  # a cut is reported elsewhere
    if len(lost) >= _MANY_LOST * len(targets):
        _logger.warning(
            "task %s: the vocabulary cannot represent %d of %d targets, such as %s, which becomes %s\n"
            "  use bytes (data.tokenizer=bytes), or train a tokenizer with --kind bpe",
            *(task.task.name, len(lost), len(targets), *(f"{part!r:.60}" for part in lost[0])),
        )


def _write(
    path: Path, task: EvaluatedTask, texts: Any, answers: Any, scores: Sequence[float] | None, num_written: int | None
) -> None:
    """Write one line per example: its texts, and the values for metrics if the task has a postprocessor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        for index, example in enumerate(task.examples[:num_written]):
            row: dict[str, Any] = {name[:-1]: _text(task.task, example, name) for name in ("inputs", "targets")}
            if texts is not None:
                row["prediction"] = texts[index]
                if task.task.postprocess is not None:
                    row |= {"judged_target": task.targets[index], "judged_prediction": answers[index]}
            if scores is not None:
                row["score"] = scores[index]
            file.write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode())
