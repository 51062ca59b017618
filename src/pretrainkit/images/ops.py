"""The image transforms by name, with their settings. Torch-free and Pillow-free: `transforms.py` carries them out.

A transform works on one RGB image and draws from the generator of its example only.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.config.fields import Rate


def _ascending(limits: tuple[float, float]) -> tuple[float, float]:
    if limits[0] > limits[1]:
        raise ValueError(f"the smallest, {limits[0]}, is larger than the largest, {limits[1]}; exchange the two")
    return limits


Shares = Annotated[tuple[Rate, Rate], AfterValidator(_ascending)]
PositiveRange = Annotated[tuple[PositiveFloat, PositiveFloat], AfterValidator(_ascending)]


class Resize(Config):
    """To size x size; the aspect ratio is not kept. Bilinear with antialiasing."""

    op: Literal["resize"] = "resize"
    """Name of the transform."""
    size: PositiveInt = 224
    """Pixels of each side."""


class ResizeShorter(Config):
    """The shorter side to `size`, the aspect ratio is kept. Antialiased."""

    op: Literal["resize_shorter"] = "resize_shorter"
    """Name of the transform."""
    size: PositiveInt = 224
    """Pixels of the shorter side; the longer one is rounded down."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """Kernel of the resampling."""


class CenterCrop(Config):
    """The central size x size; smaller images are padded with black first."""

    op: Literal["center_crop"] = "center_crop"
    """Name of the transform."""
    size: PositiveInt = 224
    """Pixels of each side."""


class RandomCrop(Config):
    """A random size x size; smaller images are padded with black, as much on each side, first."""

    op: Literal["random_crop"] = "random_crop"
    """Name of the transform."""
    size: PositiveInt = 224
    """Pixels of each side."""


class RandomFlip(Config):
    """Mirrored left to right."""

    op: Literal["random_flip"] = "random_flip"
    """Name of the transform."""
    probability: Rate = 0.5
    """How often it is applied."""


class RandomResizeCrop(Config):
    """A random part of the image, resized to size x size, bilinear."""

    op: Literal["random_resize_crop"] = "random_resize_crop"
    """Name of the transform."""
    size: PositiveInt = 224
    """Pixels of each side."""
    scale: Shares = (0.6, 1.0)
    """Smallest and largest share of the area."""
    ratio: PositiveRange = (3 / 4, 4 / 3)
    """Smallest and largest width / height, drawn log-uniformly."""


class AutoAugment(Config):
    """One of the 25 ImageNet policies (Cubuk et al. 2018, https://arxiv.org/abs/1805.09501)."""

    op: Literal["autoaug"] = "autoaug"
    """Name of the transform."""


class ColorDistortion(Config):
    """SimCLR's: colour jitter, sometimes grey (Chen et al. 2020, https://arxiv.org/abs/2002.05709)."""

    op: Literal["color_distortion"] = "color_distortion"
    """Name of the transform."""
    strength: Annotated[float, Field(gt=0, le=2.5)] = 1.0
    """Factor of all jitters: brightness, contrast and saturation by 0.8, hue by 0.2 of a turn, at 1."""


class ColorJitter(Config):
    """Brightness, contrast and saturation, each by a factor of 1 - amount to 1 + amount, in random order."""

    op: Literal["color_jitter"] = "color_jitter"
    """Name of the transform."""
    amount: Rate = 0.4
    """Largest change of each."""


class GaussianBlur(Config):
    """Blurred with a random radius."""

    op: Literal["gaussian_blur"] = "gaussian_blur"
    """Name of the transform."""
    probability: Rate = 0.5
    """How often it is applied."""
    radius: PositiveRange = (0.1, 2.0)
    """Smallest and largest, in pixels."""


class RandomErasing(Config):
    """Random boxes overwritten; the last transform, on normalized pixels (Zhong et al. 2017,
    https://arxiv.org/abs/1708.04896)."""

    op: Literal["random_erasing"] = "random_erasing"
    """Name of the transform."""
    probability: Rate = 0.25
    """How often it is applied."""
    fill: Literal["pixel", "rand", "const"] = "pixel"
    """Normal noise for each pixel, one normal colour for each box, or 0."""
    max_boxes: PositiveInt = 1
    """Boxes, from 1 to so many."""


ImageTransform = Annotated[
    Resize
    | ResizeShorter
    | CenterCrop
    | RandomCrop
    | RandomFlip
    | RandomResizeCrop
    | AutoAugment
    | ColorDistortion
    | ColorJitter
    | GaussianBlur
    | RandomErasing,
    Field(discriminator="op"),
]
