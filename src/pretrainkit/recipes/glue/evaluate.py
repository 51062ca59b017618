"""Held-out metrics of a task: over whole splits, for they are no means over batches.

Dimensions: N examples of a split, C classes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretrainkit.dist.env import World
from pretrainkit.recipes.glue.answers import outputs_of, said
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.objective import GlueObjective
from pretrainkit.recipes.glue.source import TextSource, open_texts, task_of, valid_splits
from pretrainkit.training.precision import Precision
from pretrainkit.training.recipe import Evaluator
from pretrainkit.training.text_reader import TextReader


def build_evaluator(config: GlueRun, reader: TextReader, world: World, precision: Precision) -> Evaluator:
    """`loss`, the task's metrics in percent, and `score`, the mean of the metrics (of MNLI: of both its held-out sets,
    the mismatched one's as `mismatched_...`)."""
    task, objective = task_of(config.data), GlueObjective(config)
    splits = [
        (prefix, open_texts(config, reader, [split], needs_label=True))
        for split, prefix in valid_splits(config.data, task).items()
    ]
    classes = config.model.classes or ()

    def evaluate(model: nn.Module) -> dict[str, float]:
        found: dict[str, float] = {}
        scores = []
        for prefix, source in splits:
            rows_N = spread(sum(source.sizes), config.evaluate.num_examples)
            outputs_NC = outputs_of(
                model,
                objective,
                source,
                rows_N,
                batch_size=config.evaluate.batch_size,
                precision=precision,
                world=world,
            )
            label_N = labels_of(source)[rows_N]
            metrics = task.score(label_N.tolist(), said(outputs_NC, classes).tolist())
            scores.append(metrics.pop("score"))
            metrics["loss"] = loss_of(outputs_NC, label_N, classes)
            found |= {f"{prefix}{name}": value for name, value in metrics.items()}
        return dict(sorted((found | {"score": sum(scores) / len(scores)}).items()))

    return evaluate


def spread(size: int, limit: int) -> NDArray[np.int64]:
    """Indices of at most `limit` of `size` examples, evenly spread."""
    return np.arange(size) if size <= limit else np.linspace(0, size - 1, limit).astype(np.int64)


def labels_of(source: TextSource) -> NDArray:
    """(N,) of all components, in order."""
    return np.concatenate([part.label for part in source.parts])


def loss_of(outputs_NC: NDArray[np.float32], label_N: NDArray, classes: Sequence[str]) -> float:
    """Mean cross-entropy of classes, mean squared error of numbers."""
    outputs_NC = outputs_NC.astype(np.float64)
    if not classes:
        return float(np.square(outputs_NC[:, 0] - label_N).mean())
    highest_N1 = outputs_NC.max(1, keepdims=True)
    log_total_N = np.log(np.exp(outputs_NC - highest_N1).sum(1)) + highest_N1[:, 0]
    return float((log_total_N - outputs_NC[np.arange(len(label_N)), label_N]).mean())
