"""The crop of a sample, shared by all of its modalities. Coordinates are pixels of the image that it was drawn on."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pretrainkit.config.base import Config
from pretrainkit.errors import DataError
from pretrainkit.images.decode import EncodedImage
from pretrainkit.images.ops import PositiveRange, Shares
from pretrainkit.images.pillow import Pixels
from pretrainkit.images.transforms import Window

_TRIES = 10


class CropConfig(Config):
    """Crop of a sample, shared by all of its modalities. Samples with precomputed image tokens store their crops in
    `crop_settings`: one of these crops is drawn; with flip=0 only from the crops that are not mirrored."""

    scale: Shares = (0.2, 1.0)
    """Smallest and largest share of the area in training. (1, 1) with ratio (1, 1): the largest centre square."""
    ratio: PositiveRange = (3 / 4, 4 / 3)
    """Smallest and largest width / height in training, drawn log-uniformly."""
    flip: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability that a sample is mirrored left to right in training."""


@dataclass(frozen=True)
class Part:
    """A rectangle of an image, optionally mirrored."""

    top: int
    left: int
    height: int
    width: int
    is_flipped: bool
    size: tuple[int, int]
    """(height, width) of the whole image."""
    number: int = 0
    """Index of this crop among the stored crops of the sample: a row of its tokens."""

    def read(self, encoded: EncodedImage, height: int, width: int, *, is_exact: bool) -> Pixels:
        """Return this part, (height, width, 3), of an image file of the same view, decoding only the necessary pixels.

        `is_exact`: decode a JPEG at its full size and resize it with Pillow, instead of decoding at a reduced size.
        """
        # The file may have another resolution than the image that the part was drawn on.
        down, right = encoded.height / self.size[0], encoded.width / self.size[1]
        top, left = round(self.top * down), round(self.left * right)
        window = Window(
            source=(encoded.width, encoded.height),
            left=left,
            top=top,
            width=max(min(round(self.width * right), encoded.width - left), 1),
            height=max(min(round(self.height * down), encoded.height - top), 1),
            size=(width, height),
            is_exact=is_exact,
        )
        return self.flipped(window(encoded.decode(window.wanted())))

    def nearest(self, values_HW: NDArray, height: int, width: int) -> NDArray:
        """Return (height, width) values of a map of the same view at the cell centres of a grid on the part."""
        # Cell centres in pixels of the image that the part was drawn on, then of the map.
        rows = (self.top + (np.arange(height) + 0.5) * (self.height / height)) * (values_HW.shape[0] / self.size[0])
        columns = (self.left + (np.arange(width) + 0.5) * (self.width / width)) * (values_HW.shape[1] / self.size[1])
        sampled = values_HW[
            np.minimum(rows.astype(np.int64), values_HW.shape[0] - 1)[:, None],
            np.minimum(columns.astype(np.int64), values_HW.shape[1] - 1),
        ]
        return self.flipped(sampled)

    def flipped(self, values_HW: Pixels) -> Pixels:
        """Return the values, mirrored along the second axis if the part is mirrored."""
        return values_HW[:, ::-1] if self.is_flipped else values_HW

    def boxes(self, boxes_N4: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert boxes (xmin, ymin, xmax, ymax) from shares of the image to shares of the part, without clipping."""
        height, width = self.size
        # First to pixels of the whole image, like albumentations: an edge on the border of the part becomes 0 or 1.
        pixels_N4 = boxes_N4 * np.array([width, height, width, height])
        moved_N4 = (pixels_N4 - np.array([self.left, self.top] * 2)) / np.array([self.width, self.height] * 2)
        if self.is_flipped:
            moved_N4 = np.stack([1 - moved_N4[:, 2], moved_N4[:, 1], 1 - moved_N4[:, 0], moved_N4[:, 3]], axis=1)
        return moved_N4


def centre_square(height: int, width: int) -> Part:
    """Return the largest centre square, not mirrored."""
    side = min(height, width)
    return Part((height - side) // 2, (width - side) // 2, side, side, False, (height, width))


def draw_part(crop: CropConfig, height: int, width: int, rng: np.random.Generator) -> Part:
    """Draw a part of random area and aspect ratio. After ten draws that do not fit into the image, return the largest
    centre square. Either may be mirrored."""
    is_flipped = bool(rng.random() < crop.flip)
    for _ in range(_TRIES):
        area = height * width * rng.uniform(*crop.scale)
        ratio = math.exp(rng.uniform(math.log(crop.ratio[0]), math.log(crop.ratio[1])))
        drawn_width, drawn_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < drawn_width <= width and 0 < drawn_height <= height:
            top = int(rng.integers(height - drawn_height, endpoint=True))
            left = int(rng.integers(width - drawn_width, endpoint=True))
            return Part(top, left, drawn_height, drawn_width, is_flipped, (height, width))
    return replace(centre_square(height, width), is_flipped=is_flipped)


def stored_part(settings_C5: NDArray[np.integer], number: int, size: tuple[int, int] | None, name: str) -> Part:
    """Return row `number` of the stored crops (top, left, height, width, 1 if mirrored) of precomputed tokens.

    `size` is (height, width) of the image; None: the extent of all crops. Raises DataError if the table is invalid, or
    of a larger image."""
    table = np.asarray(settings_C5)
    if table.ndim != 2 or table.shape[1] != 5 or not len(table) or table.dtype.kind not in "iu":
        raise DataError(
            f"{name} contains {table.dtype} {table.shape}, not integers (N, 5): top, left, height, width, mirrored\n"
            "  create the tokens of this data set again"
        )
    extent = (int((table[:, 0] + table[:, 2]).max()), int((table[:, 1] + table[:, 3]).max()))
    size = size or extent
    if extent[0] > size[0] or extent[1] > size[1]:
        raise DataError(
            f"{name} has crops of at least {extent[1]} x {extent[0]} pixels, but the image has {size[1]} x {size[0]}\n"
            "  give the images that were tokenized, or create the tokens of this data set again"
        )
    top, left, height, width, is_flipped = table[number].tolist()
    return Part(top, left, height, width, bool(is_flipped), size, number)
