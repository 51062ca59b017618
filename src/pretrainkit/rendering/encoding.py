"""The result of rendering.

Dimensions: P pixels per side of a patch, L patches of a canvas, U used patches, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
"""Index of the first character and of the one after the last; (0, 0) for a patch without text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """A rendered text, pair of texts or list of words."""

    columns_XP: NDArray[np.uint8]
    """Used part of the canvas up to and including the end patch, column by column, uint8 (U * P, P) or (U * P, P, C).
    If the three colours are equal, they may share memory and be read-only."""
    num_patches: int
    """L, the number of patches of the whole canvas."""
    background: NDArray[np.uint8]
    """Pixel after the end patch, uint8 () or (C,)."""
    sep_patches: tuple[int, ...]
    """Indices of the black patches: the separator of a pair, then the end patch."""
    word_starts: tuple[int, ...] | None = None
    """For a list of words: index of the first patch of each drawn word, then `num_text_patches`."""
    offset_mapping: tuple[Span, ...] | None = None
    """On request: span of the characters in each of the L patches."""
    overflowing_patches: tuple[Encoding, ...] | None = None
    """On request: further canvases with the text that did not fit on this one."""
    text_ids: tuple[int, ...] | None = None
    """On request: for each of the L patches 0 (first text), 1 (second text) or -1 (black, or blank after the end)."""

    @property
    def patch(self) -> int:
        """Height and width of a patch in pixels."""
        return self.columns_XP.shape[1]

    @property
    def num_used_patches(self) -> int:
        """U, the number of patches of the text and the end patch."""
        return self.columns_XP.shape[0] // self.patch

    @property
    def num_text_patches(self) -> int:
        """Number of patches before the end patch, including separators and blanks between words."""
        return self.num_used_patches - 1

    @property
    def pixel_values(self) -> NDArray[np.uint8]:
        """The whole canvas, with background after the end patch, uint8 (P, L * P) or (P, L * P, C)."""
        P, used = self.patch, len(self.columns_XP)
        canvas = np.empty((P, self.num_patches * P, *self.columns_XP.shape[2:]), np.uint8)
        if canvas.ndim == 2:
            canvas[:, :used], canvas[:, used:] = self.columns_XP.T, self.background
            return canvas
        plane_PX = np.ascontiguousarray(self.columns_XP[..., 0].T)
        for color in range(3):  # a strided pass per colour is far faster than one pass with an inner loop of three
            canvas[:, :used, color] = self.columns_XP[..., color].T if color and not self._is_plain else plane_PX
            canvas[:, used:, color] = self.background[color]
        return canvas

    @property
    def _is_plain(self) -> bool:
        """True if the three colours share memory."""
        return self.columns_XP.strides[-1] == 0

    @property
    def patches(self) -> NDArray[np.uint8]:
        """The used patches in row-major order, uint8 (U, P, P) or (U, P, P, C). They may be read-only."""
        P = self.patch
        if self.columns_XP.ndim == 2 or self._is_plain:
            grey_XP = self.columns_XP if self.columns_XP.ndim == 2 else self.columns_XP[..., 0]
            blocks = np.ascontiguousarray(grey_XP.reshape(-1, P, P).swapaxes(1, 2))
            return blocks if self.columns_XP.ndim == 2 else np.broadcast_to(blocks[..., None], (*blocks.shape, 3))
        return np.ascontiguousarray(self.columns_XP.reshape(-1, P, P, 3).swapaxes(1, 2))

    @property
    def attention_mask(self) -> NDArray[np.float32]:
        """Attention mask, float32 (L,): 1 for the text and the end patch, 0 after it."""
        mask = np.zeros(self.num_patches, np.float32)
        mask[: self.num_used_patches] = 1
        return mask

    def square(self) -> NDArray[np.uint8]:
        """Return a square picture to look at, with ceil(sqrt(L)) patches per row, uint8 (H, H) or (H, H, C)."""
        P = self.patch
        side = int(np.ceil(np.sqrt(self.num_patches)))
        page = np.full((side * P, side * P, *self.columns_XP.shape[2:]), self.background, np.uint8)
        for index, patch in enumerate(self.patches):
            row, column = divmod(index, side)
            page[row * P : (row + 1) * P, column * P : (column + 1) * P] = patch
        return page
