"""Which patches are hidden. Torch-free.

Span masks are drawn by the original's rule (section 2.2 of Rust et al. 2022, https://arxiv.org/abs/2207.06991, and its
released code): runs are tried one after another, and one counts if enough patches around it are visible. All rows of a
batch are drawn at once and each from its own key, so that a mask does not depend on who asks for it. A compiled helper
(`_masks.c`) draws the same, where there is one. `original_mask` draws as the original does, number by number.

Dimensions: B texts, N patches of a row, R rows that are not done, X patches around a run, S longest run.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.pixel.config import PixelObjectiveConfig
from pretrainkit.rng import Keys, bits, fold, uniform

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_TRIES = 100
"""For one run, before it is given up with all that would follow."""
_REST = 1
"""Names the stream that completes masks."""
_TURNS = 64
"""Tries whose numbers are drawn at once."""


@dataclass(frozen=True)
class SpanRule:
    """How runs are drawn."""

    cumulative_weights: tuple[float, ...]
    """S rising shares of runs of at most 1, 2, ... patches; the last is 1."""
    spacing: int | None
    """Visible patches on both sides; None: as many as the run has."""


def span_rule(config: PixelObjectiveConfig) -> SpanRule:
    """Of a config, whose weights may be null."""
    longest = config.max_span_length
    weights = config.cumulative_span_weights or tuple((length + 1) / longest for length in range(longest))
    return SpanRule(weights, None if config.spacing == "span" else config.spacing)


def draw_masks(
    config: PixelObjectiveConfig, keys: Keys, num_text_patches_B: NDArray[np.integer], num_patches: int
) -> Bools:
    """The hidden patches of texts with so many patches before each end patch, at most N - 1; N is `num_patches`, that
    of the canvas, if the ratio is spent on it. All draws depend on `keys`, (B,).

    Returns:
        bool (B, N): of each row exactly ceil(mask_ratio x M), at least one of them of the text, where M is the length
        of the text with its end patch (text) or N (canvas).
    """
    lengths_B = np.asarray(num_text_patches_B, np.int64) + 1
    sizes_B = lengths_B if config.mask_region == "text" else np.full_like(lengths_B, num_patches)
    wanted_B = num_masked(sizes_B, config.mask_ratio)
    if config.masking == "random":
        is_masked_BN = np.zeros((len(keys), num_patches), np.bool_)
        first_B = np.floor(uniform(keys, 1)[:, 0] * lengths_B).astype(np.int64)
        is_masked_BN[np.arange(len(keys)), first_B] = True
    else:
        is_masked_BN = draw_spans(span_rule(config), keys, lengths_B, sizes_B, wanted_B, num_patches)
    return complete(is_masked_BN, fold(keys, _REST), sizes_B, wanted_B)


def num_masked(sizes: Ints, ratio: float) -> Ints:
    """ceil(ratio x size), whatever the rounding of the product: 10 % of 10 are 1."""
    return np.ceil(sizes * ratio - 1e-9).astype(np.int64)


def complete(is_masked_BN: Bools, keys: Keys, sizes_B: Ints, wanted_B: Ints) -> Bools:
    """The same with random further patches of the first `sizes_B`, up to `wanted_B` in each row."""
    missing_B = wanted_B - is_masked_BN.sum(1)
    rows = np.flatnonzero(missing_B > 0)
    if len(rows):
        noise_RN = uniform(keys[rows], is_masked_BN.shape[1])
        noise_RN[is_masked_BN[rows] | (np.arange(is_masked_BN.shape[1]) >= sizes_B[rows, None])] = np.inf
        rank_RN = noise_RN.argsort(1).argsort(1)  # its place among the row's: hidden ones and the blank come last
        is_masked_BN[rows] |= rank_RN < missing_B[rows, None]
    return is_masked_BN


def draw_spans(rule: SpanRule, keys: Keys, lengths_B: Ints, sizes_B: Ints, wanted_B: Ints, num_patches: int) -> Bools:
    """bool (B, N): runs until `wanted_B` patches are hidden, or none was found room for.

    Try t of a key takes its draws 2 t (how long) and 2 t + 1 (where, among the first `sizes_B` patches; the first run
    among the first `lengths_B`).
    """
    try:
        import pretrainkit.recipes.pixel._masks as compiled
    except ImportError:
        return draw_spans_by_numpy(rule, keys, lengths_B, sizes_B, wanted_B, num_patches)
    is_masked_BN = np.zeros((len(keys), num_patches), np.bool_)
    compiled.draw_spans(
        np.ascontiguousarray(keys, np.uint64),
        np.ascontiguousarray(lengths_B, np.int64),
        np.ascontiguousarray(sizes_B, np.int64),
        np.ascontiguousarray(wanted_B, np.int64),
        np.array(rule.cumulative_weights, np.float64),
        -1 if rule.spacing is None else rule.spacing,
        is_masked_BN,
    )
    return is_masked_BN


def draw_spans_by_numpy(
    rule: SpanRule, keys: Keys, lengths_B: Ints, sizes_B: Ints, wanted_B: Ints, num_patches: int
) -> Bools:
    """`draw_spans` without the helper: every round, each row that is not done tries one run."""
    weights, longest = np.array(rule.cumulative_weights), len(rule.cumulative_weights)
    # By length of a run, which of the columns around it are its own, and which must stay visible.
    gap_max = longest if rule.spacing is None else rule.spacing
    reach = longest + 2 * gap_max
    offsets_X = np.arange(reach) - gap_max
    length_S1 = np.arange(1, longest + 1)[:, None]
    gap_S1 = length_S1 if rule.spacing is None else np.full_like(length_S1, rule.spacing)
    is_run_SX = (offsets_X >= 0) & (offsets_X < length_S1)
    is_gap_SX = (offsets_X >= -gap_S1) & (offsets_X < length_S1 + gap_S1) & ~is_run_SX

    # Columns before and behind the row, so that a window at its edge needs no clipping.
    padded = np.zeros((len(keys), num_patches + reach + gap_max), np.bool_)
    counts_B, fails_B, is_first_B = np.zeros_like(wanted_B), np.zeros_like(wanted_B), np.ones(len(keys), np.bool_)
    rows, turn = np.flatnonzero(wanted_B > 0), 0
    draws = np.empty((0, 0))
    drawn_rows = rows
    while len(rows):
        if turn % _TURNS == 0:
            drawn_rows = rows
            whole = bits(keys[rows], 2 * (turn + _TURNS))[:, 2 * turn :]
            draws = (whole >> np.uint64(11)).astype(np.float64) * 2.0**-53  # 53 bits, as many as a float64 has
        of_R = np.searchsorted(drawn_rows, rows)  # their rows in `draws`, which has those that were left back then
        at = 2 * (turn % _TURNS)
        index_R = np.minimum(np.searchsorted(weights, draws[of_R, at], "right"), longest - 1)
        length_R = index_R + 1
        is_short_R = length_R < sizes_B[rows]
        room_R = np.where(is_first_B[rows], np.maximum(0, lengths_B[rows] - length_R), sizes_B[rows] - length_R)
        left_R = np.floor(draws[of_R, at + 1] * (np.maximum(room_R, 0) + 1)).astype(np.int64)
        is_first_B[rows[is_short_R]] = False
        columns_RX = left_R[:, None] + np.arange(reach)
        window_RX = padded[rows[:, None], columns_RX]
        is_run_RX = is_run_SX[index_R]
        num_new_R = length_R - (window_RX & is_run_RX).sum(1)
        budget_R = np.minimum(wanted_B[rows] - counts_B[rows], longest)
        is_good_R = is_short_R & ~(window_RX & is_gap_SX[index_R]).any(1) & (num_new_R > 0) & (num_new_R <= budget_R)
        good = np.flatnonzero(is_good_R)
        padded[rows[good][:, None], columns_RX[good]] |= is_run_RX[good]
        counts_B[rows[good]] += num_new_R[good]
        fails_B[rows] = np.where(is_good_R, 0, fails_B[rows] + 1)
        rows = rows[(counts_B[rows] < wanted_B[rows]) & (fails_B[rows] < _TRIES)]
        turn += 1
    return padded[:, gap_max : gap_max + num_patches]


def original_mask(
    rng: random.Random,
    *,
    num_patches: int,
    num_masking_patches: int,
    num_text_patches: int,
    max_span_length: int,
    spacing: int | None,
    cumulative_span_weights: Sequence[float] | None,
) -> Bools:
    """bool (N,): what the original's generator gives with Python's random numbers in that state.

    Args:
        num_text_patches: The end patch included, as the original's driver passes it.
        spacing: None: as many as the run has.
        cumulative_span_weights: None: all lengths alike.
    """
    is_masked = np.zeros(num_patches, np.bool_)
    lengths = range(1, max_span_length + 1)
    count, is_first = 0, True
    while count < num_masking_patches:
        budget, added = min(num_masking_patches - count, max_span_length), 0
        for _ in range(_TRIES):
            length = rng.choices(lengths, cum_weights=cumulative_span_weights)[0]
            if length >= num_patches:
                continue
            room = max(0, num_text_patches - length) if is_first else num_patches - length
            left, is_first = rng.randint(0, room), False
            gap = length if spacing is None else spacing
            end = left + length
            if gap and (is_masked[max(0, left - gap) : left].any() or is_masked[end : end + gap].any()):
                continue
            new = length - int(is_masked[left:end].sum())
            if 0 < new <= budget:
                is_masked[left:end] = True
                added = new
                break
        if not added:
            break
        count += added
    return is_masked
