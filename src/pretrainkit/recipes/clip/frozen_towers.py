"""Which towers never change what they give, so that it can be computed once. Torch-free."""

from typing import Literal

from pretrainkit.errors import ConfigError
from pretrainkit.images.ops import CenterCrop, Resize, ResizeShorter
from pretrainkit.recipes.clip.config import ClipRun

Tower = Literal["image", "text"]


def cached_towers(config: ClipRun) -> tuple[list[Tower], list[str]]:
    """The towers whose features `data.cache_frozen` keeps, and what stands in the way for the others."""
    data, found, obstacles = config.data, list[Tower](), list[str]()
    moving = [op.op for op in data.train_transforms if not isinstance(op, Resize | ResizeShorter | CenterCrop)]
    if config.model.image.trainable:
        obstacles.append("model.image.trainable=true")
    elif moving:
        obstacles.append(f"data.train_transforms has {', '.join(moving)}, which is random")
    elif config.objective.mixup is not None:
        obstacles.append("objective.mixup mixes images")
    else:
        found.append("image")
    if config.model.text.trainable:
        obstacles.append("model.text.trainable=true")
    elif data.text_augment is not None:
        obstacles.append("data.text_augment changes captions")
    elif any(isinstance(source.caption_key, dict) for source in data.train):
        obstacles.append("data.train draws from several captions")
    else:
        found.append("text")
    return found, obstacles


def check_cache(config: ClipRun) -> None:
    """Raises ConfigError where `data.cache_frozen` would keep nothing."""
    if not config.data.cache_frozen:
        return
    found, obstacles = cached_towers(config)
    if not found:
        raise ConfigError(
            f"data.cache_frozen=true, but no tower has features that stay as they are: {'; '.join(obstacles)}\n"
            "  freeze one (model.image.trainable=false) and give it fixed inputs (resize, resize_shorter or "
            "center_crop alone), or leave the cache out"
        )
