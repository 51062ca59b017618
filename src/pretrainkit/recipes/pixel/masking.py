"""Draw masks: choose the patches to hide. This module does not import torch.

Span masks follow the original's rule (section 2.2 of Rust et al. 2022, https://arxiv.org/abs/2207.06991, and its
released code): runs are tried one after another, and a run is accepted if enough patches around it are visible. Each
row is drawn from its own key, so that a mask does not depend on batch or rank. A compiled helper (`_masks.c`) is used
if available. `original_mask` reproduces the original's random numbers exactly.

Dimensions: B texts, N patches of a row, R rows that need more hidden patches, S maximum length of a run.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.pixel.config import PixelObjectiveConfig
from pretrainkit.rng import Keys, fold, uniform

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_TRIES = 100
"""Number of tries for a run before the search for runs ends."""
_REST = 1
"""Random stream that completes masks."""
_FEW_DRAWS = 256
"""Number of random numbers of a key that are drawn at once. It doubles if they are not enough."""


@dataclass(frozen=True)
class SpanRule:
    """Rule by which runs are drawn."""

    cumulative_weights: tuple[float, ...]
    """Cumulative probabilities of run lengths 1, 2, ... S; the last is 1."""
    spacing: int | None
    """Number of patches that must be visible on both sides; None: the length of the run."""


def draw_masks(
    config: PixelObjectiveConfig, keys: Keys, num_text_patches_B: NDArray[np.integer], num_patches: int
) -> Bools:
    """Draw the hidden patches of texts.

    Args:
        keys: (B,); all random numbers of a row depend only on its key.
        num_text_patches_B: Number of patches before each end patch, at most N - 1.
        num_patches: N; with `mask_region="canvas"`, the number of patches of the canvas.

    Returns:
        bool (B, N). Each row has exactly ceil(mask_ratio x M) hidden patches, at least one of them in the text. M is
        the length of the text with its end patch (`mask_region="text"`) or N (`"canvas"`).
    """
    lengths_B = np.asarray(num_text_patches_B, np.int64) + 1
    sizes_B = lengths_B if config.mask_region == "text" else np.full_like(lengths_B, num_patches)
    num_masked_B = num_masked(sizes_B, config.mask_ratio)
    if config.masking == "random":
        is_masked_BN = np.zeros((len(keys), num_patches), np.bool_)
        first_B = np.floor(uniform(keys, 1)[:, 0] * lengths_B).astype(np.int64)
        is_masked_BN[np.arange(len(keys)), first_B] = True
    else:
        longest = config.max_span_length
        weights = config.cumulative_span_weights or tuple((length + 1) / longest for length in range(longest))
        rule = SpanRule(weights, None if config.spacing == "span" else config.spacing)
        is_masked_BN = draw_spans(rule, keys, lengths_B, sizes_B, num_masked_B, num_patches)
    return complete(is_masked_BN, fold(keys, _REST), sizes_B, num_masked_B)


def num_masked(sizes: Ints, ratio: float) -> Ints:
    """Return ceil(ratio x size), int64, without effects of rounding in the product: 10 % of 10 are 1."""
    return np.ceil(sizes * ratio - 1e-9).astype(np.int64)


def complete(is_masked_BN: Bools, keys: Keys, sizes_B: Ints, num_masked_B: Ints) -> Bools:
    """Hide random further patches among the first `sizes_B`, until each row has `num_masked_B` hidden patches."""
    missing_B = num_masked_B - is_masked_BN.sum(1)
    rows = np.flatnonzero(missing_B > 0)
    if len(rows):
        noise_RN = uniform(keys[rows], is_masked_BN.shape[1])
        noise_RN[is_masked_BN[rows] | (np.arange(is_masked_BN.shape[1]) >= sizes_B[rows, None])] = np.inf
        rank_RN = noise_RN.argsort(1).argsort(1)  # rank in the row; hidden patches and blanks come last
        is_masked_BN[rows] |= rank_RN < missing_B[rows, None]
    return is_masked_BN


def draw_spans(
    rule: SpanRule, keys: Keys, lengths_B: Ints, sizes_B: Ints, num_masked_B: Ints, num_patches: int
) -> Bools:
    """Draw runs until `num_masked_B` patches are hidden, or until no place for a run is found. Return bool (B, N).

    Try t of a key uses its random numbers 2 t (length of the run) and 2 t + 1 (its position among the first `sizes_B`
    patches; for the first run, among the first `lengths_B`).
    """
    try:
        import pretrainkit.recipes.pixel._masks as compiled
    except ImportError:
        return draw_spans_by_python(rule, keys, lengths_B, sizes_B, num_masked_B, num_patches)
    is_masked_BN = np.zeros((len(keys), num_patches), np.bool_)
    compiled.draw_spans(
        np.ascontiguousarray(keys, np.uint64),
        np.ascontiguousarray(lengths_B, np.int64),
        np.ascontiguousarray(sizes_B, np.int64),
        np.ascontiguousarray(num_masked_B, np.int64),
        np.array(rule.cumulative_weights, np.float64),
        -1 if rule.spacing is None else rule.spacing,
        is_masked_BN,
    )
    return is_masked_BN


def draw_spans_by_python(
    rule: SpanRule, keys: Keys, lengths_B: Ints, sizes_B: Ints, num_masked_B: Ints, num_patches: int
) -> Bools:
    """Do the same as `draw_spans` without the compiled helper, row by row."""
    is_masked_BN = np.zeros((len(keys), num_patches), np.bool_)
    for row, (length, size, num_masked) in enumerate(zip(lengths_B.tolist(), sizes_B.tolist(), num_masked_B.tolist())):
        is_masked_BN[row, :size] = original_mask(
            _KeyDraws(keys[row]),
            num_patches=size,
            num_masking_patches=num_masked,
            num_text_patches=length,
            max_span_length=len(rule.cumulative_weights),
            spacing=rule.spacing,
            cumulative_span_weights=rule.cumulative_weights,
        )
    return is_masked_BN


class _KeyDraws:
    """Replacement for `random.Random` that takes its random numbers from a key."""

    def __init__(self, key: Keys) -> None:
        self._key, self._try = key, -1
        self._draws = uniform(key, _FEW_DRAWS).tolist()

    def choices(self, lengths: range, *, cum_weights: Sequence[float]) -> list[int]:
        self._try += 1
        if 2 * self._try + 1 >= len(self._draws):
            self._draws = uniform(self._key, 2 * len(self._draws)).tolist()
        return [min(bisect_right(cum_weights, self._draws[2 * self._try]) + 1, len(lengths))]

    def randint(self, first: int, last: int) -> int:
        return int(self._draws[2 * self._try + 1] * (last + 1))


def original_mask(
    rng: random.Random | _KeyDraws,
    *,
    num_patches: int,
    num_masking_patches: int,
    num_text_patches: int,
    max_span_length: int,
    spacing: int | None,
    cumulative_span_weights: Sequence[float] | None,
) -> Bools:
    """Return the mask that the original's generator makes with the random numbers of `rng`, bool (N,).

    Args:
        num_text_patches: Number of patches including the end patch, as the original's driver passes it.
        spacing: Number of visible patches on both sides of a run; None: the length of the run.
        cumulative_span_weights: Cumulative probabilities of run lengths; None: all lengths are equally likely.
    """
    is_masked = bytearray(num_patches)  # its slices are several times as fast as those of an array
    lengths = range(1, max_span_length + 1)
    count, fails, is_first = 0, 0, True
    while count < num_masking_patches and fails < _TRIES:
        fails += 1
        length = rng.choices(lengths, cum_weights=cumulative_span_weights)[0]  # type: ignore[arg-type]
        if length >= num_patches:
            continue
        left = rng.randint(0, max(0, num_text_patches - length) if is_first else num_patches - length)
        end, gap, is_first = left + length, length if spacing is None else spacing, False
        if any(is_masked[max(0, left - gap) : left]) or any(is_masked[end : end + gap]):
            continue
        added = length - sum(is_masked[left:end])
        if 0 < added <= min(num_masking_patches - count, max_span_length):
            is_masked[left:end] = b"\1" * length
            count, fails = count + added, 0
    return np.frombuffer(is_masked, np.bool_)
