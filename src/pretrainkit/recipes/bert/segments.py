"""Split a chunk into the two segments of an example, drop the excess tokens, and choose the segment that comes first.

All choices are drawn from one uint64 key per example, in separate streams. No token is read here.

Dimensions: B examples.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.bert.chunks import ChunkIndex, token_limits
from pretrainkit.rng import Keys, fold, stream_key

Ints = NDArray[np.int64]

_STREAMS = np.array(
    [[stream_key(0, "bert", name)] for name in ("split", "swap", "trim first", "trim second", "elsewhere")], np.uint64
)


@dataclass(frozen=True)
class Segments:
    """Spans of the corpus that form each example, in the order in which the example shows them."""

    starts_B2: Ints
    """(B, 2) global offsets of the first tokens of the first and the second segment."""
    lengths_B2: Ints
    """(B, 2) numbers of tokens of the segments; the second is 0 in an example of one segment."""
    is_swapped: NDArray[np.bool_]
    """(B,) True if the first segment comes second in the document; for pairs of kind "next", True if the second segment
    does not follow the first."""

    @property
    def is_pair(self) -> NDArray[np.bool_]:
        """(B,) True if the example has two segments."""
        return self.lengths_B2[:, 1] > 0

    @property
    def num_text(self) -> Ints:
        """(B,) number of tokens without [CLS] and [SEP]."""
        return self.lengths_B2[:, 0] + self.lengths_B2[:, 1]


def example_lengths(index: ChunkIndex, rows: Ints, *, max_tokens: int, sentence_order: bool) -> Ints:
    """Return the (B,) lengths of the examples of the chunks `rows`, with [CLS] and [SEP]. They involve no random
    draw."""
    num_inner = index.inner_begins[rows + 1] - index.inner_begins[rows]
    limit = token_limits(num_inner, max_tokens, sentence_order)
    # The text, [CLS], [SEP], and for pairs one more [SEP], by which their limit is smaller.
    return np.minimum(index.lengths[rows], limit) + 2 + (max_tokens - limit)


def draw_segments(
    index: ChunkIndex,
    rows: Ints,
    keys: Keys,
    *,
    max_tokens: int,
    sentence_order: bool,
    swap_probability: float,
    pair: Literal["order", "next"] = "order",
) -> Segments:
    """Split, trim and swap, as Sabertooth does; or split, trim and replace the second segment.

    A chunk of n > 1 sentences is split at one of its n - 1 inner sentence ends, all equally likely. While a pair has
    more than max_tokens - 1 tokens, one token is removed from the longer segment (from the second if they are equal),
    at its front or its back with equal probability. A single segment is trimmed to max_tokens in the same way. The
    number of tokens that each segment loses follows from the lengths, and the number removed at the front is binomial,
    so no step-by-step simulation is needed.

    Args:
        rows: (B,) indices of the chunks.
        keys: (B,) one per example.
        max_tokens: max_seq_length - 2.
        sentence_order: If False, every chunk is one segment of up to max_tokens, and nothing is swapped.
        swap_probability: Share of the pairs that are swapped or get another second segment.
        pair: order: swap. next: the second segment becomes a span of equal length from the beginning of another chunk,
            all chunks equally likely. If the corpus ends too early, its last tokens are used. A corpus of one chunk has
            no such pairs.
    """
    split_keys, swap_keys, *trim_keys, elsewhere_keys = fold(keys, _STREAMS)
    starts, totals = index.starts[rows], index.lengths[rows].astype(np.int64)
    begins = index.inner_begins[rows]
    num_inner = index.inner_begins[rows + 1] - begins
    first_start, first_length = starts.copy(), totals.copy()
    second_start, second_length = starts.copy(), np.zeros_like(totals)
    if sentence_order:
        is_pair = num_inner > 0
        choice = begins + _below(split_keys, num_inner)
        split = index.inner_ends[choice[is_pair]]
        first_length[is_pair] = split
        second_length[is_pair] = totals[is_pair] - split
        second_start[is_pair] += split

    excess = totals - token_limits(num_inner, max_tokens, sentence_order)
    too_long = np.flatnonzero(excess > 0)
    if len(too_long):
        removed = removed_tokens(first_length[too_long], second_length[too_long], excess[too_long])
        in_front = coin_tosses(np.concatenate([keys[too_long] for keys in trim_keys]), np.concatenate(removed))
        first_start[too_long] += in_front[: len(too_long)]
        second_start[too_long] += in_front[len(too_long) :]
        first_length[too_long] -= removed[0]
        second_length[too_long] -= removed[1]

    starts_B2 = np.stack([first_start, second_start], axis=1)
    lengths_B2 = np.stack([first_length, second_length], axis=1)
    is_swapped = np.zeros(len(totals), np.bool_)
    if sentence_order:
        draws = (swap_keys >> np.uint64(11)).astype(np.float64) * 2.0**-53
        is_swapped = (draws < swap_probability) & (second_length > 0)
        if pair == "next":
            is_swapped &= len(index) > 1
            # A chunk other than its own: 1 to N - 1 chunks later, modulo the number of chunks.
            other = (rows + 1 + _below(elsewhere_keys, np.full_like(rows, len(index) - 1))) % len(index)
            last = index.starts[-1] + index.lengths[-1] - lengths_B2[:, 1]
            starts_B2[is_swapped, 1] = np.minimum(index.starts[other], last)[is_swapped]
        else:
            starts_B2[is_swapped] = starts_B2[is_swapped, ::-1]
            lengths_B2[is_swapped] = lengths_B2[is_swapped, ::-1]
    return Segments(starts_B2, lengths_B2, is_swapped)


def removed_tokens(first: Ints, second: Ints, excess: Ints) -> tuple[Ints, Ints]:
    """Return how many tokens each segment loses when `excess` tokens are removed one by one from the longer segment.

    If both are equal, the second loses one. So the longer segment is first reduced to the length of the other, then
    both lose tokens alternately, beginning with the second. Neither becomes empty while a pair has two tokens.
    """
    levelling = np.minimum(np.abs(first - second), excess)
    rest = excess - levelling
    is_first_longer = first > second
    from_first = np.where(is_first_longer, levelling, 0) + rest // 2
    return from_first, excess - from_first


def coin_tosses(keys: Keys, num: Ints) -> Ints:
    """Return the (B,) numbers of heads among `num` fair coins per key: one random bit each, counted 64 at a time."""
    num_words = (num + 63) // 64
    row = np.repeat(np.arange(len(num)), num_words)
    word = np.arange(len(row)) - np.repeat(np.cumsum(num_words) - num_words, num_words)
    # The surplus bits of a key's last word are shifted out, so that one bit per coin remains.
    unused = np.maximum(0, (word + 1) * 64 - num[row]).astype(np.uint64)
    heads = np.bitwise_count(fold(keys[row], word) >> unused)
    return np.bincount(row, heads, minlength=len(num)).astype(np.int64)


def _below(draws: Keys, bound: Ints) -> Ints:
    """Return integers in [0, bound) from 64-bit draws, all equally likely up to a deviation of bound / 2^32."""
    high = draws >> np.uint64(32)
    return ((high * bound.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
