"""Decoding of image files into batches."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError
from pretrainkit.images.decode import EncodedImage, ImageError, open_image
from pretrainkit.images.ops import ImageTransform
from pretrainkit.images.transforms import compose, erase, normalize
from pretrainkit.recipes.clip.pairs import BadImage, Reason

_AT_ONCE = 256
Normalize = tuple[tuple[float, float, float], tuple[float, float, float]]


@contextmanager
def explained() -> Iterator[None]:
    """Convert errors of decoding to BadImage with a reason."""
    try:
        yield
    except ImageError as error:
        reason: Reason = "oversized image" if error.reason == "too large" else "broken image"
        raise BadImage(reason, str(error).splitlines()[0]) from error


def look_at(data: bytes) -> EncodedImage:
    """Check that an image file can be decoded to its end (a JPEG at an eighth of its size), and return the image.
    Raises BadImage if it is broken or too large."""
    with explained():
        image = open_image(data)
        image.decode((1, 1))
    return image


def looked_at(
    read: Callable[[int], bytes], rows: Sequence[int], num_threads: int
) -> Iterator[tuple[int, int] | BadImage]:
    """Yield width and height of the image of each row, or its BadImage. `read` returns the file of a row, or raises
    BadImage."""

    def look(row: int) -> tuple[int, int] | BadImage:
        try:
            image = look_at(read(row))
        except BadImage as error:
            return error
        return image.width, image.height

    with ThreadPoolExecutor(num_threads) as pool:
        for start in range(0, len(rows), _AT_ONCE):
            yield from pool.map(look, rows[start : start + _AT_ONCE])


class PixelReader:
    """Decodes and transforms images. The result is uint8, which the model normalizes. With random erasing, it is
    float32 and normalized, because erased boxes are filled with noise in normalized values."""

    def __init__(
        self,
        ops: Sequence[ImageTransform],
        normalize: Normalize | None,
        *,
        is_exact: bool = False,
        is_fast: bool = False,
    ) -> None:
        """Create the reader. Raises ConfigError if images would have different sizes, or `normalize` is missing for
        random_erasing.

        Args:
            normalize: Mean and deviation of the colours; needed only for random_erasing.
            is_exact: True to decode images completely and resize them by Pillow, as in evaluation.
            is_fast: True to decode JPEG 10 % faster, with an average error of 1 to 2 of 255.
        """
        self._transform = compose(ops, is_exact=is_exact)
        if self._transform.erasing is not None and normalize is None:
            raise ConfigError(
                "random_erasing works on normalized pixels, but data.normalize is not set\n"
                "  give mean and deviation of red, green and blue: data.normalize=[[0.5,0.5,0.5],[0.5,0.5,0.5]]"
            )
        self._normalize, self._is_fast = normalize, is_fast
        self.size = self._transform.size
        """Height and width of the result, in pixels."""
        self.dtype: type[np.generic] = np.uint8 if self._transform.erasing is None else np.float32

    def __call__(self, data: bytes, generator: np.random.Generator, out: NDArray) -> None:
        """Write the image in the file content `data` to `out` (3, H, W). Raises BadImage if it is broken or too
        large."""
        with explained():
            pixels_HW3 = self._transform.load(data, generator, is_fast=self._is_fast)
        erasing = self._transform.erasing
        if erasing is None:
            out[...] = pixels_HW3.transpose(2, 0, 1)
        else:
            assert self._normalize is not None
            out[...] = erase(normalize(pixels_HW3, *self._normalize), erasing, generator)
