"""Complete configs of fine-tuning by name. Imports no torch. Only init_from and the place of the data are missing."""

from collections.abc import Callable, Mapping
from typing import Any

from pretrainkit.recipes.glue.config import GlueDataConfig, GlueModelConfig, GlueRun, SpanConfig
from pretrainkit.recipes.glue.tasks import TASKS
from pretrainkit.training.evaluate_config import EarlyStoppingConfig, EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, KeepBestConfig, LogConfig


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
    """Your own table, with BERT's settings for fine-tuning: 3 passes, batches of 32, peak learning rate 5e-5."""
    return _run(None)


def tags() -> GlueRun:
    """A class for each word, from your own files (.conllu, columns, .jsonl), trained like glue/own."""
    return own().changed(data={"kind": "tags", "max_seq_length": 256})


def qa() -> GlueRun:
    """Answers in a text, from JSON in SQuAD's format or .jsonl with its columns: windows of 384 tokens."""
    return own().changed(data={"kind": "spans", "max_seq_length": 384})


def parse() -> GlueRun:
    """A head and a relation for each word, from .conllu files or tables, trained like glue/own."""
    return own().changed(data={"kind": "tree", "max_seq_length": 256})


def _preset(task: str) -> Callable[[], GlueRun]:
    def preset() -> GlueRun:
        return _run(task)

    preset.__doc__ = (
        f"{task} of GLUE: 3 passes, batches of 32, warm-up over a tenth of the steps, peak learning rate 5e-5."
    )
    return preset


def _pixel(data: GlueDataConfig, peak_lr: float, *, num_steps: int = 15_000, **text: Any) -> GlueRun:
    """A published fine-tuning of PIXEL (Rust et al. 2022, https://arxiv.org/abs/2207.06991)."""
    dropout = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    return GlueRun(
        num_steps=num_steps,
        model=GlueModelConfig(encoder_settings={"model": dropout} | ({"text": text} if text else {})),
        data=data,
        optimizer=OptimizerConfig(peak_lr=peak_lr),
        schedule=ScheduleConfig(num_warmup_steps=100),
        checkpoint=CheckpointConfig(every_steps=500, keep_last=1, keep_best=KeepBestConfig(metric="score", mode="max")),
        evaluate=EvaluateConfig(
            every_steps=500,
            num_examples=1_000_000,
            early_stopping=EarlyStoppingConfig(metric="score", mode="max", patience=5),
        ),
        log=LogConfig(every_steps=100),
    )


def pixel_glue() -> GlueRun:
    """PIXEL on GLUE: add data.task=TASK. 256 patches, batches of 256, at most 15,000 steps, peak learning rate 3e-5."""
    return _pixel(GlueDataConfig(batch_size=256, microbatch_size=64, max_seq_length=256), 3e-5, clean_up=True)


def pixel_tags() -> GlueRun:
    """PIXEL on parts of speech and entities: 256 patches, batches of 64, at most 15,000 steps, peak learning rate
    5e-5. Entities of MasakhaNER used data.max_seq_length=196."""
    return _pixel(GlueDataConfig(kind="tags", batch_size=64, max_seq_length=256), 5e-5)


def pixel_parse() -> GlueRun:
    """PIXEL on dependency parsing: 256 patches, batches of 64, at most 15,000 steps, peak learning rate 8e-5; the root
    is the tanh of a layer on the class token."""
    return _pixel(GlueDataConfig(kind="tree", batch_size=64, max_seq_length=256), 8e-5, pooling="cls")


def pixel_qa() -> GlueRun:
    """PIXEL on question answering: windows of 400 patches, stride 160, questions of 128, batches of 32, at most 20,000
    steps, peak learning rate 7e-5."""
    spans = SpanConfig(stride=160, max_question_length=128)
    return _pixel(GlueDataConfig(kind="spans", batch_size=32, max_seq_length=400, spans=spans), 7e-5, num_steps=20_000)


PRESETS: Mapping[str, Callable[[], GlueRun]] = {
    **{name: _preset(name) for name, task in TASKS.items() if task.valid_splits},
    "own": own,
    "parse": parse,
    "qa": qa,
    "tags": tags,
    "pixel-glue": pixel_glue,
    "pixel-parse": pixel_parse,
    "pixel-qa": pixel_qa,
    "pixel-tags": pixel_tags,
}
