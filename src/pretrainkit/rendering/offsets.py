"""Map patches to the characters of a text.

A character that crosses the border of two patches belongs to the later patch in its reading direction.

Dimensions: T characters of a text, K patches of the text.
"""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.encoding import Span


def patch_spans(edges_T2: NDArray[np.float64], start: float, end: int, first_patch: int, patch: int) -> list[Span]:
    """Return the span of characters in each patch of a text, as (first, one after the last).

    Args:
        edges_T2: Begin and end of each character in its reading direction, in pixels from the text's left end.
        start: Column of the text's left end.
        end: Column of the black patch that follows the text.
        first_patch: Index of the patch in which the text begins.
        patch: Height and width of a patch in pixels.

    Returns:
        One span for each patch from `first_patch` to before the black patch. A patch in which no character ends repeats
        the previous span; if there is none, its span is (0, 0). Characters past `end` are in no span.
    """
    num_patches = end // patch - first_patch
    if num_patches <= 0:
        return []
    if not len(edges_T2):
        return [(0, 0)] * num_patches
    last_T = edges_T2 + start
    is_backward_T = last_T[:, 1] < last_T[:, 0]
    # The home of a character is the patch in which it ends; if it ends on a border, the patch that it covers.
    home_T = np.where(is_backward_T, np.floor(last_T[:, 1] / patch), np.ceil(last_T[:, 1] / patch) - 1)
    home_T = np.maximum(home_T.astype(np.int64) - first_patch, 0)
    if last_T.max() <= end:  # the margin before the black patch may fill a patch of its own
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
    """Return spans by the rule of the original's PangoCairo renderer, for left-to-right text, including patches beyond
    the canvas.

    A character closes at most one patch, so that spans lag behind after a character that is wider than a patch.

    Args:
        positions_T: Left edge of each character, in pixels from the text's left end.
        start: Column of the text's left end.
        width: Width of the text in pixels, including the margin after it.
        first_patch: Index of the patch in which the text begins.
        patch: Height and width of a patch in pixels.
        last: First column of the canvas's last patch.

    Returns:
        One span for each patch; (-1, -1) for a patch that has only the margin after the text.
    """
    positions = (np.sort(positions_T) + start).tolist() or [start]
    shift = first_patch * patch
    end = min(-(-(width + start) // patch) * patch, last)
    spans: list[Span] = []
    first = 0
    for index, position in enumerate([*positions, end]):
        # A character that begins at or past the end of the open patch closes the patch. If it begins past the end, the
        # previous character belongs to the next patch.
        beyond = position - shift - patch * (len(spans) + 1)
        if beyond >= 0:
            closing = index if beyond == 0 else index - 1
            spans.append((first, closing))
            first = closing
    if len(spans) < -(-(width + start - shift) // patch):
        spans.append((first, len(positions) + 1))
    if min(-(-width // patch) * patch, last) - width < start % patch and len(spans) > 1:
        spans[-2:] = [(spans[-2][0], spans[-1][1]), (-1, -1)]
    return spans


def original_backward_spans(
    positions_T: NDArray[np.float64], start: float, width: float, first_patch: int, patch: int, last: int
) -> list[Span]:
    """Return the spans of `original_spans` for right-to-left text. Characters are counted from the left end, where the
    text ends, so that spans are (larger, smaller). The arguments are those of `original_spans`."""
    num = len(positions_T)
    spans = original_spans(positions_T, start, width, first_patch, patch, last)
    behind = max(num, 1) + 1  # possible end of the last span of `original_spans`
    return [
        (first, closing) if closing < 0 else (num - first, 0 if closing == behind else num - closing)
        for first, closing in spans
    ]
