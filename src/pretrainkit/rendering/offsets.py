"""Which characters of a text lie in which patch.

A character that crosses the border of two patches belongs to the later one, in its direction of reading.

Dimensions: T characters of a text, K patches it takes up.
"""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.encoding import Span


def patch_spans(edges_T2: NDArray[np.float64], start: float, end: int, first_patch: int, patch: int) -> list[Span]:
    """The characters in each patch that a text takes up, as (first, one after the last).

    Args:
        edges_T2: Pixels from the text's left end at which each character begins and ends, in its direction of reading.
        start: Column of the text's left end.
        end: Column of the black patch that follows the text.
        first_patch: Index of the patch in which the text begins.
        patch: Pixels of a patch's side.

    Returns:
        One span for each patch from `first_patch` to the black one. A patch without a character of its own repeats the
        span before it, or holds (0, 0) where there is none. Characters that lie past `end` are in no span.
    """
    num_patches = end // patch - first_patch
    if num_patches <= 0:
        return []
    if not len(edges_T2):
        return [(0, 0)] * num_patches
    last_T = edges_T2 + start
    is_backward_T = last_T[:, 1] < last_T[:, 0]
    # The patch in which a character ends is its home; one that ends on a border belongs to the patch it lies in.
    home_T = np.where(is_backward_T, np.floor(last_T[:, 1] / patch), np.ceil(last_T[:, 1] / patch) - 1)
    home_T = np.maximum(home_T.astype(np.int64) - first_patch, 0)
    if last_T.max() <= end:  # the white before the black patch may be a patch of its own
        home_T = np.minimum(home_T, num_patches - 1)
    first_K, after_K = np.full(num_patches, len(home_T)), np.zeros(num_patches, np.int64)
    shown_S = np.flatnonzero(home_T < num_patches)
    np.minimum.at(first_K, home_T[shown_S], shown_S)
    np.maximum.at(after_K, home_T[shown_S], shown_S + 1)
    spans: list[Span] = []
    for first, after in zip(first_K.tolist(), after_K.tolist(), strict=True):
        spans.append((first, after) if after else spans[-1] if spans else (0, 0))
    return spans


def original_spans(
    positions_T: NDArray[np.float64], start: float, width: float, first_patch: int, patch: int, last: int
) -> list[Span]:
    """The same by the rule of the original's PangoCairo renderer, left to right, for the whole text: patches past the
    canvas have spans, too.

    A character closes at most one patch, so that spans fall behind where one is wider than that.

    Args:
        positions_T: Pixels from the text's left end to the left edge of each character.
        start: Column of the text's left end.
        width: Pixels of the text, with the white after it.
        first_patch: Index of the patch in which the text begins.
        patch: Pixels of a patch's side.
        last: First column of the canvas's last patch.

    Returns:
        One span for each patch. (-1, -1) for a patch that holds only the white after the text.
    """
    positions = (np.sort(positions_T) + start).tolist() or [start]
    shift = first_patch * patch
    end = min(-(-(width + start) // patch) * patch, last)
    spans: list[Span] = []
    begun = 0
    for index, position in enumerate([*positions, end]):
        # A character that begins right of the open patch's end closes it; if it begins beyond, with the one before.
        beyond = position - shift - patch * (len(spans) + 1)
        if beyond >= 0:
            closing = index if beyond == 0 else index - 1
            spans.append((begun, closing))
            begun = closing
    if len(spans) < -(-(width + start - shift) // patch):
        spans.append((begun, len(positions) + 1))
    if min(-(-width // patch) * patch, last) - width < start % patch and len(spans) > 1:
        spans[-2:] = [(spans[-2][0], spans[-1][1]), (-1, -1)]
    return spans


def original_backward_spans(
    positions_T: NDArray[np.float64], start: float, width: float, first_patch: int, patch: int, last: int
) -> list[Span]:
    """The same, right to left: characters are counted from the text's left end, which is the end of what is read, so
    that spans are (larger, smaller).

    Args: As of `original_spans`.
    """
    num = len(positions_T)
    spans = original_spans(positions_T, start, width, first_patch, patch, last)
    behind = max(num, 1) + 1  # where the last span of `original_spans` may end
    return [
        (begun, closing) if closing < 0 else (num - begun, 0 if closing == behind else num - closing)
        for begun, closing in spans
    ]
