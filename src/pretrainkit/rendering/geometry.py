"""Where things lie on a canvas: one line of square patches."""

import math

from pretrainkit.config.base import Config

LEFT_MARGIN = 2
"""White columns before a text that begins a canvas or follows a separator, and the least number after it."""


class Geometry(Config):
    """The canvas: `num_patches` squares of `patch` pixels beside each other."""

    patch: int
    """Pixels of a patch's side."""
    num_patches: int
    """Patches of a canvas; the last one can only be blank or the end patch."""

    @property
    def width(self) -> int:
        """Pixels of the canvas."""
        return self.patch * self.num_patches

    @property
    def last(self) -> int:
        """First column of the last patch."""
        return self.patch * (self.num_patches - 1)

    def next_patch(self, column: float) -> int:
        """First column of the first patch that begins at `column` or after it; the last patch's where there is none."""
        return min(math.ceil(column / self.patch) * self.patch, self.last)
