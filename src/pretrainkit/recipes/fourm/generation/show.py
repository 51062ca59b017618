"""Tokens as something people read: pictures, texts, boxes, a sheet of them, and figures: how near generated tokens come
to the truth, and how near a guess that looks at nothing comes. Torch-free.

Pictures of modalities that are read without an image tokenizer are made here; those of tokenizers are made by whatever
is handed in for the modality.

Dimensions: B examples, P places of a grid, H x W pixels.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
Boxes = Sequence[tuple[str, Sequence[float]]]
"""Class, and xmin, ymin, xmax, ymax as shares of the image."""
_MOST_GUESSES = 64
"""Texts that are tried as a guess for all."""
_MOST_DECODED = 64
"""Pictures that a guess is made of, where each takes an image tokenizer."""


class ImageDecoder(Protocol):
    """Makes images of the tokens (B, P) of an image tokenizer, row by row."""

    vocab_size: int
    """Different tokens."""
    has_numbers: bool
    """True if pixel values are numbers with a distance; False if they are classes."""

    def decode(self, ids: Ids, /) -> NDArray[Any]:
        """As files hold them: uint8 (B, H, W, 3) or (B, H, W), float32 (B, H, W) of depth, (B, C, H, W) of features."""

    def pictures(self, ids: Ids, /) -> NDArray[np.uint8]:
        """uint8 (B, 3, H, W), for people."""


def picture(modality: Modality, ids_P: Ids, decoders: Mapping[str, ImageDecoder]) -> Pixels | None:
    """Return the tokens of an image as a picture, uint8 (H, W, 3), or None if no decoder is available."""
    if modality.name in decoders:
        return decoders[modality.name].pictures(ids_P[None])[0].transpose(1, 2, 0)
    painted, grid = _PAINTERS.get(modality.reader), ids_P.reshape(modality.grid)
    if painted is None:
        return None
    patch = modality.patch_size or 1
    return np.repeat(np.repeat(painted(modality, grid), patch, axis=0), patch, axis=1)


def values_of(modality: Modality, ids_P: Ids) -> NDArray[np.float64]:
    """Return what the tokens of an image without a tokenizer stand for: of depth deviations, of colours 0 to 255 (P,
    3), else the ids themselves."""
    assert modality.vocab_size is not None
    if modality.reader == "depth":
        return (ids_P + 0.5) / modality.vocab_size * 2 * DepthMap.reach - DepthMap.reach
    if modality.reader == "colors":
        steps = round(modality.vocab_size ** (1 / numbers_of(modality)))
        digits = np.stack([ids_P // steps**2, ids_P // steps % steps, ids_P % steps], axis=-1)
        return (digits + 0.5) * 256 / steps
    return ids_P.astype(np.float64)


def numbers_of(modality: Modality) -> int:
    """Return how many numbers in equal steps a token of an image stands for, the last changing fastest; 0: it is a
    name."""
    return _NUMBERS.get(modality.reader, 0)


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


_PAINTERS: Mapping[str, Callable[[Modality, Ids], Pixels]] = {
    "colors": lambda modality, grid: values_of(modality, grid).astype(np.uint8),
    "depth": _heat,
    "classes": _classes,
}
"""By the reader of a modality."""


def structure(modality: Modality, ids: Ids, vocabulary: TextVocabulary) -> Any:
    """A sequence as the JSON that its reader reads; a text where it is no such thing."""
    text = vocabulary.decode(ids)
    made = _STRUCTURES.get(modality.reader)
    return text if made is None else made(text)


def _boxes(text: str) -> dict[str, Any]:
    """Return the complete boxes; coordinates are shares of the image."""
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
    """Return a Pillow image of rows with a cell for each heading; pictures keep their shape. Raises MissingPackageError
    where Pillow is not installed."""
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
                lines = textwrap.wrap(
                    " ".join(cell.split()), _CHARACTERS, break_long_words=False, break_on_hyphens=False
                )
                draw.multiline_text((left, top), "\n".join(lines[:10]), fill="black", spacing=2)
            elif cell is not None:
                picture = Image.fromarray(np.ascontiguousarray(cell))
                scale = _SIDE / max(picture.size)
                size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
                kind = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
                sheet.paste(picture.resize(size, kind), (left, top))
    return sheet


def with_boxes(image_HW3: Pixels, instances: Sequence[dict[str, Any]]) -> Pixels:
    """Return a copy with frames around boxes (shares of the image) and their classes."""
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


@dataclass(frozen=True)
class Judge:
    """Compares tokens of a target with the truth. Methods give means over examples by name.

    Of images `accuracy`, the share of tokens that are equal; where they stand for numbers `error`, the mean distance:
    of depth in deviations of the image's own, of colours in steps of 256. With a decoder, pictures of tokens are
    compared, which are as good as the image tokenizer: `error`, or of classes `pixels`, the share that is equal. Of
    sequences `words`, the harmonic mean of the shares of words that are right among those found and among the true
    ones, whatever their order; of boxes `iou` too, see `boxes_iou`, and `iou_of_any_class`, which only asks where they
    are.
    """

    modality: Modality
    vocabulary: TextVocabulary | None
    decoder: ImageDecoder | None = None

    def figures(self, found: Sequence[Ids], truth: Sequence[Ids]) -> dict[str, float]:
        """Compare one result of each example."""
        if self.modality.kind == "sequence":
            return {
                name: float(np.mean([agreement(read(a), read(b)) for a, b in zip(found, truth, strict=True)]))
                for name, (read, agreement) in self._agreements().items()
            }
        found_BP = np.stack(found)
        return self._of_images(found_BP, self._shown(found_BP), truth)

    def together(self, found: Sequence[Sequence[Ids]], truth: Sequence[Ids]) -> dict[str, float]:
        """Compare several results of each example taken together: the commonest token (of classes pixel) of each place,
        and the mean where they are numbers. Images only. `found`: of each example its variations."""
        votes_BP = np.stack([_commonest(np.stack(own)) for own in found])
        middle = [_middle(self._shown(np.stack(own))) for own in found]
        known = [one for one in middle if one is not None]
        return self._of_images(votes_BP, np.stack(known) if known else None, truth)

    def guessed(self, known: Sequence[Ids], truth: Sequence[Ids]) -> dict[str, float]:
        """Compare the best guess that is the same for every example, made from known ones. `accuracy`: the commonest
        token. `error`: the mean of each place. `pixels`: the commonest class of each place. `words`: of the known texts
        the one that agrees most with the others. `iou` and `iou_of_any_class`: of the known boxes those that agree most
        with the others."""
        if self.modality.kind == "sequence":
            named = {}
            for name, (read, agreement) in self._agreements().items():
                tried = [read(ids) for ids in known[:: max(1, len(known) // _MOST_GUESSES)]]
                scores = [sum(agreement(one, other) for other in tried) for one in tried]
                best = tried[scores.index(max(scores))]
                named[name] = float(np.mean([agreement(best, read(ids)) for ids in truth]))
            return named
        known_BP = np.stack(known)
        token = np.bincount(known_BP.ravel()).argmax()
        if self.decoder is not None:
            known_BP = known_BP[:: -(-len(known_BP) // _MOST_DECODED)]
        middle = _middle(self._shown(known_BP))
        return self._of_images(token, None if middle is None else middle[None], truth)

    def _agreements(self) -> Mapping[str, tuple[Any, Any]]:
        """By name, a function of the ids of a sequence, and another of how far two of its results agree."""
        vocabulary = self.vocabulary
        assert vocabulary is not None

        def words(ids: Ids) -> Counter[str]:
            return Counter(vocabulary.decode(ids).split())

        def boxes(ids: Ids) -> Boxes:
            instances = structure(self.modality, ids, vocabulary)["instances"]
            return [(one["class_name"], one["boxes"]) for one in instances]

        found: dict[str, tuple[Any, Any]] = {"words": (words, overlap)}
        if self.modality.reader == "boxes":
            found |= {"iou": (boxes, boxes_iou), "iou_of_any_class": (boxes, partial(boxes_iou, of_any_class=True))}
        return found

    def _of_images(self, ids: Any, values: NDArray | None, truth: Sequence[Ids]) -> dict[str, float]:
        truth_BP = np.stack(truth)
        true_values = self._shown(truth_BP)
        found = {"accuracy": float((ids == truth_BP).mean())}
        if values is None or true_values is None:
            return found
        if true_values.dtype.kind == "f":
            return found | {"error": float(np.abs(values - true_values).mean())}
        return found | {"pixels": float((values == true_values).mean())}

    def _shown(self, ids_BP: Ids) -> NDArray | None:
        """(B, ...) what tokens stand for: floats, or integers of classes; None: nobody knows."""
        if self.decoder is None:
            return values_of(self.modality, ids_BP) if numbers_of(self.modality) else None
        return self.decoder.decode(ids_BP).astype(np.float64 if self.decoder.has_numbers else np.int64)


def _commonest(ids_VP: Ids) -> Ids:
    """(P,) of V variations; of equally common ones the smallest."""
    return np.array([np.bincount(own).argmax() for own in ids_VP.T], np.int32)


def _middle(values_B: NDArray | None) -> NDArray | None:
    """Return one for all: the mean, or of each place the commonest class."""
    if values_B is None or values_B.dtype.kind == "f":
        return None if values_B is None else values_B.mean(axis=0)
    return _commonest(values_B.reshape(len(values_B), -1)).reshape(values_B.shape[1:])


def boxes_iou(found: Boxes, truth: Boxes, *, of_any_class: bool = False) -> float:
    """Return the intersection over union of boxes that belong together, as a mean over the larger number of boxes.
    Those of the same class (or of any) that lie best on each other belong together, each to at most one; two empty
    lists agree."""
    if not found and not truth:
        return 1.0
    pairs = [
        (_iou(a, b), i, j)
        for i, (name, a) in enumerate(found)
        for j, (other, b) in enumerate(truth)
        if of_any_class or name == other
    ]
    total, used_found, used_truth = 0.0, set[int](), set[int]()
    for value, i, j in sorted(pairs, reverse=True):
        if i not in used_found and j not in used_truth:
            total += value
            used_found.add(i)
            used_truth.add(j)
    return total / max(len(found), len(truth))


def _iou(one: Sequence[float], other: Sequence[float]) -> float:
    width, height = (min(one[2 + a], other[2 + a]) - max(one[a], other[a]) for a in (0, 1))
    shared = max(width, 0.0) * max(height, 0.0)
    whole = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - shared
    return shared / whole if whole > 0 else 0.0


def overlap(found: Counter[str], truth: Counter[str]) -> float:
    """Harmonic mean of precision and recall of words with their numbers; two empty texts agree."""
    total = found.total() + truth.total()
    return 2 * (found & truth).total() / total if total else 1.0


def spread(sizes: Sequence[int], num: int) -> list[tuple[int, int]]:
    """(set, sample) of at most `num` samples, spread evenly over all of them."""
    ends = np.cumsum([0, *sizes])
    chosen: NDArray[np.int64] = np.unique(np.linspace(0, ends[-1] - 1, min(num, int(ends[-1]))).astype(np.int64))
    number = np.searchsorted(ends, chosen, side="right") - 1
    return list(zip(number.tolist(), (chosen - ends[number]).tolist(), strict=True))
