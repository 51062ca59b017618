"""The published fine-tunings of PIXEL (Rust et al. 2022, https://arxiv.org/abs/2207.06991) as presets. Torch-free."""

from collections.abc import Callable, Mapping
from typing import Any

from pretrainkit.recipes.glue.config import GlueDataConfig, GlueModelConfig, GlueRun, SpanConfig
from pretrainkit.training.evaluate_config import EarlyStoppingConfig, EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, KeepBestConfig, LogConfig

_EVERY = 500
"""Updates from one evaluation to the next."""


def _run(data: GlueDataConfig, peak_lr: float, *, num_steps: int = 15_000, **text: Any) -> GlueRun:
    dropout = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    return GlueRun(
        num_steps=num_steps,
        model=GlueModelConfig(encoder_settings={"model": dropout} | ({"text": text} if text else {})),
        data=data,
        optimizer=OptimizerConfig(peak_lr=peak_lr),
        schedule=ScheduleConfig(num_warmup_steps=100),
        checkpoint=CheckpointConfig(
            every_steps=_EVERY, keep_last=1, keep_best=KeepBestConfig(metric="score", mode="max")
        ),
        evaluate=EvaluateConfig(
            every_steps=_EVERY,
            num_examples=1_000_000,
            early_stopping=EarlyStoppingConfig(metric="score", mode="max", patience=5),
        ),
        log=LogConfig(every_steps=100),
    )


def pixel_glue() -> GlueRun:
    """PIXEL's GLUE: add data.task=TASK. 256 patches, batches of 256, at most 15 000 steps, peak learning rate 3e-5."""
    return _run(GlueDataConfig(batch_size=256, microbatch_size=64, max_seq_length=256), 3e-5, clean_up=True)


def pixel_tags() -> GlueRun:
    """PIXEL's parts of speech and entities: 256 patches, batches of 64, at most 15 000 steps, peak learning rate
    5e-5. Entities of MasakhaNER had data.max_seq_length=196."""
    return _run(GlueDataConfig(kind="tags", batch_size=64, max_seq_length=256), 5e-5)


def pixel_parse() -> GlueRun:
    """PIXEL's dependency parsing: 256 patches, batches of 64, at most 15 000 steps, peak learning rate 8e-5; the root
    is the tanh of a layer on the class token."""
    return _run(GlueDataConfig(kind="tree", batch_size=64, max_seq_length=256), 8e-5, pooling="cls")


def pixel_qa() -> GlueRun:
    """PIXEL's questions: windows of 400 patches, stride 160, questions of 128, batches of 32, at most 20 000 steps,
    peak learning rate 7e-5."""
    spans = SpanConfig(stride=160, max_question_length=128)
    return _run(GlueDataConfig(kind="spans", batch_size=32, max_seq_length=400, spans=spans), 7e-5, num_steps=20_000)


PIXEL_PRESETS: Mapping[str, Callable[[], GlueRun]] = {
    "pixel-glue": pixel_glue,
    "pixel-parse": pixel_parse,
    "pixel-qa": pixel_qa,
    "pixel-tags": pixel_tags,
}
