"""Tokens as something people read: pictures, texts, boxes, figures, and a sheet of them. Torch-free.

Pictures of modalities that are read without an image tokenizer are made here; those of tokenizers are made by whatever
is handed in for the modality.

Dimensions: B examples, P places of a grid, H x W pixels.
"""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pretrainkit.images.pillow import Pixels, require_pillow
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.readers import DepthMap
from pretrainkit.recipes.fourm.sequences import Ids
from pretrainkit.recipes.fourm.serialise import METADATA, metadata_value
from pretrainkit.recipes.fourm.text import TextVocabulary

_HEAT = np.array([(20, 20, 70), (30, 90, 200), (40, 190, 190), (200, 220, 70), (250, 150, 40), (180, 30, 30)], float)
"""Colours from near to far, or from low to high."""
_GOLDEN = 0.61803398875
_NUMBERS: Mapping[str, int] = {"depth": 1, "colors": 3}
"""By the reader of a modality."""
_BOX = re.compile(r"v0=(\d+) v1=(\d+) v2=(\d+) v3=(\d+) ((?:(?!v\d=).)+)")
_FIGURE = re.compile(r"v1=(\d+) v0=(\d+)")
_NUMBER = re.compile(r"v0=(\d+)")
Cell = Pixels | str | None
_SIDE = 128
"""Pixels of a cell."""
_GAP, _HEAD = 6, 18
_CHARACTERS = 20
"""Of a line in a cell."""


class ImageDecoder(Protocol):
    """What makes images of tokens (B, P), row by row: of an image tokenizer."""

    vocab_size: int
    """Different tokens."""
    has_numbers: bool
    """Whether its images are of numbers that can be near each other; else of classes."""

    def decode(self, ids: Ids, /) -> NDArray[Any]:
        """As files hold them: uint8 (B, H, W, 3) or (B, H, W), float32 (B, H, W) of depth, (B, C, H, W) of features."""

    def pictures(self, ids: Ids, /) -> NDArray[np.uint8]:
        """uint8 (B, 3, H, W), for people."""


def picture(modality: Modality, ids_P: Ids, decoders: Mapping[str, ImageDecoder]) -> Pixels | None:
    """uint8 (H, W, 3) of the tokens of an image; None where nobody can decode them."""
    if modality.name in decoders:
        return decoders[modality.name].pictures(ids_P[None])[0].transpose(1, 2, 0)
    painted, grid = _PAINTERS.get(modality.reader), ids_P.reshape(modality.grid)
    if painted is None:
        return None
    patch = modality.patch_size or 1
    return np.repeat(np.repeat(painted(modality, grid), patch, axis=0), patch, axis=1)


def values_of(modality: Modality, ids_P: Ids) -> NDArray[np.float64]:
    """What the tokens of an image without a tokenizer stand for: of depth deviations, of colours 0 to 255 (P, 3), else
    the ids themselves."""
    assert modality.vocab_size is not None
    if modality.reader == "depth":
        return (ids_P + 0.5) / modality.vocab_size * 2 * DepthMap.reach - DepthMap.reach
    if modality.reader == "colors":
        steps = round(modality.vocab_size ** (1 / numbers_of(modality)))
        digits = np.stack([ids_P // steps**2, ids_P // steps % steps, ids_P % steps], axis=-1)
        return (digits + 0.5) * 256 / steps
    return ids_P.astype(np.float64)


def numbers_of(modality: Modality) -> int:
    """How many numbers in equal steps a token of an image stands for, the last changing fastest; 0: it is a name."""
    return _NUMBERS.get(modality.reader, 0)


def _colors(modality: Modality, grid: Ids) -> Pixels:
    return values_of(modality, grid).astype(np.uint8)


def _heat(modality: Modality, grid: Ids) -> Pixels:
    share = (values_of(modality, grid) + DepthMap.reach) / (2 * DepthMap.reach)
    place = share.clip(0, 1) * (len(_HEAT) - 1)
    return np.stack([np.interp(place, np.arange(len(_HEAT)), _HEAT[:, c]) for c in range(3)], -1).astype(np.uint8)


def _classes(modality: Modality, grid: Ids) -> Pixels:
    """Colours that neighbouring classes do not share; the first is black."""
    number = np.arange(modality.vocab_size or 1)
    hue = number * _GOLDEN % 1 * 6
    value = np.where(number % 3 == 2, 160, 235)
    ramp = [np.abs((hue + shift) % 6 - 3) - 1 for shift in (0, 4, 2)]
    found = (np.stack(ramp, -1).clip(0, 1) * value[:, None]).astype(np.uint8)
    found[0] = 0
    return found[grid]


_PAINTERS: Mapping[str, Callable[[Modality, Ids], Pixels]] = {"colors": _colors, "depth": _heat, "classes": _classes}
"""By the reader of a modality."""


def structure(modality: Modality, ids: Ids, vocabulary: TextVocabulary) -> Any:
    """A sequence as the JSON that its reader reads; a text where it is no such thing."""
    text = vocabulary.decode(ids)
    made = _STRUCTURES.get(modality.reader)
    return text if made is None else made(text)


def _boxes(text: str) -> dict[str, Any]:
    """Those that are whole; coordinates are shares of the image."""
    return {
        "instances": [
            {"boxes": [int(value) / 999 for value in sides], "class_name": name.strip(), "score": 1.0}
            for *sides, name in _BOX.findall(text)
        ]
    }


def _metadata(text: str) -> dict[str, float]:
    pairs = ((METADATA[int(n)], int(value)) for n, value in _FIGURE.findall(text) if int(n) < len(METADATA))
    return {name: metadata_value(name, value) for name, value in pairs}


def _palette(text: str) -> list[dict[str, list[list[int]]]]:
    values = [min(int(value), 255) for value in _NUMBER.findall(text)]
    colors = [values[start : start + 3] for start in range(0, len(values) // 3 * 3, 3)]
    return [{str(len(colors)): colors}]


_STRUCTURES: Mapping[str, Callable[[str], Any]] = {"boxes": _boxes, "metadata": _metadata, "palette": _palette}
"""By the reader of a modality."""


def contact_sheet(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Any:
    """A Pillow image of rows with a cell for each heading; pictures keep their shape.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    require_pillow("a contact sheet")
    from PIL import Image, ImageDraw

    step = _SIDE + _GAP
    sheet = Image.new("RGB", (len(columns) * step + _GAP, len(rows) * step + _GAP + _HEAD), "white")
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(columns):
        draw.text((_GAP + column * step, 3), title[:_CHARACTERS], fill="black")
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            left, top = _GAP + column * step, _HEAD + _GAP + row * step
            if isinstance(cell, str):
                draw.multiline_text((left, top), _wrapped(cell), fill="black", spacing=2)
            elif cell is not None:
                picture = Image.fromarray(np.ascontiguousarray(cell))
                scale = _SIDE / max(picture.size)
                size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
                kind = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
                sheet.paste(picture.resize(size, kind), (left, top))
    return sheet


def with_boxes(image_HW3: Pixels, instances: Sequence[dict[str, Any]]) -> Pixels:
    """A copy with frames around boxes, which are shares of the image, and their classes."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(np.ascontiguousarray(image_HW3))
    image = image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(image)
    for one in instances:
        left, top, right, bottom = (value * (_SIDE - 1) for value in one["boxes"])
        corners = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
        draw.rectangle(corners, outline="red")
        draw.text((corners[0] + 2, corners[1] + 1), one["class_name"], fill="red")
    return np.asarray(image)


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(" ".join(text.split()), _CHARACTERS, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines[:10])
