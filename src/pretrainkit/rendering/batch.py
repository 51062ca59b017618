"""Rendered texts as arrays for a model.

Dimensions: B texts, L patches of a canvas, P pixels per side of a patch, D = P * P * C values of a patch in row-major
order, colours last; C is 3 with `rgb`, else 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.encoding import Encoding
from pretrainkit.rendering.page import Text
from pretrainkit.rendering.renderer import Renderer


class PatchBatch(NamedTuple):
    """Rendered texts as patches."""

    patches_BLD: NDArray[np.uint8]
    """uint8. Patches after the end patch of a text have the background colour."""
    num_patches_B: NDArray[np.int32]
    """Number of patches of each text, including the end patch."""

    def is_real(self) -> NDArray[np.bool_]:
        """Return bool (B, L), False after the end patch of a text."""
        return np.arange(self.patches_BLD.shape[1]) < self.num_patches_B[:, None]


def render_batch(
    renderer: Renderer, texts: Sequence[Text], *, num_patches: int | None = None, multiple_of: int = 1
) -> PatchBatch:
    """Render one or more texts into one array. Raises ValueError if there is no text, or if a text needs more than
    `num_patches`.

    Args:
        num_patches: L. None: the number of patches of the longest text.
        multiple_of: Round L up to a multiple of this.
    """
    if not texts:
        raise ValueError("a batch without texts cannot be rendered\n  give at least one text")
    strips = [renderer.columns(text) for text in texts]
    P = renderer.config.pixels_per_patch
    counts_B = np.array([len(strip) // P for strip in strips], np.int32)
    longest = int(counts_B.max())
    if num_patches is not None and longest > num_patches:
        raise ValueError(
            f"a text needs {longest} patches, but the batch has {num_patches}\n  use a max_seq_length of {num_patches}"
        )
    L = -(-(num_patches or longest) // multiple_of) * multiple_of
    C = 3 if renderer.config.rgb else 1
    blocks_BLPPC = np.empty((len(texts), L, P, P, C), np.uint8)
    for row_LPPC, strip, count in zip(blocks_BLPPC, strips, counts_B.tolist(), strict=True):
        for color in range(C):
            plane_XP = strip if strip.ndim == 2 else strip[..., color]
            row_LPPC[:count, :, :, color] = plane_XP.reshape(count, P, P).swapaxes(1, 2)
        row_LPPC[count:] = renderer.background
    return PatchBatch(blocks_BLPPC.reshape(len(texts), L, P * P * C), counts_B)


def float_pixels(encoding: Encoding) -> NDArray[np.float32]:
    """Return the input of the original's models, float32 (3, P, L * P). White is 1, black is 0; grey is repeated in all
    three colours."""
    pixels = encoding.pixel_values
    planes = np.empty((3, *pixels.shape[:2]), np.float32)
    if pixels.ndim == 3:
        np.divide(pixels.transpose(2, 0, 1), np.float32(255), out=planes)
    else:
        np.divide(pixels, np.float32(255), out=planes[0])
        planes[1:] = planes[0]
    return planes
