"""Presets: complete configs of the PIXEL recipe by name, without data paths. This module does not import torch."""

from collections.abc import Callable

from pretrainkit.recipes.pixel.config import PixelDataConfig, PixelModelConfig, PixelObjectiveConfig, PixelRun
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ParameterGroup, ScheduleConfig
from pretrainkit.training.run import CheckpointConfig, LogConfig

FINAL_LR = 1e-5
"""Final learning rate of the published run, independent of the peak."""


def tiny() -> PixelRun:
    """4 layers, width 128; decoder: 2 layers, width 96. For tests and trials. 1.2 M parameters; rows of 64 patches.

    It differs from the published models so that a narrow model learns letters within minutes: rotary positions, white
    pixels are 0, initial weights with the deviation 128^-0.5, and single hidden patches between visible ones. It works
    best with a monospaced font and strategy="words", which give two whole letters per patch. With its AdamW, the step
    at which letters appear depends on the seed; with Muon, as in `pretrainkit demo pixel`, it hardly does.
    """
    return PixelRun(
        num_steps=1_500,
        model=PixelModelConfig(
            hidden_size=128,
            num_layers=4,
            num_heads=2,
            intermediate_size=512,
            decoder_hidden_size=96,
            decoder_num_layers=2,
            decoder_num_heads=2,
            decoder_intermediate_size=384,
            max_patches=64,
            positions="rotary",
            rotary_theta=100.0,
            pixel_zero="white",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.088,
        ),
        objective=PixelObjectiveConfig(mask_ratio=0.3, max_span_length=1, cumulative_span_weights=(1.0,), spacing=1),
        data=PixelDataConfig(batch_size=16, max_patches=64, min_text_patches=12),
        optimizer=OptimizerConfig(peak_lr=3e-3, beta2=0.95, epsilon=1e-8, weight_decay=0.05),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=50, floor=0.05),
        checkpoint=CheckpointConfig(every_steps=250),
        evaluate=EvaluateConfig(every_steps=250, num_examples=256, num_samples=3),
    )


def tiny_grid() -> PixelRun:
    """pixel/tiny with positions of a fixed grid: a ViTMAE, whose export transformers can load.

    1.2 M parameters. It learns more slowly than with rotary positions, which have no Hugging Face form.
    """
    run = tiny()
    model = run.model.model_dump() | {"positions": "grid", "decoder_norm_epsilon": run.model.layer_norm_epsilon}
    del model["rotary_theta"]
    return run.changed(model=PixelModelConfig.model_validate(model))


def small() -> PixelRun:
    """The published pixel-small-continuous: 12 layers, width 384; decoder: 4 layers, width 264. 25,598,544 parameters.
    The other settings are those of pixel/base."""
    model = PixelModelConfig(
        hidden_size=384,
        num_layers=12,
        num_heads=6,
        intermediate_size=1536,
        decoder_hidden_size=264,
        decoder_num_layers=4,
        decoder_num_heads=6,
        decoder_intermediate_size=1056,
    )
    return base().changed(model=model)


def base() -> PixelRun:
    """The published pixel-base: 12 layers, width 768; decoder: 8 layers, width 512. 112,334,080 parameters.

    The config is "scratch_noto_span0.25-dropout" with "fp16_apex_bs32": 1,000,000 steps of 256 rows of 529 patches. The
    peak learning rate is 1.5e-4 x batch / 256, which is 1.5e-4 here; scale optimizer.peak_lr with data.batch_size. The
    learning rate ends at 1e-5, which is schedule.floor x peak. The original used float16; precision.compute=auto uses
    bfloat16. Weight decay applies to everything except biases and norms.
    """
    peak_lr = 1.5e-4
    return PixelRun(
        seed=42,
        num_steps=1_000_000,
        model=PixelModelConfig(
            hidden_size=768,
            num_layers=12,
            num_heads=12,
            intermediate_size=3072,
            decoder_hidden_size=512,
            decoder_num_layers=8,
            decoder_num_heads=16,
            decoder_intermediate_size=2048,
        ),
        objective=PixelObjectiveConfig(mask_region="canvas"),
        data=PixelDataConfig(batch_size=256),
        optimizer=OptimizerConfig(
            peak_lr=peak_lr,
            epsilon=1e-8,
            weight_decay=0.05,
            groups=(ParameterGroup(pattern=r"class_token|mask_token", weight_decay=0.05),),
        ),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=50_000, floor=FINAL_LR / peak_lr),
        checkpoint=CheckpointConfig(every_steps=10_000),
        log=LogConfig(every_steps=1_000),
        evaluate=EvaluateConfig(every_steps=5_000, num_samples=4),
    )


PRESETS: dict[str, Callable[[], PixelRun]] = {"tiny": tiny, "tiny-grid": tiny_grid, "small": small, "base": base}
"""Maps the name of a preset, without the recipe, to the function that returns it."""
