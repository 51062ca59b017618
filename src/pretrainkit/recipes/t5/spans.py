"""Masks of noise tokens in segments, and the replacement of hidden tokens.

Every function works on a whole batch of segments of any lengths, one after another. A mask is bool (M,), True for
noise: the tokens that the model must predict. All randomness of a segment comes from its key, in separate streams.

Dimensions: B segments, M tokens of all segments together, K runs of all segments together.
Sources: Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 3.3; the released `t5` (`data/preprocessors.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.subsets import slots, subsets
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5.ragged import Ragged, below, kept
from pretrainkit.rng import Keys, fold, stream_key, uniform

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Hiding = Literal[
    "sentinels",
    "shared_sentinel",
    "sentinel_per_token",
    "drop",
    "permute",
    "random_of_segment",
    "random_of_vocabulary",
    "random_or_sentinel",
    "keep",
]
"""Replacements of hidden tokens; see `hide`."""

FIRST_TEXT_ID = 3
"""The first id of text; smaller ids are padding, end and unknown."""
_RANDOM_SHARE = 0.1

_NOISE_CUTS, _CLEAN_CUTS, _ROLL, _TOKENS, _PERIODS, _OFFSETS, _PREFIX, _CHOICE, _IDS, _ORDER = (
    np.array(stream_key(0, "t5", name), np.uint64)
    for name in (
        *("noise cuts", "clean cuts", "roll", "iid", "regular lengths"),
        *("regular offsets", "prefix", "choice", "replacement ids", "order"),
    )
)
_BOTH_CUTS = np.stack([_CLEAN_CUTS, _NOISE_CUTS])[:, None]


@dataclass(frozen=True)
class LengthPlan:
    """Numbers of tokens that fill inputs of a given length."""

    num_tokens: int
    """Number of tokens of a segment of text."""
    num_inputs: int
    """Number of tokens of the inputs, with the end mark."""
    num_targets: int
    """Number of tokens of the targets, with the end mark."""
    num_spans: int
    """Number of noise runs of a full segment, which is also the number of sentinels needed."""


def plan_lengths(
    input_length: int, noise_density: float, mean_span_length: float, *, extra_inputs: int = 1, extra_targets: int = 1
) -> LengthPlan:
    """Return the longest segments whose corrupted inputs have at most `input_length` tokens, including the end mark.

    Raises ConfigError if no segment fits.

    Args:
        noise_density: Share of the tokens that are noise, strictly between 0 and 1.
        mean_span_length: Average number of tokens of a noise run, at least 1.
        extra_inputs: Number of tokens that replace a noise run in the inputs.
        extra_targets: Number of tokens before each noise run in the targets.
    """
    if not 0 < noise_density < 1 or mean_span_length < 1 or input_length < 3:
        raise ConfigError(
            f"no segment length fits inputs of {input_length} tokens with noise_density={noise_density} and "
            f"mean_span_length={mean_span_length}\n  use a length of at least 3, a density strictly between 0 and 1 "
            "and spans of at least 1 token"
        )

    def lengths(num_tokens: int) -> tuple[int, int, int]:
        num_noise = round(num_tokens * noise_density)
        # At least one run, as in the mask. The original plans for none if spans are long, and loses a token.
        num_spans = max(1, round(num_noise / mean_span_length))
        num_inputs = num_tokens - num_noise + num_spans * extra_inputs + 1
        return num_inputs, num_noise + num_spans * extra_targets + 1, num_spans

    num_tokens = input_length - 1
    while lengths(num_tokens + 1)[0] <= input_length:
        num_tokens += 1
    num_inputs, num_targets, num_spans = lengths(num_tokens)
    if noise_density == 0.5 and num_targets > num_inputs:
        num_tokens, num_targets = num_tokens - 1, num_targets - 1
    return LengthPlan(num_tokens, num_inputs, num_targets, num_spans)


def count_noise(lengths: Ints, noise_density: float, mean_span_length: float) -> tuple[Ints, Ints]:
    """Return the numbers of noise tokens (B,) and noise runs (B,) of segments, in float32 as the original computes
    them.

    There are fewer runs than `mean_span_length` implies if there are too few other tokens to separate them.
    """
    sizes = np.maximum(lengths, 2)
    num_noise = np.rint(sizes.astype(np.float32) * np.float32(noise_density)).astype(np.int64)
    num_noise = np.minimum(np.maximum(num_noise, 1), sizes - 1)
    num_spans = np.rint(num_noise.astype(np.float32) / np.float32(mean_span_length)).astype(np.int64)
    return num_noise, np.minimum(np.maximum(num_spans, 1), np.minimum(num_noise, sizes - num_noise))


def random_spans(
    keys: Keys, lengths: Ints, noise_density: float, mean_span_length: float, *, random_roll: bool = False
) -> Mask:
    """Return a mask with exactly the noise tokens and runs of `count_noise`. The lengths of the runs and of the gaps
    are each drawn with equal probability from all possible ones.

    A segment begins with clean tokens and ends with noise. `random_roll` rotates the mask by a random number of
    positions, so that every token can be noise; it may split one run in two.
    """
    sizes = np.maximum(lengths, 2)
    num_noise, num_spans = count_noise(lengths, noise_density, mean_span_length)
    if not len(lengths):
        return np.empty(0, np.bool_)
    # Total lengths of the gaps before noise runs, and of the runs.
    totals = np.concatenate([sizes - num_noise, num_noise])
    both = compositions(fold(keys, _BOTH_CUTS).ravel(), totals, np.tile(num_spans, 2))
    clean, noise = both.reshape(2, -1)
    # At the start of a run the count changes by one: repeating each run's value would take three times as long.
    begins = np.cumsum(np.stack([clean, noise], axis=1).ravel())[:-1]
    changes = np.zeros(int(sizes.sum()), np.int8)
    changes[begins[0::2]], changes[begins[1::2]] = 1, -1
    is_noise = np.cumsum(changes, dtype=np.int8).view(np.bool_)
    if int(lengths.min()) < 2:
        is_noise = is_noise[slots(sizes) < np.repeat(lengths, sizes)]
    if not random_roll:
        return is_noise
    # Token i of a rotated segment has the mask of token (i + shift) mod size.
    shift = np.repeat(below(fold(keys, _ROLL), np.maximum(lengths, 1)), lengths)
    size, begin = np.repeat(lengths, lengths), np.repeat(np.cumsum(lengths) - lengths, lengths)
    return is_noise[begin + (slots(lengths) + shift) % size]


def corrupt_spans(
    keys: Keys,
    text: Ragged,
    noise_density: float,
    mean_span_length: float,
    sentinels: NDArray[np.int32],
    end: int,
) -> tuple[Ragged, Ragged] | None:
    """Return inputs and targets of `random_spans` with a sentinel for each run and an end mark, in a tenth of the time
    of `hide`; None if the package was installed without a compiler. Segments have at least 2 tokens, and at most as
    many runs as there are sentinels."""
    compiled = _compiled_corrupt_spans()
    if compiled is None:
        return None
    num_noise, num_spans = count_noise(text.lengths, noise_density, mean_span_length)
    num_targets = num_noise + num_spans + 1
    num_inputs = text.lengths + num_targets - 2 * num_noise
    inputs = Ragged(np.empty(int(num_inputs.sum()), np.int32), num_inputs)
    targets = Ragged(np.empty(int(num_targets.sum()), np.int32), num_targets)
    clean_keys, noise_keys = fold(keys, _BOTH_CUTS)
    counts = (text.lengths, num_noise, num_spans)
    compiled(clean_keys, noise_keys, *counts, text.values, sentinels, end, inputs.values, targets.values)
    return inputs, targets


@cache
def _compiled_corrupt_spans() -> Callable[..., None] | None:
    """Return the function of `_spans.c`; None if the package was installed without a compiler."""
    try:
        from pretrainkit.recipes.t5._spans import corrupt_spans
    except ImportError:
        return None
    return corrupt_spans


def compositions(keys: Keys, totals: Ints, parts: Ints) -> Ints:
    """Return (sum of parts,): `parts[b]` positive numbers of sum `totals[b]` per key; all such rows are equally
    likely."""
    # Ends of the parts: all but the last are a random subset of 1 .. total - 1, the last is the total.
    last = np.cumsum(parts) - 1
    ends = np.empty(int(parts.sum()), np.int64)
    is_last = np.zeros(len(ends), np.bool_)
    is_last[last] = True
    ends[last] = totals
    ends[~is_last] = subsets(keys, parts - 1, totals - 1) + 1
    lengths = np.diff(ends, prepend=0)
    # The first part of a row begins at 0 instead of at the end of the previous row.
    lengths[last[:-1] + 1] = ends[last[:-1] + 1]
    return lengths


def iid(keys: Keys, lengths: Ints, noise_density: float) -> Mask:
    """Return a mask in which each token is noise independently."""
    # The upper 53 bits of each draw, all that a float64 holds, as a number in [0, 1).
    draws = fold(np.repeat(fold(keys, _TOKENS), lengths), slots(lengths))
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53 < noise_density


def regular(keys: Keys, lengths: Ints, noise_density: float) -> Mask:
    """Return a mask of runs at equal distances. Each segment draws their length (uniform from 1 to 5) and the position
    of the first; the period is round(length / noise_density)."""
    span = 1 + below(fold(keys, _PERIODS), np.full(len(keys), 5))
    period = np.maximum(np.rint(span / noise_density).astype(np.int64), 1)
    offset = below(fold(keys, _OFFSETS), period)
    place = slots(lengths) + np.repeat(offset, lengths)
    return place % np.repeat(period, lengths) < np.repeat(span, lengths)


def suffix(keys: Keys, lengths: Ints, noise_density: float) -> Mask:
    """Return a mask of all tokens after a random prefix, whose length is uniform from 1 to n - 1 for a density of 0.5.

    For lower densities the shortest prefix is round((1 - 2 density)(n - 1)), so that the mean share of noise is the
    density. The original marks the prefix instead; here noise is always the part to predict.
    """
    shortest = np.rint((1 - 2 * noise_density) * np.maximum(lengths - 1, 0)).astype(np.int64)
    return slots(lengths) >= np.repeat(_prefixes(keys, lengths, shortest), lengths)


def paired_prefixes(keys: Keys, lengths: Ints, half: int) -> tuple[Ints, Ints]:
    """Return lengths and prefixes, (2 B,) each, of examples from texts that are cut in two. Both examples of a text are
    adjacent and share rows of `half` slots on both sides; texts have at most 2 `half` tokens.

    The first prefix is uniform from 1 to `half` - 1; the second is as long as the remainder of the first, so that full
    texts fill both rows.
    """
    first = np.minimum(lengths, half)
    second = lengths - first
    prefix = _prefixes(keys, first, np.ones_like(first))
    other = np.minimum(half - prefix, np.maximum(second - 1, 0))
    return np.stack([first, second], axis=1).ravel(), np.stack([prefix, other], axis=1).ravel()


def _prefixes(keys: Keys, lengths: Ints, shortest: Ints) -> Ints:
    """Return (B,) lengths of prefixes: uniform from `shortest`, but at least 1, to all tokens but one."""
    longest = np.maximum(lengths - 1, 0)
    shortest = np.minimum(np.maximum(shortest, 1), longest)
    return shortest + below(fold(keys, _PREFIX), longest - shortest + 1)


def limit_runs(is_noise: Mask, lengths: Ints, most: int) -> Mask:
    """Return the mask with only the first `most` runs of each segment, because there are no sentinels for more."""
    is_start = run_starts(is_noise, lengths)
    # Runs counted over all segments, minus those before the segment.
    number = np.cumsum(is_start)
    ends = np.cumsum(lengths)
    before = np.concatenate([[0], number])[ends - lengths]
    return is_noise & (number - np.repeat(before, lengths) <= most)


def run_starts(is_hidden: Mask, lengths: Ints) -> Mask:
    """Return (M,) True for the first token of each run of hidden tokens; a run ends with its segment."""
    is_start = is_hidden.copy()
    is_start[1:] &= ~is_hidden[:-1]
    begins = (np.cumsum(lengths) - lengths)[lengths > 0]
    is_start[begins] = is_hidden[begins]
    return is_start


def hide(
    kind: Hiding, tokens: Ragged, is_hidden: Mask, keys: Keys, sentinels: NDArray[np.int32], text_size: int
) -> Ragged:
    """Return the segments with their hidden tokens replaced. Inputs hide the noise, targets hide everything else.
    `sentinels` are in the order of use. Random ids are below `text_size` and at least 3.

    sentinels: the k-th run of a segment becomes the k-th sentinel. shared_sentinel: each run becomes the first
    sentinel. sentinel_per_token: each token becomes the first sentinel. drop: hidden tokens are removed. permute: they
    are shuffled. random_of_segment: each becomes a random token of its segment. random_of_vocabulary: each becomes a
    random text id. random_or_sentinel: a random text id in one case of ten, else the first sentinel. keep: nothing is
    hidden. Raises ValueError if a segment has more hidden runs than there are sentinels.
    """
    if kind == "keep":
        return tokens
    if kind == "drop":
        return tokens.take_slots(~is_hidden)
    values = tokens.values.copy()
    if kind in ("sentinels", "shared_sentinel"):
        is_start = run_starts(is_hidden, tokens.lengths)
        starts = np.flatnonzero(is_start)
        number = slots(np.diff(np.searchsorted(starts, tokens.ends), prepend=0))
        if kind == "sentinels" and len(number) and int(number.max()) >= len(sentinels):
            raise ValueError(f"a segment has {int(number.max()) + 1} runs, but there are {len(sentinels)} sentinels")
        values[starts] = sentinels[number if kind == "sentinels" else 0]
        return kept(values, np.flatnonzero(~is_hidden | is_start), tokens.ends)
    where = np.flatnonzero(is_hidden)
    row = np.searchsorted(tokens.ends, where, side="right")
    place = where - tokens.begins[row]
    if kind == "permute":
        # Sorted by random keys within each segment: all orders are equally likely.
        order = np.lexsort((fold(fold(keys, _ORDER)[row], place), row))
        values[where] = tokens.values[where[order]]
    elif kind == "random_of_segment":
        drawn = below(fold(fold(keys, _IDS)[row], place), tokens.lengths[row])
        values[where] = tokens.values[tokens.begins[row] + drawn]
    else:
        num = np.full(len(where), text_size - FIRST_TEXT_ID)
        values[where] = FIRST_TEXT_ID + below(fold(fold(keys, _IDS)[row], place), num)
        if kind != "random_of_vocabulary":
            choice = uniform(fold(fold(keys, _CHOICE)[row], place), 1)[:, 0]
            share = _RANDOM_SHARE if kind == "random_or_sentinel" else 0.0
            values[where[choice >= share]] = sentinels[0]
    return Ragged(values, tokens.lengths)
