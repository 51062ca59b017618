"""What turns images into features, for those who ask what the features are worth."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class ImageEncoder:
    """The part of a trained model that turns images into features, for probing."""

    module: nn.Module
    """What computes; it is not to be changed."""
    encode: Callable[[Tensor], Tensor]
    """uint8 (B, 3, H, W) on the module's device to features (B, F), before any projection or normalisation."""
    image_size: int
    """Pixels of each side that it is made for."""
