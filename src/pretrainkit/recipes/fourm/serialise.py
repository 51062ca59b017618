"""Conversion of boxes, colour palettes, metadata, human poses and outlines to words.

Every number is a word v0=… to v3=… with one of a thousand values, rounded half to even. Source: released code of 4M
(https://arxiv.org/abs/2312.06647) and 4M-21 (https://arxiv.org/abs/2406.09406).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.aligned_crops import Part

BoxOrder = Literal["distance", "area", "score", "random"]
_TOP = 999
_HALF = 512
_SHORTEST_SIDE = 1e-9
_FARTHEST_SHARE = 2.0
"""Limit of box coordinates, in shares of the image. Boxes of detectors may reach beyond the image; larger values are
probably pixels."""


def box_words(box_4: NDArray[np.float64]) -> list[str]:
    """Return the words of a box: xmin, ymin, xmax, ymax in [0, 1]."""
    return [f"v{axis}={int(value)}" for axis, value in enumerate(np.round(box_4 * _TOP))]


def boxes(
    instances: Sequence[Mapping[str, Any]],
    part: Part,
    *,
    min_score: float = 0.6,
    max_boxes: int | None = None,
    order: BoxOrder = "distance",
    min_visibility: float = 0.0,
    rng: np.random.Generator,
) -> list[str]:
    """Return the words of the boxes inside a part of an image: four numbers and a class each."""
    detected = [box for box in instances if box["score"] >= min_score]
    if not detected:
        return []
    boxes_N4 = np.array([box["boxes"] for box in detected], np.float64)
    names = [str(box["class_name"]) for box in detected]
    if not (np.abs(boxes_N4) < _FARTHEST_SHARE).all():
        raise ValueError("the coordinates of a box are not shares of the image's width and height, from 0 to 1")
    moved_N4 = part.boxes(boxes_N4)
    clipped_N4 = moved_N4.clip(0, 1)
    area_N, whole_N = _area(clipped_N4), _area(moved_N4)
    kept = np.flatnonzero((area_N > 0) & (area_N >= min_visibility * whole_N))
    score_N = np.array([box["score"] for box in detected], np.float64)
    if max_boxes is not None and len(kept) > max_boxes:  # only boxes inside the part count, as in the original
        kept = kept[np.argsort(-score_N[kept], kind="stable")[:max_boxes]]
    sort_keys: dict[BoxOrder, NDArray[np.float64]] = {
        "distance": clipped_N4[:, 0] ** 2 + clipped_N4[:, 1] ** 2,
        "area": -area_N,
        "score": -score_N,
        "random": rng.random(len(detected)),
    }
    kept = kept[np.argsort(sort_keys[order][kept], kind="stable")]
    return [word for index in kept.tolist() for word in (*box_words(clipped_N4[index]), names[index])]


def _area(boxes_N4: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the areas of boxes as shares of the part, (N,). A side as short as a rounding error counts as 0: such
    boxes only touch the part."""
    sides_N2 = boxes_N4[:, 2:] - boxes_N4[:, :2]
    sides_N2[sides_N2 < _SHORTEST_SIDE] = 0
    area_N: NDArray[np.float64] = sides_N2.prod(axis=1)
    return area_N


METADATA = (
    "original_width",
    "original_height",
    "caption_n_chars",
    "caption_n_words",
    "caption_n_sentences",
    "n_humans",
    "n_sam_instances",
    "n_coco_instances",
    "coco_instance_diversity",
    "colorfulness",
    "brightness",
    "contrast",
    "saturation",
    "entropy",
    "walkability",
    "objectness",
    "semantic_diversity",
    "geometric_complexity",
    "occlusion_score",
    "watermark_score",
    "aesthetic_score",
)
"""Names of an image's metadata. Words contain the index of a name."""
_SIDES = ("original_width", "original_height")
_SIDE_STEP = 32
_RANGES = {
    "colorfulness": (0.0, 150.0),
    "brightness": (0.0, 255.0),
    "contrast": (0.0, 127.0),
    "saturation": (0.0, 255.0),
    "entropy": (0.0, 10.0),
    "walkability": (0.0, 1.0),
    "objectness": (0.0, 1.0),
    "geometric_complexity": (0.0, 0.75),
    "occlusion_score": (0.0, 0.25),
}
_RANGE_STEPS = 49
_BORDERS = {"watermark_score": (0.5,), "aesthetic_score": (4.5, 5.5)}


def metadata(figures: Mapping[str, float], rng: np.random.Generator) -> list[list[str]]:
    """Return a pair of words for each known name, in random order; the words of a pair stay together. Unknown names are
    left out."""
    known = [name for name in figures if name in METADATA]
    return [
        [f"v1={METADATA.index(name)}", f"v0={metadata_bin(name, figures[name])}"]
        for name in (known[place] for place in rng.permutation(len(known)).tolist())
    ]


def metadata_bin(name: str, value: float) -> int:
    """Return the bin of a metadata value, 0 to 999."""
    if name in _SIDES:
        number = int(value) // _SIDE_STEP
    elif name in _RANGES:
        low, high = _RANGES[name]
        number = int((min(max(value, low), high) - low) / (high - low) * _RANGE_STEPS)
    elif name in _BORDERS:
        number = sum(border <= value for border in _BORDERS[name])
    else:
        number = int(value)
    return min(max(number, 0), _TOP)


def metadata_value(name: str, number: int) -> float:
    """Return an approximate value for a bin of `metadata_bin`. The original encodes with a
    factor of 49 but decodes with 50."""
    if name in _SIDES:
        return number * _SIDE_STEP
    if name in _RANGES:
        low, high = _RANGES[name]
        return low + (high - low) * number / _RANGE_STEPS
    return number


def palette(palettes: Mapping[str, Sequence[Sequence[float]]], rng: np.random.Generator) -> list[str]:
    """Draw one of the palettes of 1 to 7 colours and return its words: number of colours, then red, green, blue of
    each."""
    sizes = sorted(palettes)
    size = sizes[int(rng.integers(len(sizes)))]
    return [f"v1={size}", *(f"v0={int(value)}" for color in palettes[size] for value in color)]


def code_words(codes: Sequence[int]) -> list[str]:
    """Return the words of ids from a tokenizer with 1024 codes: v0 for the first 512 codes, v1 for the others."""
    return [f"v0={code}" if code < _HALF else f"v1={code - _HALF}" for code in map(int, codes)]


def poses(people: Mapping[str, Any], part: Part, rng: np.random.Generator) -> list[str]:
    """Return 39 words for each person inside the part: box, then pose, orientation, camera and shape in random
    order."""
    if not people:
        return ["none"]
    height, width = part.size
    boxes_N4 = np.asarray(people["bbox_xyxy"], np.float64)
    if not np.isfinite(boxes_N4).all():
        raise ValueError("a box has coordinates that are not finite numbers")
    moved_N4 = part.boxes(boxes_N4 / np.array([width, height, width, height]))
    clipped_N4 = moved_N4.clip(0, 1)
    smpl = people["pred_smpl_params"]
    words: list[str] = []
    for person in np.flatnonzero(_area(clipped_N4) > 0).tolist():
        groups = [
            ["pose", *code_words(people["pose_tokenized"][person])],
            ["global", *_scaled(smpl["global_orient"][person], 499.5, 499.5)],
            ["camera", *_scaled(np.clip(np.ravel(people["pred_cam"][person]), -1, 19), 49.95, 49.95)],
            ["shape", *_scaled(smpl["betas"][person], 166.5, 499.5)],
        ]
        words += ["human", *box_words(clipped_N4[person])]
        words += [word for place in rng.permutation(len(groups)).tolist() for word in groups[place]]
    return words or ["none"]


def _scaled(values: Any, factor: float, shift: float) -> list[str]:
    """Return the words of scaled values, clipped to the vocabulary. The original does not clip shapes."""
    bins = np.round(np.ravel(np.asarray(values, np.float64)) * factor + shift).clip(0, _TOP)
    return [f"v0={int(value)}" for value in bins]


def sam_instances(record: Mapping[str, Any], size: int, rng: np.random.Generator, num_points: int = 7) -> list[str]:
    """Draw random points and return their words: for each point (y, x), then box and codes of every outline around it.
    `record`: points (outlines, each (V, 2) with x and y in pixels), token_ids (n, 16), bbox (n, 4) with ymin, xmin,
    ymax, xmax. `size`: pixels of each side of the image on which SAM found the outlines."""
    words: list[str] = []
    for x, y in rng.random((num_points, 2)) * size:
        words += ["point", f"v0={min(int(y), _TOP)}", f"v1={min(int(x), _TOP)}"]
        around = [n for n, outline in enumerate(record["points"]) if contains(np.asarray(outline), x, y)]
        for number in (around[place] for place in rng.permutation(len(around)).tolist()):
            top, left, bottom, right = (min(max(int(value), 0), _TOP) for value in record["bbox"][number])
            words += ["polygon", f"v0={left}", f"v1={top}", f"v2={right}", f"v3={bottom}"]
            words += code_words(record["token_ids"][number])
        words += [] if around else ["none"]
    return words


def contains(outline_V2: NDArray[np.floating], x: float, y: float) -> bool:
    """Return True if a point is inside a closed outline: a ray to the right then crosses an odd number of sides."""
    if len(outline_V2) < 3:
        return False
    x1, y1 = outline_V2.astype(np.float64).T
    x2, y2 = np.roll(x1, -1), np.roll(y1, -1)
    crosses = (y1 > y) != (y2 > y)
    rise = np.where(crosses, y2 - y1, 1.0)
    return bool((crosses & (x < (x2 - x1) * (y - y1) / rise + x1)).sum() % 2)
