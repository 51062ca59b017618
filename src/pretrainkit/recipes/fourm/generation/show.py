"""Readable forms of tokens: images, texts, boxes and contact sheets; and metrics of generated tokens.

This module does not import torch.

The metrics compare generated tokens, and the best constant guess, with the truth. This module decodes images of
modalities that are read without an image tokenizer. For the others, the caller passes decoders.

Dimensions: B examples, P patches of a grid, V variations of an example, H x W pixels.
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
"""Colours of depth from near to far."""
_GOLDEN = 0.61803398875
_NUMBERS: Mapping[str, int] = {"depth": 1, "colors": 3}
"""Number of values that a token represents, by the reader of a modality."""
_BOX = re.compile(r"v0=(\d+) v1=(\d+) v2=(\d+) v3=(\d+) ((?:(?!v\d=).)+)")
_FIGURE = re.compile(r"v1=(\d+) v0=(\d+)")
_NUMBER = re.compile(r"v0=(\d+)")
Cell = Pixels | str | None
_SIDE = 128
"""Side of a cell in pixels."""
_GAP, _HEAD = 6, 18
_CHARACTERS = 20
"""Maximum number of characters per line of a cell."""
Boxes = Sequence[tuple[str, Sequence[float]]]
"""Class and coordinates (xmin, ymin, xmax, ymax, as shares of the image) of each box."""
_MOST_GUESSES = 64
"""Maximum number of texts that are tried as constant guess."""
_MOST_DECODED = 64
"""Maximum number of images for the constant guess if an image tokenizer decodes them."""


class ImageDecoder(Protocol):
    """Decoder of an image tokenizer, from tokens (B, P) in row-major order to images."""

    vocab_size: int
    """Number of different tokens."""
    has_numbers: bool
    """True if pixel values are numbers; False if they are classes."""

    def decode(self, ids: Ids, /) -> NDArray[Any]:
        """Return values as in files: uint8 (B, H, W, 3) or (B, H, W); depth float32 (B, H, W); features (B, C, H,
        W)."""

    def pictures(self, ids: Ids, /) -> NDArray[np.uint8]:
        """Return images to look at, uint8 (B, 3, H, W)."""


def picture(modality: Modality, ids_P: Ids, decoders: Mapping[str, ImageDecoder]) -> Pixels | None:
    """Return the image of tokens, uint8 (H, W, 3), or None if no decoder is available."""
    if modality.name in decoders:
        return decoders[modality.name].pictures(ids_P[None])[0].transpose(1, 2, 0)
    paint, grid = _PAINTERS.get(modality.reader), ids_P.reshape(modality.grid)
    if paint is None:
        return None
    patch = modality.patch_size or 1
    return np.repeat(np.repeat(paint(modality, grid), patch, axis=0), patch, axis=1)


def values_of(modality: Modality, ids_P: Ids) -> NDArray[np.float64]:
    """Return the values that tokens represent without an image tokenizer: depth in standard deviations (P,); colours 0
    to 255 (P, 3); otherwise the ids (P,)."""
    assert modality.vocab_size is not None
    if modality.reader == "depth":
        return (ids_P + 0.5) / modality.vocab_size * 2 * DepthMap.reach - DepthMap.reach
    if modality.reader == "colors":
        steps = round(modality.vocab_size ** (1 / numbers_of(modality)))
        digits = np.stack([ids_P // steps**2, ids_P // steps % steps, ids_P % steps], axis=-1)
        return (digits + 0.5) * 256 / steps
    return ids_P.astype(np.float64)


def numbers_of(modality: Modality) -> int:
    """Return the count of numbers that an image token represents, in equal steps, the last number changing fastest. 0:
    the token is a category."""
    return _NUMBERS.get(modality.reader, 0)


def _heat(modality: Modality, grid: Ids) -> Pixels:
    share = (values_of(modality, grid) + DepthMap.reach) / (2 * DepthMap.reach)
    place = share.clip(0, 1) * (len(_HEAT) - 1)
    return np.stack([np.interp(place, np.arange(len(_HEAT)), _HEAT[:, c]) for c in range(3)], -1).astype(np.uint8)


def _classes(modality: Modality, grid: Ids) -> Pixels:
    """Return a colour image of classes. Consecutive classes have different colours; the first class is black."""
    number = np.arange(modality.vocab_size or 1)
    hue = number * _GOLDEN % 1 * 6
    value = np.where(number % 3 == 2, 160, 235)
    ramp = [np.abs((hue + shift) % 6 - 3) - 1 for shift in (0, 4, 2)]
    colors = (np.stack(ramp, -1).clip(0, 1) * value[:, None]).astype(np.uint8)
    colors[0] = 0
    return colors[grid]


_PAINTERS: Mapping[str, Callable[[Modality, Ids], Pixels]] = {
    "colors": lambda modality, grid: values_of(modality, grid).astype(np.uint8),
    "depth": _heat,
    "classes": _classes,
}
"""Functions from tokens to an image by the reader of a modality."""


def structure(modality: Modality, ids: Ids, vocabulary: TextVocabulary) -> Any:
    """Return a sequence in the JSON form of its reader, or as a text if it has no such form."""
    text = vocabulary.decode(ids)
    parse = _STRUCTURES.get(modality.reader)
    return text if parse is None else parse(text)


def _boxes(text: str) -> dict[str, Any]:
    """Return the complete boxes of a text; coordinates are shares of the image."""
    return {
        "instances": [
            {"boxes": [round(int(value) / 999, 4) for value in sides], "class_name": name.strip(), "score": 1.0}
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
"""Functions from text to JSON by the reader of a modality."""


def contact_sheet(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str = "", scale: int = 1) -> Any:
    """Return a Pillow image of rows with a cell for each heading in `columns`, below a title. Images keep their aspect
    ratio. Raises MissingPackageError if Pillow is not installed."""
    require_pillow("a contact sheet")
    from PIL import Image, ImageDraw

    gap, side = scale * _GAP, scale * _SIDE
    step = side + gap
    headings = [textwrap.wrap(heading, _CHARACTERS) for heading in columns]
    top = scale * _HEAD * bool(title)
    head = top + scale * _HEAD * max(map(len, headings), default=1)
    sheet = Image.new("RGB", (len(columns) * step + gap, len(rows) * step + gap + head), "white")
    draw = ImageDraw.Draw(sheet)
    text: dict[str, Any] = {"fill": "black", "spacing": 2 * scale, "font_size": 10 * scale}
    draw.text((gap, 3 * scale), title, **text)
    for column, lines in enumerate(headings):
        draw.multiline_text((gap + column * step, top + 3 * scale), "\n".join(lines), **text)
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            place = gap + column * step, head + gap + row * step
            if isinstance(cell, str):
                lines = textwrap.wrap(
                    " ".join(cell.split()), _CHARACTERS, break_long_words=False, break_on_hyphens=False
                )
                draw.multiline_text(place, "\n".join(lines[:10]), **text)
            elif cell is not None:
                picture = Image.fromarray(np.ascontiguousarray(cell))
                factor = side / max(picture.size)
                size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
                kind = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX
                sheet.paste(picture.resize(size, kind), place)
    return sheet


def with_boxes(image_HW3: Pixels, instances: Sequence[dict[str, Any]], *, scale: int = 1) -> Pixels:
    """Return a copy of an image with frames and classes of boxes, whose coordinates are shares of the image."""
    from PIL import Image, ImageDraw

    image, side = Image.fromarray(np.ascontiguousarray(image_HW3)), scale * _SIDE
    image = image.resize((side, side), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(image)
    for instance in instances:
        left, top, right, bottom = (value * (side - 1) for value in instance["boxes"])
        corners = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
        # White on black is visible on every colour.
        draw.rectangle(corners, outline="black", width=3 * scale)
        draw.rectangle(corners, outline="white", width=scale)
        text, size = instance["class_name"], 10 * scale
        if draw.textlength(text, font_size=size) > corners[2] - corners[0]:
            text = text.replace(" ", "\n")
        width = max(draw.textlength(line, font_size=size) for line in text.split("\n"))
        place = min(corners[0] + 4 * scale, side - width - scale), corners[1] + 3 * scale
        draw.text(place, text, fill="white", stroke_width=scale, stroke_fill="black", font_size=size)
    return np.asarray(image)


@dataclass(frozen=True)
class Judge:
    """Compares tokens of a target with the truth. Methods return means over examples by the name of a metric.

    Images: `accuracy` is the share of equal tokens. If tokens represent numbers, `error` is the mean distance: depth in
    standard deviations of the image, colours on a scale of 0 to 255. With a decoder, decoded images are compared, so
    the metric also depends on the image tokenizer: `error`, or for classes `pixels`, the share of equal pixels.

    Sequences: `words` is the harmonic mean of precision and recall of words in any order. Boxes also have `iou` (see
    `boxes_iou`) and `iou_of_any_class`, which ignores classes.
    """

    modality: Modality
    vocabulary: TextVocabulary | None
    decoder: ImageDecoder | None = None

    def figures(self, generated: Sequence[Ids], truth: Sequence[Ids]) -> dict[str, float]:
        """Return the metrics of one result for each example."""
        if self.modality.kind == "sequence":
            return {
                name: float(np.mean([agreement(read(a), read(b)) for a, b in zip(generated, truth, strict=True)]))
                for name, (read, agreement) in self._agreements().items()
            }
        generated_BP = np.stack(generated)
        return self._of_images(generated_BP, self._values(generated_BP), truth)

    def together(self, generated: Sequence[Sequence[Ids]], truth: Sequence[Ids]) -> dict[str, float]:
        """Return the metrics of several results for each example, combined: the most common token (for classes: pixel)
        of each patch, or the mean of numbers. Images only. `generated`: the variations of each example."""
        votes_BP = np.stack([_most_common(np.stack(variations)) for variations in generated])
        centres = [_centre(self._values(np.stack(variations))) for variations in generated]
        values = [centre for centre in centres if centre is not None]
        return self._of_images(votes_BP, np.stack(values) if values else None, truth)

    def guessed(self, known: Sequence[Ids], truth: Sequence[Ids]) -> dict[str, float]:
        """Return the metrics of the best constant guess from `known` contents. It is, for `accuracy`, the most common
        token; for `error`, the mean at each position; for `pixels`, the most common class at each position; for
        `words`, `iou` and `iou_of_any_class`, the known content that agrees best with the others."""
        if self.modality.kind == "sequence":
            metrics = {}
            for name, (read, agreement) in self._agreements().items():
                candidates = [read(ids) for ids in known[:: max(1, len(known) // _MOST_GUESSES)]]
                scores = [sum(agreement(guess, other) for other in candidates) for guess in candidates]
                best = candidates[scores.index(max(scores))]
                metrics[name] = float(np.mean([agreement(best, read(ids)) for ids in truth]))
            return metrics
        known_BP = np.stack(known)
        token = np.bincount(known_BP.ravel()).argmax()
        if self.decoder is not None:
            known_BP = known_BP[:: -(-len(known_BP) // _MOST_DECODED)]
        centre = _centre(self._values(known_BP))
        return self._of_images(token, None if centre is None else centre[None], truth)

    def _agreements(self) -> Mapping[str, tuple[Any, Any]]:
        """Return two functions for each metric: one reads the ids of a sequence, the other compares two of its
        results."""
        vocabulary = self.vocabulary
        assert vocabulary is not None

        def words(ids: Ids) -> Counter[str]:
            return Counter(vocabulary.decode(ids).split())

        def boxes(ids: Ids) -> Boxes:
            instances = structure(self.modality, ids, vocabulary)["instances"]
            return [(instance["class_name"], instance["boxes"]) for instance in instances]

        agreements: dict[str, tuple[Any, Any]] = {"words": (words, overlap)}
        if self.modality.reader == "boxes":
            agreements |= {
                "iou": (boxes, boxes_iou),
                "iou_of_any_class": (boxes, partial(boxes_iou, of_any_class=True)),
            }
        return agreements

    def _of_images(self, ids: Any, values: NDArray | None, truth: Sequence[Ids]) -> dict[str, float]:
        truth_BP = np.stack(truth)
        true_values = self._values(truth_BP)
        metrics = {"accuracy": float((ids == truth_BP).mean())}
        if values is None or true_values is None:
            return metrics
        if true_values.dtype.kind == "f":
            return metrics | {"error": float(np.abs(values - true_values).mean())}
        return metrics | {"pixels": float((values == true_values).mean())}

    def _values(self, ids_BP: Ids) -> NDArray | None:
        """Return the values that tokens represent, (B, ...): floats, or integers for classes; None: there is no
        decoder."""
        if self.decoder is None:
            return values_of(self.modality, ids_BP) if numbers_of(self.modality) else None
        return self.decoder.decode(ids_BP).astype(np.float64 if self.decoder.has_numbers else np.int64)


def _most_common(ids_VP: Ids) -> Ids:
    """Return the most common id at each position, (P,). Of equally common ids, the smallest is taken."""
    return np.array([np.bincount(own).argmax() for own in ids_VP.T], np.int32)


def _centre(values_B: NDArray | None) -> NDArray | None:
    """Return the mean of numbers, or the most common class at each position; None if `values_B` is None."""
    if values_B is None or values_B.dtype.kind == "f":
        return None if values_B is None else values_B.mean(axis=0)
    return _most_common(values_B.reshape(len(values_B), -1)).reshape(values_B.shape[1:])


def boxes_iou(generated: Boxes, truth: Boxes, *, of_any_class: bool = False) -> float:
    """Return the sum of intersection over union of matched boxes, divided by the larger number of boxes. Boxes are
    matched greedily by overlap, within the same class or with `of_any_class` in all classes, each at most once. Two
    empty lists have the value 1."""
    if not generated and not truth:
        return 1.0
    pairs = [
        (_iou(a, b), i, j)
        for i, (name, a) in enumerate(generated)
        for j, (other, b) in enumerate(truth)
        if of_any_class or name == other
    ]
    total, used_generated, used_truth = 0.0, set[int](), set[int]()
    for value, i, j in sorted(pairs, reverse=True):
        if i not in used_generated and j not in used_truth:
            total += value
            used_generated.add(i)
            used_truth.add(j)
    return total / max(len(generated), len(truth))


def _iou(box: Sequence[float], other_box: Sequence[float]) -> float:
    width, height = (min(box[2 + a], other_box[2 + a]) - max(box[a], other_box[a]) for a in (0, 1))
    shared = max(width, 0.0) * max(height, 0.0)
    whole = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other_box)) - shared
    return shared / whole if whole > 0 else 0.0


def overlap(generated: Counter[str], truth: Counter[str]) -> float:
    """Return the harmonic mean of precision and recall of words, with their counts; 1 for two empty texts."""
    total = generated.total() + truth.total()
    return 2 * (generated & truth).total() / total if total else 1.0


def spread(sizes: Sequence[int], num: int) -> list[tuple[int, int]]:
    """Return the indices (data set, sample) of at most `num` samples, spread evenly over all samples. `sizes`: number
    of samples in each data set."""
    ends = np.cumsum([0, *sizes])
    chosen: NDArray[np.int64] = np.unique(np.linspace(0, ends[-1] - 1, min(num, int(ends[-1]))).astype(np.int64))
    number = np.searchsorted(ends, chosen, side="right") - 1
    return list(zip(number.tolist(), (chosen - ends[number]).tolist(), strict=True))
