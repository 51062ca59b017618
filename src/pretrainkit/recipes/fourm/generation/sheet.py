"""A contact sheet: examples in rows, modalities in columns, pictures and texts. Torch-free.

Dimensions: H x W pixels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretrainkit.errors import MissingPackageError
from pretrainkit.images.pillow import Pixels

Cell = Pixels | str | None
_SIDE = 128
"""Pixels of a cell."""
_GAP, _HEAD = 6, 18
_CHARACTERS = 20
"""Of a line in a cell."""


def contact_sheet(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Any:
    """A Pillow image.

    Args:
        columns: Headings.
        rows: A cell for each heading; pictures keep their shape.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise MissingPackageError("pillow", "vision", "a contact sheet") from None
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
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= _CHARACTERS and lines[-1]:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return "\n".join(lines[:10])
