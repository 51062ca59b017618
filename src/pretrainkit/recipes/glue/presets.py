"""Complete configs of fine-tuning by name. Torch-free. Only init_from and the place of the data are missing."""

from collections.abc import Callable, Mapping
from typing import Any

from pretrainkit.recipes.glue.config import GlueDataConfig, GlueRun
from pretrainkit.recipes.glue.pixel_presets import PIXEL_PRESETS
from pretrainkit.recipes.glue.tasks import TASKS
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, LogConfig


def _run(task: str | None) -> GlueRun:
    return GlueRun(
        num_steps=None,
        data=GlueDataConfig(task=task, num_epochs=3),
        optimizer=OptimizerConfig(peak_lr=5e-5),
        schedule=ScheduleConfig(warmup_share=0.1),
        checkpoint=CheckpointConfig(every_steps=1000, keep_last=1),
        evaluate=EvaluateConfig(every_epochs=1, num_examples=1_000_000),
        log=LogConfig(every_steps=10),
    )


def own() -> GlueRun:
    """A table of your own, with BERT's settings for fine-tuning: 3 passes, batches of 32, peak learning rate 5e-5."""
    return _run(None)


def tags() -> GlueRun:
    """A class for each word, from files of your own (.conllu, columns, .jsonl): passes and learning rate as for own."""
    return _with_data(_run(None), kind="tags", max_seq_length=256)


def qa() -> GlueRun:
    """Answers in a text, from JSON as SQuAD has it or .jsonl with its columns: windows of 384 tokens."""
    return _with_data(_run(None), kind="spans", max_seq_length=384)


def parse() -> GlueRun:
    """A head and a relation for each word, from .conllu or rows: passes and learning rate as for own."""
    return _with_data(_run(None), kind="tree", max_seq_length=256)


def _with_data(config: GlueRun, **values: Any) -> GlueRun:
    return config.model_copy(update={"data": config.data.model_copy(update=values)})


def _preset(task: str) -> Callable[[], GlueRun]:
    def preset() -> GlueRun:
        return _run(task)

    preset.__doc__ = f"{task} of GLUE: 3 passes, batches of 32, a tenth of them to warm up, peak learning rate 5e-5."
    return preset


PRESETS: Mapping[str, Callable[[], GlueRun]] = {
    **{name: _preset(name) for name, task in TASKS.items() if task.valid_splits},
    "own": own,
    "parse": parse,
    "qa": qa,
    "tags": tags,
    **PIXEL_PRESETS,
}
