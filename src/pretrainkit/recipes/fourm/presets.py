"""Presets of the 4M recipe: complete configs by name. Only the data and the tokenizer are missing.

This module does not import torch.
"""

from collections.abc import Callable
from typing import Literal

from pretrainkit.recipes.fourm.config import (
    FourMDataConfig,
    FourMModelConfig,
    FourMRun,
    LengthConfig,
    MaskingConfig,
    gated_width,
    published_model,
)
from pretrainkit.recipes.fourm.mixtures import PUBLISHED
from pretrainkit.recipes.fourm.modality import MOD7, MOD21, Modality, published
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ParameterGroup, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, LogConfig, ParallelConfig

_EPOCH = 10_000_000
"""Number of examples between two evaluations in the original."""
_EVERYTHING_BUT_NORMS_DECAYS = (ParameterGroup(pattern="mask_token", weight_decay=0.05),)


def tiny_modalities(size: int = 64, patch_size: int = 8) -> tuple[Modality, ...]:
    """Return modalities of small images and short texts, which need no image tokenizers: photographs `rgb` as pixels
    and as colours of patches, maps `depth` and `seg`, captions and boxes."""

    sides = {"image_size": size, "patch_size": patch_size}

    def image(key: str, vocab_size: int, reader: str, folder: str) -> Modality:
        names = {"name": f"{key}@{size}", "folder": folder, "reader": reader}
        return Modality.model_validate({**names, **sides, "kind": "image", "vocab_size": vocab_size})

    return (
        published("caption").model_copy(update={"length": 32}),
        image("colors", 512, "colors", "rgb"),
        image("depth", 64, "depth", "depth"),
        published("det").model_copy(update={"length": 64}),
        published("rgb@224").model_copy(update={"name": f"rgb@{size}", **sides}),
        image("seg", 256, "classes", "seg"),
    )


def tiny() -> FourMRun:
    """4 + 4 layers x 192 for images of 64 x 64 pixels: for tests and first experiments on a CPU.

    4.2 M parameters in encoder and decoder. Inputs are pixels; inputs and targets are colours, depth and classes of
    patches, captions and boxes. A data set does not need all of them. 1,500 steps of 32 examples of 64 + 64 tokens.
    """
    width, num_layers = 192, 4
    return FourMRun(
        num_steps=1_500,
        model=FourMModelConfig(
            modalities=tiny_modalities(),
            hidden_size=width,
            num_encoder_layers=num_layers,
            num_decoder_layers=num_layers,
            num_heads=width // 64,
            intermediate_size=gated_width(width),
        ),
        masking=MaskingConfig(num_input_tokens=64, num_target_tokens=64),
        data=FourMDataConfig(batch_size=32),
        optimizer=OptimizerConfig(peak_lr=1e-3, beta2=0.95, epsilon=1e-8, weight_decay=0.05),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=75),
        checkpoint=CheckpointConfig(every_steps=250),
        evaluate=EvaluateConfig(every_steps=250, num_examples=256),
    )


def _published(
    size: Literal["base", "large", "xlarge"], kind: Literal["7", "21"], batch_size: int, **more: object
) -> FourMRun:
    """Return a config that trains on 500 G tokens, as the released configs do. The learning rate is scaled with the
    batch size; its base value is for 256 examples."""
    rate = 2e-5 if size == "xlarge" else 1e-4
    modalities = MOD7 if kind == "7" else MOD21
    budget = 128 if kind == "7" else 256
    mixture = "mod7-all2all-rgb2all" if kind == "7" else "mod21-all2allmix-rgb2all-capT5bias"
    parallel = ParallelConfig(
        strategy="auto" if size == "base" else "fsdp2",
        activation_checkpointing=size == "xlarge" or (size == "large" and kind == "21"),
    )
    return FourMRun(
        num_steps=None,
        length=LengthConfig(num_tokens=500_000_000_000, num_epoch_examples=_EPOCH, num_warmup_tokens=10_000_000_000),
        model=published_model(size, tuple(published(name) for name in modalities)),
        masking=MaskingConfig(num_input_tokens=budget, num_target_tokens=budget, mixture=PUBLISHED[mixture]),
        data=FourMDataConfig(batch_size=batch_size),
        optimizer=OptimizerConfig(
            peak_lr=rate * batch_size / 256,
            beta2=0.95,
            epsilon=1e-8,
            weight_decay=0.05,
            max_grad_norm=3.0 if size == "xlarge" else 0.0,
            groups=_EVERYTHING_BUT_NORMS_DECAYS,
        ),
        schedule=ScheduleConfig(name="cosine"),
        max_skipped_steps=0 if size == "base" else 100,
        parallel=parallel,
        checkpoint=CheckpointConfig(every_steps=_EPOCH // batch_size),
        log=LogConfig(every_steps=50),
        evaluate=EvaluateConfig(every_steps=_EPOCH // batch_size),
    )


def b_7() -> FourMRun:
    """4M-7 B: 12 + 12 layers x 768, 198.8 M parameters in encoder and decoder, 360.8 M with the tables of 7 modalities.

    128 + 128 tokens of 8,192 examples per step, 239,120 steps: 501 G slots. Half of the examples have only pixels as
    input. Slots that the original left empty are filled: see masking.unused.
    """
    return _published("base", "7", 8192)


def l_7() -> FourMRun:
    """4M-7 L: 24 + 24 layers x 1024, 705.7 M parameters, 921.7 M with tables. Otherwise as fourm/b-7, with FSDP2."""
    return _published("large", "7", 8192)


def xl_7() -> FourMRun:
    """4M-7 XL: 24 + 24 layers x 2048, 2.82 G parameters, 3.25 G with tables. As fourm/l-7 with a fifth of the learning
    rate and gradients clipped at a norm of 3."""
    return _published("xlarge", "7", 8192)


def b_21() -> FourMRun:
    """4M-21 B: as fourm/b-7 with 19 inputs and 17 targets, 623.8 M parameters with tables.

    256 + 256 tokens of 4,096 examples per step, 239,218 steps. The original starts from 4M-7: for this, set
    init_from=RUN and init.missing=random."""
    return _published("base", "21", 4096)


def l_21() -> FourMRun:
    """4M-21 L: as fourm/l-7 with the modalities and budgets of fourm/b-21, 1,272.4 M parameters with tables."""
    return _published("large", "21", 4096)


def xl_21() -> FourMRun:
    """4M-21 XL: as fourm/xl-7 with the modalities and budgets of fourm/b-21, 3.96 G parameters with tables."""
    return _published("xlarge", "21", 4096)


PRESETS: dict[str, Callable[[], FourMRun]] = {
    make.__name__.replace("_", "-"): make for make in (tiny, b_7, l_7, xl_7, b_21, l_21, xl_21)
}
"""Functions that return the presets, by name without the recipe."""
