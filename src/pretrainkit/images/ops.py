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
Side = Annotated[PositiveInt, Field(description="Pixels of each side.")]
Probability = Annotated[Rate, Field(description="How often it is applied.")]
_NAME = Field(description="Name of the transform.")


class Resize(Config):
    """To size x size; the aspect ratio is not kept. Antialiased."""

    op: Annotated[Literal["resize"], _NAME] = "resize"
    size: Side = 224
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """Kernel of the resampling."""


class ResizeShorter(Config):
    """The shorter side to `size`, the aspect ratio is kept. Antialiased."""

    op: Annotated[Literal["resize_shorter"], _NAME] = "resize_shorter"
    size: PositiveInt = 224
    """Pixels of the shorter side; the longer one is rounded down."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """Kernel of the resampling."""


class CenterCrop(Config):
    """The central size x size; smaller images are padded with black first."""

    op: Annotated[Literal["center_crop"], _NAME] = "center_crop"
    size: Side = 224


class RandomCrop(Config):
    """A random size x size; smaller images are padded with black, as much on each side, first."""

    op: Annotated[Literal["random_crop"], _NAME] = "random_crop"
    size: Side = 224


class RandomFlip(Config):
    """Mirrored left to right."""

    op: Annotated[Literal["random_flip"], _NAME] = "random_flip"
    probability: Probability = 0.5


class RandomResizeCrop(Config):
    """A random part of the image, resized to size x size, bilinear."""

    op: Annotated[Literal["random_resize_crop"], _NAME] = "random_resize_crop"
    size: Side = 224
    scale: Shares = (0.6, 1.0)
    """Smallest and largest share of the area."""
    ratio: PositiveRange = (3 / 4, 4 / 3)
    """Smallest and largest width / height, drawn log-uniformly."""


class AutoAugment(Config):
    """One of the 25 ImageNet policies (Cubuk et al. 2018, https://arxiv.org/abs/1805.09501)."""

    op: Annotated[Literal["autoaug"], _NAME] = "autoaug"


class ColorDistortion(Config):
    """SimCLR's: colour jitter, sometimes grey (Chen et al. 2020, https://arxiv.org/abs/2002.05709)."""

    op: Annotated[Literal["color_distortion"], _NAME] = "color_distortion"
    strength: Annotated[float, Field(gt=0, le=2.5)] = 1.0
    """Factor of all jitters: brightness, contrast and saturation by 0.8, hue by 0.2 of a turn, at 1."""


class ColorJitter(Config):
    """Brightness, contrast and saturation, each by a factor of 1 - amount to 1 + amount, in random order."""

    op: Annotated[Literal["color_jitter"], _NAME] = "color_jitter"
    amount: Rate = 0.4
    """Largest change of each."""


class GaussianBlur(Config):
    """Blurred with a random radius."""

    op: Annotated[Literal["gaussian_blur"], _NAME] = "gaussian_blur"
    probability: Probability = 0.5
    radius: PositiveRange = (0.1, 2.0)
    """Smallest and largest, in pixels."""


class RandomErasing(Config):
    """Random boxes overwritten; the last transform, on normalized pixels (Zhong et al. 2017,
    https://arxiv.org/abs/1708.04896)."""

    op: Annotated[Literal["random_erasing"], _NAME] = "random_erasing"
    probability: Probability = 0.25
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
