"""Turn segments and their tokens into the arrays that the model reads: padded rows, or packed without padding.

Both layouts are made from the same flat examples, so they have the same tokens, swaps and predictions.

Dimensions: B examples, S max_seq_length, P maximum number of predictions of an example, T tokens and K predictions of
all examples together (packed: with padding up to the capacity, if it is set), M text tokens of all examples together.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.subsets import slots
from pretrainkit.recipes.bert.masking import Masking, choose, hide
from pretrainkit.recipes.bert.segments import Segments
from pretrainkit.rng import Keys
from pretrainkit.tokenizers.special import SpecialIds

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """Masked examples, concatenated."""

    ids: NDArray[np.int32]
    """(T,) input ids, after masking."""
    ends: Ints
    """(B + 1,) cumulative lengths."""
    first_lengths: Ints
    """(B,) number of text tokens of the first segment."""
    is_swapped: NDArray[np.bool_]
    """(B,) True if the segments were swapped; for pairs of kind "next", if the second one is from elsewhere."""
    num_predictions: Ints
    """(B,) number of tokens to predict."""
    where: Ints
    """(K,) indices of the predictions into `ids`, ascending."""
    originals: NDArray[np.int32]
    """(K,) original ids, which the model must predict."""

    @cached_property
    def lengths(self) -> Ints:
        """(B,) number of tokens with [CLS] and [SEP]."""
        return np.diff(self.ends)

    @cached_property
    def second_begins(self) -> Ints:
        """(B,) position at which the second segment begins; the example's length if it has one segment."""
        return np.minimum(self.first_lengths + 2, self.lengths)


def assemble(
    segments: Segments, text: NDArray[np.integer], keys: Keys, masking: Masking, special: SpecialIds
) -> Examples:
    """Build `[CLS] first [SEP] second [SEP]` or `[CLS] first [SEP]`, then choose the predictions and hide them.

    `text`: (M,) the tokens of all segments in order, example by example; `keys`: (B,) one per example.
    """
    num_text, is_pair = segments.num_text, segments.is_pair
    first = segments.lengths_B2[:, 0]
    lengths = num_text + 2 + is_pair
    ends = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.empty(int(ends[-1]), np.int32)
    is_text = np.ones(len(ids), np.bool_)
    begins, middles = ends[:-1], (ends[:-1] + 1 + first)[is_pair]  # indices of [CLS], and of [SEP] between segments
    is_text[begins] = is_text[middles] = is_text[ends[1:] - 1] = False
    ids[is_text] = text
    ids[begins], ids[middles], ids[ends[1:] - 1] = special.cls, special.sep, special.sep

    # Candidates are numbered within the text of an example, then shifted past the control tokens before them.
    text_begins = np.cumsum(num_text) - num_text
    segment_begins = np.concatenate([text_begins, (text_begins + first)[is_pair]])
    num, candidates = choose(masking, keys, lengths, num_text, text, segment_begins)
    candidates += candidates >= np.repeat(first, num)  # past the [SEP] between the segments
    candidates += np.repeat(begins + 1, num)
    originals = hide(masking, keys, num, ids, candidates)
    return Examples(ids, ends, first, segments.is_swapped, num, candidates, originals)


def rows(
    examples: Examples, special: SpecialIds, *, width: int, num_slots: int, sentence_order: bool
) -> dict[str, np.ndarray]:
    """Return a batch with one example per row.

    input_ids (B, S) int32.
    input_mask (B, S) bool, True for tokens. Computed from the ids after masking, as Sabertooth does: a random
        replacement that happens to be <pad> (compatible mode only) is not attended to.
    token_type_ids (B, S) int32, 0 in padding (Sabertooth has 1 in the padding of single segments, which is never read).
    masked_lm_positions, masked_lm_ids (B, P) int32, masked_lm_weights (B, P) float32; positions ascend, and unused
        slots are 0 in all three.
    lengths (B,) int32.
    next_sentence_label (B,) int64, 1 = swapped; only with `sentence_order`.
    """
    num_rows, column = len(examples.lengths), np.arange(width)
    is_real = column < examples.lengths[:, None]
    input_ids = np.full((num_rows, width), special.pad, np.int32)
    input_ids[is_real] = examples.ids
    is_used = np.arange(num_slots) < examples.num_predictions[:, None]
    positions = np.zeros((num_rows, num_slots), np.int32)
    positions[is_used] = examples.where - np.repeat(examples.ends[:-1], examples.num_predictions)
    originals = np.zeros((num_rows, num_slots), np.int32)
    originals[is_used] = examples.originals
    batch: dict[str, np.ndarray] = {
        "input_ids": input_ids,
        "input_mask": input_ids != special.pad,
        "token_type_ids": ((column >= examples.second_begins[:, None]) & is_real).astype(np.int32),
        "masked_lm_positions": positions,
        "masked_lm_ids": originals,
        "masked_lm_weights": is_used.astype(np.float32),
        "lengths": examples.lengths.astype(np.int32),
    }
    if sentence_order:
        batch["next_sentence_label"] = examples.is_swapped.astype(np.int64)
    return batch


def packed(
    examples: Examples,
    special: SpecialIds,
    *,
    sentence_order: bool,
    capacity: int | None = None,
    masking_rate: float = 0.0,
) -> dict[str, np.ndarray]:
    """Return a batch with all examples (possibly none) concatenated.

    input_ids, token_type_ids, positions (T,) int32, positions from 0 in every example; cu_seqlens (B + 1,) int32,
    boundaries of the examples; lengths (B,) int32; masked_lm_positions (K,) int32 indices into the T tokens, ascending;
    masked_lm_ids (K,) int32; masked_lm_weights (K,) float32; next_sentence_label (B,) int64 only with `sentence_order`.
    All tokens are attended to within their example, even a random <pad>.

    `capacity`: pad to this many tokens, or to the next multiple if there are more. The padding is after cu_seqlens[-1]
    and belongs to no example. Predictions are padded to masking_rate x capacity (or the next multiple) with weight 0.
    """
    lengths = examples.lengths
    num_tokens = padded_tokens = len(examples.ids)
    num_predictions = padded_predictions = len(examples.where)
    if capacity is not None:
        padded_tokens = _next_multiple(num_tokens, capacity)
        padded_predictions = _next_multiple(num_predictions, max(1, int(masking_rate * capacity)))
    types = np.zeros(padded_tokens, np.int32)
    # Each example has a 0 for every token of its first segment, then a 1 for every token of its second.
    parts = np.stack([examples.second_begins, lengths - examples.second_begins], axis=1)
    types[:num_tokens] = np.repeat(np.tile(np.array([0, 1], np.int32), len(lengths)), parts.ravel())
    batch: dict[str, np.ndarray] = {
        "input_ids": _filled(examples.ids, padded_tokens, special.pad),
        "token_type_ids": types,
        "positions": _filled(slots(lengths), padded_tokens),
        "cu_seqlens": examples.ends.astype(np.int32),
        "lengths": lengths.astype(np.int32),
        "masked_lm_positions": _filled(examples.where, padded_predictions),
        "masked_lm_ids": _filled(examples.originals, padded_predictions),
        "masked_lm_weights": (np.arange(padded_predictions) < num_predictions).astype(np.float32),
    }
    if sentence_order:
        batch["next_sentence_label"] = examples.is_swapped.astype(np.int64)
    return batch


def _next_multiple(value: int, unit: int) -> int:
    """Return the smallest positive multiple of `unit` that is at least `value`."""
    return max(1, -(-value // unit)) * unit


def _filled(values: NDArray[np.integer], size: int, fill: int = 0) -> NDArray[np.int32]:
    """Return `values` as int32, padded with `fill` to `size`."""
    out = np.full(size, fill, np.int32)
    out[: len(values)] = values
    return out
