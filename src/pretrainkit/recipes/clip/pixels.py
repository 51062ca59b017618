"""From the bytes of an image file to its place in a batch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError
from pretrainkit.images.decode import ImageError, open_image
from pretrainkit.images.erasing import erase, normalize
from pretrainkit.images.ops import ImageTransform, RandomErasing
from pretrainkit.images.transforms import compose
from pretrainkit.recipes.clip.pairs import BrokenImage, OversizedImage

Normalize = tuple[tuple[float, float, float], tuple[float, float, float]]


class PixelReader:
    """Decodes and transforms. uint8, to be normalized by the model; float32 and normalized where boxes are erased, for
    what they are filled with is not a colour."""

    def __init__(self, ops: Sequence[ImageTransform], normalize: Normalize | None) -> None:
        """
        Args:
            ops: In their order; random_erasing may only be the last.
            normalize: Mean and deviation of the colours; needed for random_erasing only.

        Raises:
            ConfigError: random_erasing is not the last, or what it needs is missing.
        """
        erasing = [op for op in ops if isinstance(op, RandomErasing)]
        if erasing and (len(erasing) > 1 or ops[-1] is not erasing[0]):
            raise ConfigError("random_erasing works on normalized pixels, so it must be the last transform, once")
        if erasing and normalize is None:
            raise ConfigError("random_erasing needs data.normalize: mean and deviation of red, green and blue")
        self._transform = compose(ops[:-1] if erasing else ops)
        self._erasing, self._normalize = erasing[0] if erasing else None, normalize

    @property
    def dtype(self) -> type[np.uint8] | type[np.float32]:
        """Of the pixels."""
        return np.uint8 if self._erasing is None else np.float32

    def __call__(self, data: bytes, generator: np.random.Generator, out: NDArray) -> None:
        """Write the image in the file content `data` into `out` (3, H, W).

        Raises:
            BrokenImage, OversizedImage: It cannot be decoded.
        """
        try:
            pixels_HW3 = self._transform(open_image(data), generator)
        except ImageError as error:
            kind = OversizedImage if error.reason == "too large" else BrokenImage
            raise kind(str(error).splitlines()[0]) from error
        if self._erasing is None:
            out[...] = pixels_HW3.transpose(2, 0, 1)
        else:
            assert self._normalize is not None
            out[...] = erase(normalize(pixels_HW3, *self._normalize), self._erasing, generator)
