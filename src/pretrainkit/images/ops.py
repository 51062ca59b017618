"""Settings of the image transforms by name. This module imports neither torch nor Pillow; `transforms.py` applies them.

A transform works on one RGB image, and takes random numbers only from the generator of its example.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.config.fields import Rate


def _ascending(limits: tuple[float, float]) -> tuple[float, float]:
    if limits[0] > limits[1]:
        raise ValueError(f"the minimum {limits[0]} is larger than the maximum {limits[1]}; exchange the two")
    return limits


Shares = Annotated[tuple[Rate, Rate], AfterValidator(_ascending)]
PositiveRange = Annotated[tuple[PositiveFloat, PositiveFloat], AfterValidator(_ascending)]
Side = Annotated[PositiveInt, Field(description="Height and width of the result in pixels.")]
Probability = Annotated[Rate, Field(description="Probability that the transform is applied.")]
_NAME = Field(description="Name of the transform.")


class Resize(Config):
    """Resize to size x size with antialiasing, ignoring the aspect ratio."""

    op: Annotated[Literal["resize"], _NAME] = "resize"
    size: Side = 224
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """Kernel of the resampling."""


class ResizeShorter(Config):
    """Resize with antialiasing so that the shorter side has `size` pixels, keeping the aspect ratio."""

    op: Annotated[Literal["resize_shorter"], _NAME] = "resize_shorter"
    size: PositiveInt = 224
    """Pixels of the shorter side; the longer one is rounded down."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """Kernel of the resampling."""


class CenterCrop(Config):
    """Crop the central size x size pixels. Smaller images are first padded with black."""

    op: Annotated[Literal["center_crop"], _NAME] = "center_crop"
    size: Side = 224


class RandomCrop(Config):
    """Crop size x size pixels at a random position. Smaller images are first padded with black equally on all sides."""

    op: Annotated[Literal["random_crop"], _NAME] = "random_crop"
    size: Side = 224


class RandomFlip(Config):
    """Mirror the image horizontally with a probability."""

    op: Annotated[Literal["random_flip"], _NAME] = "random_flip"
    probability: Probability = 0.5


class RandomResizeCrop(Config):
    """Crop a random part of the image and resize it to size x size bilinearly."""

    op: Annotated[Literal["random_resize_crop"], _NAME] = "random_resize_crop"
    size: Side = 224
    scale: Shares = (0.6, 1.0)
    """Minimum and maximum share of the area."""
    ratio: PositiveRange = (3 / 4, 4 / 3)
    """Minimum and maximum aspect ratio (width / height), drawn log-uniformly."""


class AutoAugment(Config):
    """Apply one of AutoAugment's 25 ImageNet policies (Cubuk et al. 2018, https://arxiv.org/abs/1805.09501)."""

    op: Annotated[Literal["autoaug"], _NAME] = "autoaug"


class ColorDistortion(Config):
    """SimCLR's colour distortion: random colour jitter, and sometimes grey (Chen et al. 2020,
    https://arxiv.org/abs/2002.05709)."""

    op: Annotated[Literal["color_distortion"], _NAME] = "color_distortion"
    strength: Annotated[float, Field(gt=0, le=2.5)] = 1.0
    """Factor of all changes. At 1, brightness, contrast and saturation change by up to 0.8, hue by up to 0.2 of a
    turn."""


class ColorJitter(Config):
    """Multiply brightness, contrast and saturation by factors of 1 - amount to 1 + amount, in random order."""

    op: Annotated[Literal["color_jitter"], _NAME] = "color_jitter"
    amount: Rate = 0.4
    """Maximum change of each factor."""


class GaussianBlur(Config):
    """Blur the image with a random radius."""

    op: Annotated[Literal["gaussian_blur"], _NAME] = "gaussian_blur"
    probability: Probability = 0.5
    radius: PositiveRange = (0.1, 2.0)
    """Minimum and maximum radius in pixels."""


class RandomErasing(Config):
    """Overwrite random boxes (Zhong et al. 2017, https://arxiv.org/abs/1708.04896). It works on normalized pixels and
    must be the last transform."""

    op: Annotated[Literal["random_erasing"], _NAME] = "random_erasing"
    probability: Probability = 0.25
    fill: Literal["pixel", "rand", "const"] = "pixel"
    """Content of the boxes. pixel: normal noise per pixel. rand: one normally distributed colour per box. const: 0."""
    max_boxes: PositiveInt = 1
    """Maximum number of boxes."""


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
