"""Changes of colour and sharpness. Results are those of Pillow's ImageEnhance and ImageFilter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pretrainkit.images.pillow import Pixels, from_pillow, to_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Property = Literal["brightness", "contrast", "saturation", "hue"]


class Adjustment(NamedTuple):
    """One change of one property."""

    property: Property
    amount: float
    """A factor; for hue the turn around the colour circle, -0.5 to 0.5."""


def adjust(image_HW3: Pixels, adjustments: tuple[Adjustment, ...]) -> Pixels:
    """All changes in their order."""
    from PIL import ImageEnhance

    kinds = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}
    image = to_pillow(image_HW3)
    for name, amount in adjustments:
        image = _turn_hue(image, amount) if name == "hue" else kinds[name](image).enhance(amount)
    return from_pillow(image)


def _turn_hue(image: Image, turn: float) -> Image:
    """In steps of 1/255 towards 0, as torchvision."""
    from PIL import Image

    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(int(turn * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def grey(image_HW3: Pixels) -> Pixels:
    """Luminance in all three channels."""
    return from_pillow(to_pillow(image_HW3).convert("L").convert("RGB"))


def blur(image_HW3: Pixels, radius: float) -> Pixels:
    """Pillow's Gaussian blur; radius in pixels."""
    from PIL import ImageFilter

    return from_pillow(to_pillow(image_HW3).filter(ImageFilter.GaussianBlur(radius)))
