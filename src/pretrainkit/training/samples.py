"""Held-out examples with a model's answers, as `Recipe.sample` gives them, for those who draw them. Torch-free.

A sample is {column: value}. A value is a text, or a list of {"text": ..., "image": a data URI, "is_right": true or
false}, all of them optional.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pretrainkit.errors import MissingPackageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Sample = Mapping[str, Any]


def cells(samples: Sequence[Sample]) -> Iterator[tuple[str, str | NDArray[np.uint8]]]:
    """Texts and pictures, uint8 (H, W, 3), under the names samples/COLUMN/NUMBER; several things of a cell have a
    number each. Raises MissingPackageError where there are pictures, and Pillow is not installed."""
    for number, sample in enumerate(samples, 1):
        for column, value in sample.items():
            name = f"samples/{column}/{number}"
            if isinstance(value, str):
                yield name, value
                continue
            for place, item in enumerate(value, 1):
                own = name if len(value) == 1 else f"{name}.{place}"
                if item.get("image"):
                    yield own, _pixels(item["image"])
                elif item.get("text"):
                    yield own, str(item["text"])


def _pixels(uri: str) -> NDArray[np.uint8]:
    import numpy as np

    try:
        from PIL import Image
    except ImportError:
        raise MissingPackageError("pillow", "vision", "a picture of a sample") from None
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB"))
