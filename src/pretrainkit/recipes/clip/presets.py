"""Complete configs of the CLIP recipe by name. Torch-free. Only the data paths are missing."""

from collections.abc import Callable

from pretrainkit.images.ops import RandomResizeCrop, Resize
from pretrainkit.recipes.clip.config import (
    ClipDataConfig,
    ClipEvaluateConfig,
    ClipModelConfig,
    ClipRun,
    ProjectionConfig,
    TextTransformerConfig,
    VitConfig,
)
from pretrainkit.training.run import CheckpointConfig, OptimizerConfig, ScheduleConfig


def tiny() -> ClipRun:
    """Two small towers on images of 64 x 64: for tests and try-outs on CPU."""
    return ClipRun(
        num_steps=600,
        model=ClipModelConfig(
            image=VitConfig(
                image_size=64, patch_size=8, hidden_size=128, num_layers=3, num_heads=4, intermediate_size=512
            ),
            text=TextTransformerConfig(
                max_positions=32, hidden_size=128, num_layers=2, num_heads=4, intermediate_size=512
            ),
            projection=ProjectionConfig(dim=128),
        ),
        data=ClipDataConfig(
            batch_size=128,
            max_length=25,
            train_transforms=(RandomResizeCrop(size=64),),
            valid_transforms=(Resize(size=64),),
        ),
        optimizer=OptimizerConfig(peak_lr=1e-3, beta2=0.98, weight_decay=0.1),
        schedule=ScheduleConfig(name="cosine", num_warmup_steps=60),
        checkpoint=CheckpointConfig(every_steps=200),
        evaluate=ClipEvaluateConfig(every_steps=200),
    )


PRESETS: dict[str, Callable[[], ClipRun]] = {"tiny": tiny}
