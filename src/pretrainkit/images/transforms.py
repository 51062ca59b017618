"""Apply the transforms of `ops.py`.

All random choices for an image depend only on its size and are drawn before decoding. The image is then decoded no
larger than necessary:

    header -> draw(rng) -> steps -> decode(wanted) -> steps applied -> uint8 (size, size, 3)

Random numbers come only from the generator, in the order of the transforms. They do not depend on the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError
from pretrainkit.images import autoaugment, ops
from pretrainkit.images.decode import Data, EncodedImage, open_image
from pretrainkit.images.ops import ImageTransform, RandomErasing, RandomResizeCrop
from pretrainkit.images.pillow import Pixels, planes_of, to_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Kernel = Literal["bilinear", "bicubic"]
Property = Literal["brightness", "contrast", "saturation", "hue"]
Adjustment = tuple[Property, float]
"""A property and its factor; for hue, the rotation around the colour circle, -0.5 to 0.5."""
Step = Callable[[Pixels], Pixels]
"""A transform without random choices left."""
Normalized = NDArray[np.float32]
"""Normalized image, (3, height, width)."""
_ERASED_AREA = (0.02, 1 / 3)
_ERASED_RATIO = (0.3, 1 / 0.3)
_TRIES = 10


def resize(
    image_HW3: Pixels, width: int, height: int, kernel: Kernel = "bilinear", *, is_exact: bool = False
) -> Pixels:
    """Resize to (height, width, 3) with antialiasing. The result is a view of planes, unless the size does not change
    or `is_exact` is set.

    torch's kernel for uint8 uses Pillow's arithmetic with 16-bit instead of 32-bit weights. For photographs, one in 250
    values differs: by 1 for bilinear, by at most 2 for bicubic. With AVX2 it takes less than a third of Pillow's time
    (0.24 ms instead of 0.85 ms for 400 x 330 to 224 x 224 on one core); without AVX2 it takes the same time.

    `is_exact`: resize with Pillow, bit for bit as torchvision, timm and open_clip resize a Pillow image.
    """
    if image_HW3.shape[:2] == (height, width):
        return image_HW3
    if is_exact:
        from PIL.Image import Resampling

        return np.asarray(to_pillow(image_HW3).resize((width, height), Resampling[kernel.upper()]))
    import torch.nn.functional as F
    from torch import from_numpy

    # Copy a crop to contiguous memory here: torch would copy it with several threads, which compete with data workers.
    # A side of one pixel counts as contiguous even if it is flipped, but torch does not accept negative strides.
    is_owned = image_HW3.flags.c_contiguous and image_HW3.flags.writeable and min(image_HW3.strides) > 0
    owned_HW3 = image_HW3 if is_owned else np.array(image_HW3, np.uint8, order="C")
    # unsqueeze instead of [None] in NumPy: only its strides count as channels last in torch, for which it has a kernel.
    image_13HW = from_numpy(owned_HW3).unsqueeze(0).permute(0, 3, 1, 2)
    resized_13HW = F.interpolate(image_13HW, size=(height, width), mode=kernel, antialias=True)
    return np.ascontiguousarray(resized_13HW[0].numpy()).transpose(1, 2, 0)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Crop a part of an image and resize it."""

    source: tuple[int, int]
    """(width, height) of the image to which the part refers. The input may be a smaller version of it."""
    left: int
    top: int
    width: int
    height: int
    size: tuple[int, int]
    """(width, height) of the result."""
    kernel: Kernel = "bilinear"
    is_exact: bool = False
    """Decode at full size and resize with Pillow."""

    def wanted(self) -> tuple[int, int]:
        """Return (width, height) of the smallest image in which the part is at least as large as the result; with
        `is_exact`, those of the full image."""
        if self.is_exact:
            return self.source
        return (
            _wanted(self.source[0], self.width, self.size[0]),
            _wanted(self.source[1], self.height, self.size[1]),
        )

    def __call__(self, image_HW3: Pixels) -> Pixels:
        scale = round(self.source[0] / image_HW3.shape[1])
        columns = _scaled(self.left, self.width, self.source[0], scale)
        rows = _scaled(self.top, self.height, self.source[1], scale)
        return resize(image_HW3[rows, columns], *self.size, self.kernel, is_exact=self.is_exact)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Crop a square without resizing."""

    left: int
    top: int
    size: int
    """Height and width in pixels. The area outside of the image is black."""

    def __call__(self, image_HW3: Pixels) -> Pixels:
        rows, columns = slice(max(self.top, 0), self.top + self.size), slice(max(self.left, 0), self.left + self.size)
        part_HW3 = image_HW3[rows, columns]
        if part_HW3.shape[:2] == (self.size, self.size):
            return part_HW3
        black_HW3 = np.zeros((self.size, self.size, 3), np.uint8)
        top, left = max(-self.top, 0), max(-self.left, 0)
        black_HW3[top : top + part_HW3.shape[0], left : left + part_HW3.shape[1]] = part_HW3
        return black_HW3


@dataclass(frozen=True, kw_only=True)
class Compose:
    """A sequence of transforms. It can be pickled."""

    ops: tuple[ImageTransform, ...]
    """All transforms except random erasing."""
    erasing: RandomErasing | None
    """Random erasing, which `erase` applies after normalization."""
    size: int
    """Height and width of the result in pixels."""
    is_exact: bool
    """See `compose`."""

    def __call__(self, image_HW3: Pixels, rng: np.random.Generator) -> Pixels:
        """Transform uint8 (H, W, 3) to uint8 (size, size, 3). The result may be read-only and a view of planes."""
        height, width, _ = image_HW3.shape
        return _apply(self.draw(width, height, rng), image_HW3)

    def load(self, data: Data | EncodedImage, rng: np.random.Generator, *, is_fast: bool = False) -> Pixels:
        """Decode a file no larger than necessary, and transform it. Raises ImageError if the file is missing, damaged
        or too large.

        Random numbers are the same as those of `__call__` on the decoded file. The pixels are also the same, except for
        large JPEGs that are decoded at a reduced size (without `is_exact`): these are sharper, and for photographs they
        differ by 3 of 255 on average.

        Args:
            data: The content of a file, its path, or the result of `open_image`.
            rng: Generator of the example.
            is_fast: See `EncodedImage.decode`.
        """
        encoded = data if isinstance(data, EncodedImage) else open_image(data)
        steps = self.draw(encoded.width, encoded.height, rng)
        wanted = steps[0].wanted() if steps and isinstance(steps[0], Window) else None
        return _apply(steps, encoded.decode(wanted, is_fast=is_fast))

    def draw(self, width: int, height: int, rng: np.random.Generator) -> tuple[Step, ...]:
        """Draw the steps for an image of this size."""
        steps: list[Step] = []
        for op in self.ops:
            steps += _draw(op, width, height, rng)
            width, height = _size_after(op, width, height)
        if self.is_exact:
            steps = [replace(step, is_exact=True) if isinstance(step, Window) else step for step in steps]
        return tuple(steps)


def compose(ops: Sequence[ImageTransform], *, is_exact: bool = False) -> Compose:
    """Join transforms in order. Raises ConfigError if the resulting images would have different sizes, or if random
    erasing is not last.

    `is_exact`: decode at full size and resize with Pillow, for evaluation. The pixels equal those of torchvision."""
    *pixel_ops, last = ops or (None,)
    erasing = last if isinstance(last, RandomErasing) else None
    if last is not None and erasing is None:
        pixel_ops.append(last)
    problems = []
    if any(isinstance(op, RandomErasing) for op in pixel_ops):
        problems.append("random_erasing works on normalized pixels\n  make it the last transform, and the only one")
    # Two shapes that become equal only by a transform with a fixed output size.
    sizes = [(1021, 509), (257, 769)]
    for op in pixel_ops:
        sizes = [_size_after(op, *size) for size in sizes]
    if len({side for size in sizes for side in size}) > 1:
        names = ", ".join(op.op for op in pixel_ops) or "nothing"
        problems.append(
            f"the transforms ({names}) leave images of different sizes, which cannot form a batch\n"
            "  end with one that fixes both sides: resize, center_crop, random_crop or random_resize_crop"
        )
    if problems:
        raise ConfigError(problems)
    return Compose(ops=tuple(pixel_ops), erasing=erasing, size=sizes[0][0], is_exact=is_exact)


def _apply(steps: Sequence[Step], image_HW3: Pixels) -> Pixels:
    for step in steps:
        image_HW3 = step(image_HW3)
    return image_HW3


def _wanted(total: int, part: int, least: float) -> int:
    """Return the decoded length of a side of `total` pixels for which `part` of them become at least `least` pixels."""
    spare = 0 if part == total else 1  # because both ends are rounded
    return math.ceil(total * (least + spare) / part)


def _scaled(start: int, length: int, total: int, scale: int) -> slice:
    """Convert a part of a side of `total` pixels to pixels at a scale of 1 / `scale`, rounded."""
    end = start + length
    # The last decoded pixel may cover fewer than `scale` pixels.
    return slice((start + scale // 2) // scale, -(-end // scale) if end == total else (end + scale // 2) // scale)


def _size_after(op: ImageTransform, width: int, height: int) -> tuple[int, int]:
    match op:
        case ops.Resize() | ops.CenterCrop() | ops.RandomCrop() | RandomResizeCrop():
            return op.size, op.size
        case ops.ResizeShorter():
            shorter = min(width, height)
            # As in torchvision, the longer side is rounded down.
            return (op.size * width // shorter, op.size * height // shorter)
        case _:
            return width, height


def _draw(op: ImageTransform, width: int, height: int, rng: np.random.Generator) -> list[Step]:
    """Draw the steps of one transform for an image size; empty if the transform is not applied."""
    match op:
        case ops.Resize() | ops.ResizeShorter():
            after = _size_after(op, width, height)
            return [
                Window(
                    source=(width, height),
                    left=0,
                    top=0,
                    width=width,
                    height=height,
                    size=after,
                    kernel=op.interpolation,
                )
            ]
        case ops.CenterCrop(size=size):
            return [Cut(left=_center(width, size), top=_center(height, size), size=size)]
        case ops.RandomCrop(size=size):
            return [Cut(left=_draw_start(width, size, rng), top=_draw_start(height, size, rng), size=size)]
        case RandomResizeCrop():
            return [_draw_window(op, width, height, rng)]
        case ops.RandomFlip():
            is_flipped = rng.random() < op.probability
            return [lambda image: planes_of(image[:, ::-1]).transpose(1, 2, 0)] if is_flipped else []
        case ops.AutoAugment():
            operations = autoaugment.draw(rng)
            return [partial(autoaugment.apply, operations=operations)] if operations else []
        case ops.ColorJitter(amount=amount):
            return [_draw_jitter({"brightness": amount, "contrast": amount, "saturation": amount}, rng)]
        case ops.ColorDistortion():
            return _draw_distortion(op, rng)
        case ops.GaussianBlur():
            if rng.random() >= op.probability:
                return []
            return [partial(blur, radius=float(rng.uniform(*op.radius)))]
    raise ValueError(f"{op.op} does not work on uint8 pixels")


def _center(length: int, size: int) -> int:
    """Return the start of the central `size` of `length` pixels, rounded as in torchvision. If it is negative, the
    image must be padded by this number of pixels."""
    return round((length - size) / 2) if length >= size else -((size - length) // 2)


def _draw_start(length: int, size: int, rng: np.random.Generator) -> int:
    return int(rng.integers(length - size, endpoint=True)) if length > size else _center(length, size)


def _draw_window(op: RandomResizeCrop, width: int, height: int, rng: np.random.Generator) -> Window:
    """Draw a part with a random area and aspect ratio. After ten draws that do not fit, return the largest central part
    with an allowed aspect ratio."""
    ratio = min(max(width / height, op.ratio[0]), op.ratio[1])
    cut_width, cut_height = min(width, max(round(height * ratio), 1)), min(height, max(round(width / ratio), 1))
    left, top = (width - cut_width) // 2, (height - cut_height) // 2
    (smallest, largest), (narrowest, widest) = op.scale, op.ratio
    for _ in range(_TRIES):
        area = width * height * (smallest + (largest - smallest) * rng.random())
        ratio = narrowest * (widest / narrowest) ** rng.random()
        drawn_width, drawn_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < drawn_width <= width and 0 < drawn_height <= height:
            cut_width, cut_height = drawn_width, drawn_height
            top = int(rng.integers(height - cut_height, endpoint=True))
            left = int(rng.integers(width - cut_width, endpoint=True))
            break
    return Window(
        source=(width, height), left=left, top=top, width=cut_width, height=cut_height, size=(op.size, op.size)
    )


def _draw_jitter(amounts: dict[Property, float], rng: np.random.Generator) -> Step:
    """Draw a factor from 1 - amount (at least 0) to 1 + amount for each property, for hue from -amount to amount, in
    random order."""
    names = list(amounts)
    adjustments: list[Adjustment] = []
    for index in rng.permutation(len(names)):
        name = names[index]
        low, high = (-amounts[name], amounts[name]) if name == "hue" else (max(1 - amounts[name], 0), 1 + amounts[name])
        adjustments.append((name, float(rng.uniform(low, high))))
    return partial(adjust, adjustments=tuple(adjustments))


def _draw_distortion(op: ops.ColorDistortion, rng: np.random.Generator) -> list[Step]:
    """Draw SimCLR's distortion: jitter of four properties (probability 0.8), then grey (probability 0.2)."""
    strength = op.strength
    steps: list[Step] = []
    if rng.random() < 0.8:
        strong = 0.8 * strength
        amounts: dict[Property, float] = {"brightness": strong, "contrast": strong, "saturation": strong}
        steps.append(_draw_jitter(amounts | {"hue": 0.2 * strength}, rng))
    if rng.random() < 0.2:
        steps.append(grey)
    return steps


def adjust(image_HW3: Pixels, adjustments: tuple[Adjustment, ...]) -> Pixels:
    """Apply all adjustments in order with Pillow's ImageEnhance."""
    from PIL import ImageEnhance

    kinds = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}
    image = to_pillow(image_HW3)
    for name, amount in adjustments:
        image = _turn_hue(image, amount) if name == "hue" else kinds[name](image).enhance(amount)
    return np.asarray(image)


def _turn_hue(image: Image, turn: float) -> Image:
    """Rotate the hue by `turn`, truncated to steps of 1 / 255 as in torchvision."""
    from PIL import Image

    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(int(turn * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def grey(image_HW3: Pixels) -> Pixels:
    """Return the luminance in all three channels."""
    return np.asarray(to_pillow(image_HW3).convert("L").convert("RGB"))


def blur(image_HW3: Pixels, radius: float) -> Pixels:
    """Apply Pillow's Gaussian blur; `radius` in pixels."""
    from PIL import ImageFilter

    return np.asarray(to_pillow(image_HW3).filter(ImageFilter.GaussianBlur(radius)))


def normalize(image_HW3: Pixels, mean: tuple[float, float, float], deviation: tuple[float, float, float]) -> Normalized:
    """Return (pixel / 255 - mean) / deviation for each colour, float32 (3, H, W). Models usually do this on the
    device."""
    scale_311 = (1 / (255 * np.array(deviation))).astype(np.float32)[:, None, None]
    shift_311 = (np.array(mean) / np.array(deviation)).astype(np.float32)[:, None, None]
    return image_HW3.transpose(2, 0, 1) * scale_311 - shift_311


def erase(image_3HW: Normalized, op: RandomErasing, rng: np.random.Generator) -> Normalized:
    """With the probability of `op`, return a copy with boxes overwritten; otherwise the image itself.

    All boxes together cover 2 to 33 % of the area. Aspect ratios from 0.3 to 3.3 are drawn log-uniformly, as in timm. A
    box is left out if ten draws do not fit into the image.
    """
    if rng.random() >= op.probability:
        return image_3HW
    image_3HW = image_3HW.copy()
    _, height, width = image_3HW.shape
    num_boxes = int(rng.integers(1, op.max_boxes, endpoint=True))
    for _ in range(num_boxes):
        box = _draw_box(height, width, num_boxes, rng)
        if box is not None:
            part = image_3HW[:, *box]
            part[...] = _fill(part.shape, op, rng)
    return image_3HW


def _draw_box(height: int, width: int, num_boxes: int, rng: np.random.Generator) -> tuple[slice, slice] | None:
    for _ in range(_TRIES):
        area = rng.uniform(*_ERASED_AREA) * height * width / num_boxes
        ratio = math.exp(rng.uniform(math.log(_ERASED_RATIO[0]), math.log(_ERASED_RATIO[1])))
        num_rows, num_columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < num_rows < height and 0 < num_columns < width:
            top = int(rng.integers(height - num_rows, endpoint=True))
            left = int(rng.integers(width - num_columns, endpoint=True))
            return slice(top, top + num_rows), slice(left, left + num_columns)
    return None


def _fill(shape: tuple[int, ...], op: RandomErasing, rng: np.random.Generator) -> Normalized:
    match op.fill:
        case "pixel":
            return rng.standard_normal(shape, np.float32)
        case "rand":
            return rng.standard_normal((shape[0], 1, 1), np.float32)
        case "const":
            return np.zeros((1, 1, 1), np.float32)


def load_batch(files: Sequence[Path], transform: Compose, keys_B: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Load and transform images, RGB uint8 (B, 3, H, W). All random choices for an image depend only on its key. Raises
    ImageError if a file is missing or broken."""
    images = [transform.load(file, np.random.default_rng(int(key))) for file, key in zip(files, keys_B, strict=True)]
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))
