"""Decode an image file and write it to its place in a batch."""

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
    """Turn errors of decoding into a reason that is counted."""
    try:
        yield
    except ImageError as error:
        reason: Reason = "oversized image" if error.reason == "too large" else "broken image"
        raise BadImage(reason, str(error).splitlines()[0]) from error


def look_at(data: bytes) -> EncodedImage:
    """Return the image in the file content `data` after reading it to its end: a JPEG at an eighth of its size. Raises
    BadImage where it is broken or oversized."""
    with explained():
        image = open_image(data)
        image.decode((1, 1))
    return image


def looked_at(
    read: Callable[[int], bytes], rows: Sequence[int], num_threads: int
) -> Iterator[tuple[int, int] | BadImage]:
    """Width and height of the image of each row, or what is wrong with it; `read` gives its file, or raises that."""

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
    """Decodes and transforms. uint8, to be normalized by the model; float32 and normalized where boxes are erased, for
    what they are filled with is not a colour."""

    def __init__(
        self,
        ops: Sequence[ImageTransform],
        normalize: Normalize | None,
        *,
        is_exact: bool = False,
        is_fast: bool = False,
    ) -> None:
        """Raises ConfigError where images would keep different sizes, or random_erasing lacks `normalize`.

        Args:
            normalize: Mean and deviation of the colours; needed for random_erasing only.
            is_exact: Decode whole and resize by Pillow, as evaluation does.
            is_fast: Decode JPEG a tenth faster and 1 to 2 of 255 off.
        """
        self._transform = compose(ops, is_exact=is_exact)
        if self._transform.erasing is not None and normalize is None:
            raise ConfigError(
                "random_erasing works on normalized pixels, but data.normalize is not set\n"
                "  give mean and deviation of red, green and blue: data.normalize=[[0.5,0.5,0.5],[0.5,0.5,0.5]]"
            )
        self._normalize, self._is_fast = normalize, is_fast
        self.size = self._transform.size
        """Pixels of each side."""
        self.dtype: type[np.generic] = np.uint8 if self._transform.erasing is None else np.float32

    def __call__(self, data: bytes, generator: np.random.Generator, out: NDArray) -> None:
        """Write the image in the file content `data` into `out` (3, H, W). Raises BadImage
        where it is broken or oversized."""
        with explained():
            pixels_HW3 = self._transform.load(data, generator, is_fast=self._is_fast)
        erasing = self._transform.erasing
        if erasing is None:
            out[...] = pixels_HW3.transpose(2, 0, 1)
        else:
            assert self._normalize is not None
            out[...] = erase(normalize(pixels_HW3, *self._normalize), erasing, generator)
