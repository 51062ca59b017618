"""Complete configs of the BERT recipe by name. This module does not import torch. Only the data paths are missing."""

from collections.abc import Callable

from pretrainkit.recipes.bert.config import (
    AnyModelConfig,
    BertDataConfig,
    BertModelConfig,
    BertObjectiveConfig,
    BertRun,
    ModernModelConfig,
)
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, LogConfig

SABERTOOTH_VOCAB_SIZE = 32_128
"""251 x 128: 256 bytes, 5 control pieces, 31,867 learned pieces."""


def _bert(num_layers: int, hidden_size: int, vocab_size: int | None = None) -> BertModelConfig:
    """Return a model of BERT's family: heads of width 64, feed-forward layers four times as wide as the model."""
    return BertModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
    )


def _small(
    num_steps: int,
    model: AnyModelConfig,
    optimizer: OptimizerConfig,
    *,
    batch_size: int,
    num_warmup_steps: int,
    every_steps: int,
    num_examples: int = 512,
) -> BertRun:
    """Return a run for little compute. It is saved and evaluated every `every_steps` steps."""
    return BertRun(
        num_steps=num_steps,
        model=model,
        data=BertDataConfig(batch_size=batch_size),
        optimizer=optimizer,
        schedule=ScheduleConfig(num_warmup_steps=num_warmup_steps),
        checkpoint=CheckpointConfig(every_steps=every_steps),
        evaluate=EvaluateConfig(every_steps=every_steps, num_examples=num_examples),
    )


def tiny() -> BertRun:
    """2 layers x 128, for tests and first trials. It learns visibly in about two minutes on 2 CPU cores.

    0.40 M parameters in the blocks; with the embeddings of 8,000 pieces 1.5 M. It uses the vocabulary of its data.
    """
    optimizer = OptimizerConfig(peak_lr=2e-3, beta2=0.98, weight_decay=0.01)
    return _small(600, _bert(2, 128), optimizer, batch_size=64, num_warmup_steps=60, every_steps=200)


def modern_tiny() -> BertRun:
    """2 layers x 128 of the ModernBERT design, used by the demo. It learns about twice as fast per step as bert/tiny.

    0.33 M parameters in the blocks; with the embeddings of 4,096 pieces 0.89 M. With rotary positions, even such a
    small model attends to a word's neighbours from the start; learned positions must first be trained. It has sentence
    order, and all layers attend to the whole example. It uses the vocabulary of its data.
    """
    model = ModernModelConfig(
        hidden_size=128, num_layers=2, num_heads=2, intermediate_size=256, global_every=1, max_positions=512
    )
    optimizer = OptimizerConfig(peak_lr=3e-3, beta2=0.98, weight_decay=0.01)
    return _small(1_500, model, optimizer, batch_size=32, num_warmup_steps=100, every_steps=250)


def mini() -> BertRun:
    """4 layers x 256, the smallest model worth fine-tuning. 6,000 steps take about an hour on 2 CPU cores.

    3.2 M parameters in the blocks; with the embeddings of 16,000 pieces 7.5 M. It uses the vocabulary of its data.
    """
    optimizer = OptimizerConfig(peak_lr=1e-3, beta2=0.98, weight_decay=0.01)
    return _small(
        6_000, _bert(4, 256), optimizer, batch_size=64, num_warmup_steps=600, every_steps=500, num_examples=1024
    )


def modern_mini() -> BertRun:
    """4 layers x 256 of the ModernBERT design, for little compute. It learns far faster per step than bert/mini.

    2.9 M parameters in the blocks; with the embeddings of 8,192 pieces 5.2 M. On the same text and with the same
    settings, bert/mini had a loss of 6.1 after 1,100 steps, which is that of guessing by word frequency (README.md).
    This model had 4.7 after 600 steps, because rotary positions let it attend to neighbours at once. All layers attend
    to the whole example. It learns masked words only, with Muon. It uses the vocabulary of its data.
    """
    model = ModernModelConfig(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=640, global_every=1)
    optimizer = OptimizerConfig(name="muon", peak_lr=3e-3, momentum=0.95, beta2=0.98, weight_decay=0.01)
    run = _small(6_000, model, optimizer, batch_size=32, num_warmup_steps=100, every_steps=500, num_examples=1024)
    return run.changed(objective={"sentence_order": False})


def base() -> BertRun:
    """12 layers x 768, 111,341,442 parameters with heads: BERT-base with our defaults, for one GPU or one node.

    Steps, batch size, length and learning rate are those of bert/recipe-a. Unlike there, gradients are clipped at norm
    1, batches are packed, all examples are shuffled, no token is lost, and random replacements are learned pieces.
    1,000,000 steps of 1024 examples of 128 tokens are 131 G tokens: 7.2e19 FLOPs.
    """
    return BertRun(
        num_steps=1_000_000,
        model=_bert(12, 768, SABERTOOTH_VOCAB_SIZE),
        data=BertDataConfig(batch_size=1024),
        optimizer=OptimizerConfig(peak_lr=1e-4),
        schedule=ScheduleConfig(num_warmup_steps=10_000),
        checkpoint=CheckpointConfig(every_steps=10_000),
        log=LogConfig(every_steps=100),
        evaluate=EvaluateConfig(every_steps=10_000),
    )


def large() -> BertRun:
    """24 layers x 1024, 337,872,258 parameters with heads: BERT-large for one node or more, else like bert/base."""
    return base().changed(model=_bert(24, 1024, SABERTOOTH_VOCAB_SIZE))


def modern_base() -> BertRun:
    """22 layers x 768 of the ModernBERT design: 135,628,672 parameters with our 32,128 pieces.

    Rotary positions, GeGLU, layer norm before the layers, no biases, two local layers (window 128) after each global
    one, no segments and no sentence order, 30 % masking, packed batches of examples of up to 1,024 tokens. The learning
    rate stays at 8e-4 after the warm-up and is then decayed, as in ModernBERT. 100,000 steps of 512 examples are at
    most 52 G tokens. (With ModernBERT's own 50,368 pieces it has the 149 M parameters of the paper.)
    """
    return BertRun(
        num_steps=100_000,
        model=ModernModelConfig(
            vocab_size=SABERTOOTH_VOCAB_SIZE, hidden_size=768, num_layers=22, num_heads=12, intermediate_size=1152
        ),
        objective=BertObjectiveConfig(masking_rate=0.3, max_predictions=None, sentence_order=False),
        data=BertDataConfig(batch_size=512, max_seq_length=1024),
        optimizer=OptimizerConfig(peak_lr=8e-4, beta2=0.98, weight_decay=1e-5),
        schedule=ScheduleConfig(name="wsd", num_warmup_steps=3_000, num_decay_steps=10_000),
        checkpoint=CheckpointConfig(every_steps=2_000),
        log=LogConfig(every_steps=50),
        evaluate=EvaluateConfig(every_steps=2_000),
    )


def recipe_a() -> BertRun:
    """Sabertooth's single-host recipe for BERT-base, 82.8 on GLUE's dev sets: 1024 x 1 M steps, learning rate 1e-4.

    It computes the same as the code of the published results: rows of 128, batch rows that continue their documents,
    random replacements from the whole vocabulary, and the squared-norm clip (a gradient of norm g > 1 is scaled to norm
    1/g).
    """
    return base().changed(
        objective=BertObjectiveConfig(random_replacement="whole_vocabulary_compat"),
        data=BertDataConfig(batch_size=1024, batching="rows", order="lanes", chunking="sabertooth"),
        optimizer=OptimizerConfig(peak_lr=1e-4, clip="squared_norm_legacy"),
        log=LogConfig(every_steps=200),
    )


def recipe_b() -> BertRun:
    """Sabertooth's large-batch recipe for BERT-base, 82.7 on GLUE's dev sets: 4096 x 125 k steps, learning rate 1e-3.

    It sees half the examples of recipe A (the original used a TPU v3-32). The squared-norm clip at 0.4 changes
    gradients of norm 0.632 and more. Otherwise like recipe A.
    """
    optimizer = OptimizerConfig(
        peak_lr=1e-3,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-11,
        weight_decay=0.1,
        max_grad_norm=0.4,
        clip="squared_norm_legacy",
    )
    schedule = ScheduleConfig(num_warmup_steps=3_125)
    return recipe_a().changed(num_steps=125_000, data={"batch_size": 4096}, optimizer=optimizer, schedule=schedule)


PRESETS: dict[str, Callable[[], BertRun]] = {
    "tiny": tiny,
    "modern-tiny": modern_tiny,
    "mini": mini,
    "modern-mini": modern_mini,
    "base": base,
    "large": large,
    "modern-base": modern_base,
    "recipe-a": recipe_a,
    "recipe-b": recipe_b,
}
"""Maps the name of a preset, without the recipe, to the function that returns it."""
