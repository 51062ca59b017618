"""Interfaces of image towers and text towers, and our own towers.

Dimensions: B images or captions, T tokens, D width of the tower.
"""

from typing import Any

from torch import Tensor, nn

from pretrainkit.errors import ConfigError
from pretrainkit.nn.initialise import built
from pretrainkit.nn.text_transformer import TextTransformer
from pretrainkit.nn.vit import VisionTransformer
from pretrainkit.recipes.clip.config import TextTransformerConfig, VitConfig
from pretrainkit.recipes.clip.presets import HALF

Color = tuple[float, float, float]
"""Values of red, green and blue."""


class Tower(nn.Module):
    """An encoder of images or of captions."""

    width: int
    """Width of the features, D."""
    encoder: Any

    def blocks(self) -> list[nn.Module]:
        """Return the submodules to compile, shard and recompute one by one."""
        return self.encoder.blocks()

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return self.encoder(*inputs, **named)


class ImageTower(Tower):
    """Encoder of images. `forward` maps normalized pixels (B, 3, H, W) to features (B, D)."""

    mean_and_deviation: tuple[Color, Color]
    """Mean and deviation of pixels in [0, 1] in the training of the encoder."""


class TextTower(Tower):
    """Encoder of captions. `forward` maps integer ids (B, T) and numbers of real tokens (B,) (None: all are real) to
    features (B, D)."""


class OwnImageTower(ImageTower):
    """Image tower with our `VisionTransformer`."""

    mean_and_deviation = HALF  # pixels in [0, 1] to [-1, 1]

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        if config.image_size % config.patch_size:
            raise ConfigError(
                f"model.image.image_size={config.image_size} is not a multiple of "
                f"model.image.patch_size={config.patch_size}\n  nearest that fits: "
                f"model.image.image_size={max(1, config.image_size // config.patch_size) * config.patch_size}"
            )
        self.width, shared = config.hidden_size, _shared("image", config)
        shared |= {"patch_size": config.patch_size, "patch_dropout_rate": config.patch_dropout}
        self.encoder = built(
            lambda: VisionTransformer(image_size=config.image_size, **shared), VisionTransformer.initialise
        )


class OwnTextTower(TextTower):
    """Text tower with our `TextTransformer`."""

    def __init__(self, config: TextTransformerConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("model.text.vocab_size is unknown: bind the config to its data, or set it")
        self.width, shared = config.hidden_size, _shared("text", config)
        shared |= {"vocab_size": config.vocab_size, "max_positions": config.max_positions}
        self.encoder = built(lambda: TextTransformer(is_causal=config.causal, **shared), TextTransformer.initialise)


def _shared(name: str, config: VitConfig | TextTransformerConfig) -> dict[str, Any]:
    """Return the arguments of both transformers."""
    if config.hidden_size % config.num_heads:
        raise ConfigError(
            f"model.{name}.hidden_size={config.hidden_size} is not a multiple of "
            f"model.{name}.num_heads={config.num_heads}\n  use heads of width 64: "
            f"model.{name}.num_heads={max(1, config.hidden_size // 64)}"
        )
    return {
        "width": config.hidden_size,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "inner_width": config.intermediate_size,
        "activation": config.activation,
        "pool": config.pool,
        "attention_dropout_rate": config.attention_dropout,
        "epsilon": config.layer_norm_epsilon,
    }
