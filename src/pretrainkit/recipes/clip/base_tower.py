"""What a tower is, wherever its layers come from.

Dimensions: B images or captions, T tokens, D width of the tower.
"""

from abc import ABC, abstractmethod

from torch import nn

Color = tuple[float, float, float]
"""Red, green, blue."""

HALF: tuple[Color, Color] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Mean and deviation that bring pixels in [0, 1] to [-1, 1]."""


class Tower(nn.Module, ABC):
    """An encoder of images or of captions."""

    width: int
    """D."""

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """The submodules to compile, shard and recompute one by one."""


class ImageTower(Tower):
    """forward: normalized pixels (B, 3, H, W) to (B, D)."""

    mean_and_deviation: tuple[Color, Color]
    """What the encoder was trained with, of pixels in [0, 1]."""


class TextTower(Tower):
    """forward: int ids (B, T) and the numbers of real tokens (B,), None where all are, to (B, D)."""
