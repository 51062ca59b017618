"""Tasks of a run judged by their own metrics, on the answers of the model."""

import logging
from pathlib import Path

from torch import nn

from pretrainkit.dist.env import World
from pretrainkit.eval.task_evaluator import TaskEvaluator
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.predictor import Predictor
from pretrainkit.recipes.t5.task_source import run_tasks
from pretrainkit.training.precision import Precision
from pretrainkit.training.recipe import Evaluation

FOLDER = "evaluations"
"""In the run folder: what the model answered."""
_logger = logging.getLogger(__name__)


def task_evaluations(config: T5Run, world: World, precision: Precision, folder: Path | None) -> list[Evaluation]:
    """That of `evaluate.infer`; none where the run has no tasks, or none of them has metrics and the split.

    Raises:
        ConfigError, DataError: The examples cannot be made, or a metric cannot judge them.
    """
    infer = config.evaluate.infer
    if config.data.task is None or infer is None:
        return []
    split = infer.split or config.data.valid_split
    tasks = [task for task in run_tasks(config)[0] if task.metrics and split in task.splits]
    if split is None or not tasks:
        return []
    if config.model.kind == "encoder_only":
        _logger.warning("an encoder alone makes no answers: the metrics of %s are left out", config.data.task)
        return []
    limits = {"inputs": infer.input_length, "targets": infer.target_length}
    lengths = {name: length for name, length in limits.items() if length is not None}
    evaluator = TaskEvaluator(
        tasks, split, lengths=lengths, num_examples=infer.num_examples, caches=config.data.caches, world=world
    )
    decoding = infer.decoding
    if decoding.max_length is None:
        decoding = decoding.model_copy(update={"max_length": infer.target_length or evaluator.max_lengths["targets"]})
    end_id = tasks[0].features["targets"].vocabulary.eos_id
    out = None if folder is None else folder / FOLDER

    def run(model: nn.Module, tag: str) -> dict[str, float]:
        predictor = Predictor(
            config, model, decoding, batch_size=infer.batch_size, end_id=end_id, autocast=precision.autocast
        )
        return evaluator.evaluate(predictor, folder=out, tag=tag, num_written=infer.num_written)

    return [Evaluation(run, infer.every_steps or config.evaluate.every_steps)]
