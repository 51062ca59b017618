"""Complete configs of the T5 recipe by name. Imports no torch. Only the data is missing.

The sizes are those of the released models, with their exact numbers of parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pretrainkit.recipes.t5.config import (
    T5DataConfig,
    T5EvaluateConfig,
    T5ModelConfig,
    T5ObjectiveConfig,
    T5Run,
    round_vocab,
)
from pretrainkit.training.optimizers.config import AdafactorConfig, OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, LogConfig

T5_VOCAB_SIZE = round_vocab(32_000 + 100)
MT5_VOCAB_SIZE = round_vocab(250_000 + 100)
BYT5_VOCAB_SIZE = round_vocab(256 + 3)
UMT5_VOCAB_SIZE = round_vocab(256_000 + 300)


@dataclass(frozen=True)
class Size:
    hidden_size: int
    num_heads: int
    head_size: int
    intermediate_size: int
    num_encoder_layers: int
    num_decoder_layers: int
    num_parameters: int
    """Counted with the padded vocabulary."""


@dataclass(frozen=True)
class Family:
    title: str
    vocab_size: int
    sizes: dict[str, Size]
    is_gated: bool = True
    """True for gated GELU and a separate logits matrix (since T5 1.1), False for ReLU and tied logits (T5 1.0)."""
    dropout: float = 0.0
    """Dropout rate in pretraining."""
    bias_per_layer: bool = False
    batch_size: int = 2048
    lengths: tuple[int, int] = (512, 114)
    """Lengths of inputs and targets: span corruption at 15 % makes targets of this length from such inputs."""


_T5_1_0 = {
    "small": Size(512, 8, 64, 2048, 6, 6, 60_506_624),
    "base": Size(768, 12, 64, 3072, 12, 12, 222_903_552),
    "large": Size(1024, 16, 64, 4096, 24, 24, 737_668_096),
    "3b": Size(1024, 32, 128, 16_384, 24, 24, 2_851_598_336),
    "11b": Size(1024, 128, 128, 65_536, 24, 24, 11_307_321_344),
}
_T5_1_1 = {
    "small": Size(512, 6, 64, 1024, 8, 8, 76_961_152),
    "base": Size(768, 12, 64, 2048, 12, 12, 247_577_856),
    "large": Size(1024, 16, 64, 2816, 24, 24, 783_150_080),
    "xl": Size(2048, 32, 64, 5120, 24, 24, 2_849_757_184),
    "xxl": Size(4096, 64, 64, 10_240, 24, 24, 11_135_332_352),
}


def _sizes_of_1_1(*num_parameters: int) -> dict[str, Size]:
    """Return the sizes of T5 1.1 with another vocabulary."""
    sizes = zip(_T5_1_1.items(), num_parameters, strict=True)
    return {name: replace(size, num_parameters=num) for (name, size), num in sizes}


_MT5 = _sizes_of_1_1(300_176_768, 582_401_280, 1_229_581_312, 3_742_619_648, 12_921_057_280)
_UMT5 = _sizes_of_1_1(306_601_984, 592_043_520, 1_242_449_920, 3_768_356_864, 12_972_531_712)
_BYT5 = {
    "small": Size(1472, 6, 64, 3584, 12, 4, 299_637_760),
    "base": Size(1536, 12, 64, 3968, 18, 6, 581_653_248),
    "large": Size(1536, 16, 64, 3840, 36, 12, 1_228_183_552),
    "xl": Size(2560, 32, 64, 6720, 36, 12, 3_737_801_728),
    "xxl": Size(4672, 64, 64, 12_352, 36, 12, 12_906_899_328),
}

FAMILIES: dict[str, Family] = {
    "1.0": Family("T5", T5_VOCAB_SIZE, _T5_1_0, is_gated=False, dropout=0.1),
    "1.1": Family("T5 1.1", T5_VOCAB_SIZE, _T5_1_1),
    "mt5": Family("mT5", MT5_VOCAB_SIZE, _MT5, batch_size=1024, lengths=(1024, 229)),
    "byt5": Family("ByT5", BYT5_VOCAB_SIZE, _BYT5, batch_size=1024, lengths=(1024, 189)),
    "umt5": Family("umT5", UMT5_VOCAB_SIZE, _UMT5, batch_size=1024, lengths=(1024, 229), bias_per_layer=True),
}
"""Families of released models by their names in presets."""

ADAFACTOR = OptimizerConfig(name="adafactor", peak_lr=1.0, max_grad_norm=0.0)
RSQRT = ScheduleConfig(name="factors", factors=("constant", "rsqrt_decay"), num_warmup_steps=10_000)
"""0.01 for the first 10,000 updates, without a ramp, then 1 / sqrt(t)."""
UMT5_OPTIMIZER = OptimizerConfig(
    name="adafactor", peak_lr=1.0, adafactor=AdafactorConfig(beta1=0.9, factored=False), max_grad_norm=1.0
)


def model_of(family: Family, size: Size) -> T5ModelConfig:
    own = {name: value for name, value in vars(size).items() if name != "num_parameters"}
    return T5ModelConfig(
        **own,
        vocab_size=family.vocab_size,
        activations=("gelu_tanh", "linear") if family.is_gated else ("relu",),
        tied_logits=not family.is_gated,
        bias_per_layer=family.bias_per_layer,
        dropout=family.dropout,
    )


def _released(family: Family, name: str) -> Callable[[], T5Run]:
    """Return the preset of one size: its model, and the pretraining of T5 with Adafactor for a million steps."""
    size = family.sizes[name]

    def make() -> T5Run:
        input_length, target_length = family.lengths
        return T5Run(
            num_steps=1_000_000,
            model=model_of(family, size),
            objective=T5ObjectiveConfig(normalize_by="real_target_tokens" if family.bias_per_layer else "none"),
            data=T5DataConfig(batch_size=family.batch_size, input_length=input_length, target_length=target_length),
            optimizer=UMT5_OPTIMIZER if family.bias_per_layer else ADAFACTOR,
            schedule=RSQRT,
            log=LogConfig(every_steps=100),
            evaluate=T5EvaluateConfig(every_steps=10_000),
        )

    title = f"{family.title} {name.upper() if name in ('xl', 'xxl', '3b', '11b') else name}"
    layers = f"{size.num_encoder_layers} + {size.num_decoder_layers} layers x {size.hidden_size}"
    make.__doc__ = f"{title}: {layers}, {size.num_parameters:,} parameters."
    return make


def _even(num_layers: int, **sizes: Any) -> T5ModelConfig:
    """Return a model with the same number of layers in encoder and decoder."""
    return T5ModelConfig(num_encoder_layers=num_layers, num_decoder_layers=num_layers, **sizes)


def tiny() -> T5Run:
    """2 + 2 layers x 8, 518,240 parameters: for tests of everything except the model. It learns little."""
    return T5Run(
        num_steps=200,
        model=_even(2, vocab_size=T5_VOCAB_SIZE, hidden_size=8, num_heads=4, head_size=3, intermediate_size=16),
        data=T5DataConfig(batch_size=16, input_length=64, target_length=18),
        optimizer=ADAFACTOR,
        schedule=RSQRT,
        checkpoint=CheckpointConfig(every_steps=100),
        evaluate=T5EvaluateConfig(every_steps=100, num_examples=128),
    )


def _small(num_steps: int, model: T5ModelConfig, data: T5DataConfig, num_warmup_steps: int, every_steps: int) -> T5Run:
    return T5Run(
        num_steps=num_steps,
        model=model,
        objective=T5ObjectiveConfig(normalize_by="real_target_tokens"),
        data=data,
        optimizer=OptimizerConfig(peak_lr=2e-2, scale_by_parameter_rms=True, weight_decay=0.0),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=num_warmup_steps, floor=5e-4),
        checkpoint=CheckpointConfig(every_steps=every_steps),
        evaluate=T5EvaluateConfig(every_steps=every_steps, num_examples=512),
    )


def micro() -> T5Run:
    """2 + 2 layers x 128, 1.3 M parameters with 2,048 pieces: the model of `pretrainkit demo t5`.

    In the style of T5 1.1, with the vocabulary of its data. It learns in minutes on a CPU.
    """
    return _small(
        num_steps=600,
        model=_even(2, hidden_size=128, num_heads=4, head_size=32, intermediate_size=256),
        data=T5DataConfig(batch_size=32, input_length=64, target_length=18),
        num_warmup_steps=60,
        every_steps=100,
    )


def mini() -> T5Run:
    """4 + 4 layers x 256 in the style of T5 1.1: the smallest model worth fine-tuning.

    It has 6.3 M parameters in the blocks, 10.5 M with the embeddings and logits of 8,192 pieces, and uses the
    vocabulary of its data. AdamW takes steps relative to the parameter, which nanoT5 found better than Adafactor for
    short runs.
    """
    return _small(
        num_steps=6_000,
        model=_even(4, hidden_size=256, num_heads=4, intermediate_size=512),
        data=T5DataConfig(batch_size=32),
        num_warmup_steps=500,
        every_steps=500,
    )


def base_nano() -> T5Run:
    """T5 1.1 base in 65,536 steps of 128 examples, as nanoT5 trains it on one GPU: AdamW with RMS scaling, cosine.

    Published: 1.953 nats per held-out target token of C4 (T5 1.1 at this length of training: 1.942), 10 to 24 hours on
    one A100. Our warm-up starts at 0, nanoT5's at half the peak rate. Source: https://arxiv.org/abs/2309.02373.
    """
    return _released(FAMILIES["1.1"], "base")().model_copy(
        update={
            "num_steps": 65_536,
            "model": model_of(FAMILIES["1.1"], FAMILIES["1.1"].sizes["base"]).model_copy(update={"dropout": 0.0}),
            "objective": T5ObjectiveConfig(normalize_by="real_target_tokens", z_loss=0.0),
            "data": T5DataConfig(batch_size=128, input_length=512, target_length=114),
            "optimizer": OptimizerConfig(peak_lr=2e-2, scale_by_parameter_rms=True, weight_decay=0.0),
            "schedule": ScheduleConfig(name="cosine", num_warmup_steps=10_000, floor=5e-4),
            "evaluate": T5EvaluateConfig(every_steps=16_384, num_examples=64_000),
        }
    )


PRESETS: dict[str, Callable[[], T5Run]] = {
    "tiny": tiny,
    "micro": micro,
    "mini": mini,
    "1.1-base-nano": base_nano,
    **{
        f"{family_name}-{size_name}": _released(family, size_name)
        for family_name, family in FAMILIES.items()
        for size_name in family.sizes
    },
}
"""Functions that return the presets, by name without the recipe."""
