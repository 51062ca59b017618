"""From segments and their tokens to the arrays that the model reads: rows with padding, or packed without.

Both layouts are made from the same flat examples, so they hold the same tokens, swaps and predictions.

Dimensions: B examples, S max_seq_length, P most predictions of an example, T tokens and K predictions of all examples
together (packed: with padding up to a fixed capacity, where there is one), M text tokens of all examples together.
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
    """Masked examples, one after another."""

    ids: NDArray[np.int32]
    """(T,) what the model sees."""
    ends: Ints
    """(B + 1,) cumulative lengths."""
    first_lengths: Ints
    """(B,) text tokens of the first segment."""
    is_swapped: NDArray[np.bool_]
    """(B,)"""
    num_predictions: Ints
    """(B,)"""
    where: Ints
    """(K,) indices of the predictions into `ids`, ascending."""
    originals: NDArray[np.int32]
    """(K,) what the model must predict."""

    @cached_property
    def lengths(self) -> Ints:
        """(B,) tokens with [CLS] and [SEP]."""
        return np.diff(self.ends)

    @cached_property
    def second_begins(self) -> Ints:
        """(B,) position at which the second segment begins; the example's length where there is none."""
        return np.minimum(self.first_lengths + 2, self.lengths)


def assemble(
    segments: Segments, text: NDArray[np.integer], keys: Keys, masking: Masking, special: SpecialIds
) -> Examples:
    """[CLS] first [SEP] second [SEP] or [CLS] first [SEP], with predictions chosen and hidden.

    `text`: (M,) the tokens of all segments in order, example by example; `keys`: (B,) one per example.
    """
    num_text, is_pair = segments.num_text, segments.is_pair
    first = segments.lengths_B2[:, 0]
    lengths = num_text + 2 + is_pair
    ends = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.empty(int(ends[-1]), np.int32)
    is_text = np.ones(len(ids), np.bool_)
    begins, middles = ends[:-1], (ends[:-1] + 1 + first)[is_pair]  # of [CLS], and of the [SEP] between segments
    is_text[begins] = is_text[middles] = is_text[ends[1:] - 1] = False
    ids[is_text] = text
    ids[begins], ids[middles], ids[ends[1:] - 1] = special.cls, special.sep, special.sep

    # Candidates are numbered within the text of an example; then they move past the control tokens before them.
    text_begins = np.cumsum(num_text) - num_text
    segment_begins = np.concatenate([text_begins, (text_begins + first)[is_pair]])
    num, candidates = choose(masking, keys, lengths, num_text, text, segment_begins)
    candidates += candidates >= np.repeat(first, num)  # over the [SEP] between the segments
    candidates += np.repeat(begins + 1, num)
    originals = hide(masking, keys, num, ids, candidates)
    return Examples(ids, ends, first, segments.is_swapped, num, candidates, originals)


def rows(
    examples: Examples, special: SpecialIds, *, width: int, num_slots: int, sentence_order: bool
) -> dict[str, np.ndarray]:
    """One example per row.

    input_ids (B, S) int32.
    input_mask (B, S) bool, True for tokens. Computed from the ids after masking, as Sabertooth does: a random
        replacement that happens to be <pad> (compatible mode only) is not attended to.
    token_type_ids (B, S) int32, 0 in padding (Sabertooth has 1 in the padding of single segments, which nothing reads).
    masked_lm_positions, masked_lm_ids (B, P) int32, masked_lm_weights (B, P) float32; positions ascend, and slots that
        are not used are 0 in all three.
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
    """All examples, maybe none, one after another.

    input_ids, token_type_ids, positions (T,) int32, positions from 0 in every example; cu_seqlens (B + 1,) int32, where
    examples begin and end; lengths (B,) int32; masked_lm_positions (K,) int32 indices into the T tokens, ascending;
    masked_lm_ids (K,) int32; masked_lm_weights (K,) float32; next_sentence_label (B,) int64 only with `sentence_order`.
    All tokens are attended to within their example, also a random <pad>.

    `capacity`: fill up to this many tokens (or the next multiple, where there are more) with padding that belongs to no
    example: it lies behind cu_seqlens[-1]. Predictions are filled up to masking_rate x capacity (or the next multiple)
    with weight 0.
    """
    lengths = examples.lengths
    num_tokens = room_tokens = len(examples.ids)
    num_predictions = room_predictions = len(examples.where)
    if capacity is not None:
        room_tokens = _next_multiple(num_tokens, capacity)
        room_predictions = _next_multiple(num_predictions, max(1, int(masking_rate * capacity)))
    types = np.zeros(room_tokens, np.int32)
    # As many zeros as the first segment of each example has tokens, then as many ones as the second.
    parts = np.stack([examples.second_begins, lengths - examples.second_begins], axis=1)
    types[:num_tokens] = np.repeat(np.tile(np.array([0, 1], np.int32), len(lengths)), parts.ravel())
    batch: dict[str, np.ndarray] = {
        "input_ids": _filled(examples.ids, room_tokens, special.pad),
        "token_type_ids": types,
        "positions": _filled(slots(lengths), room_tokens),
        "cu_seqlens": examples.ends.astype(np.int32),
        "lengths": lengths.astype(np.int32),
        "masked_lm_positions": _filled(examples.where, room_predictions),
        "masked_lm_ids": _filled(examples.originals, room_predictions),
        "masked_lm_weights": (np.arange(room_predictions) < num_predictions).astype(np.float32),
    }
    if sentence_order:
        batch["next_sentence_label"] = examples.is_swapped.astype(np.int64)
    return batch


def _next_multiple(value: int, unit: int) -> int:
    """The smallest positive multiple of `unit` that is at least `value`."""
    return max(1, -(-value // unit)) * unit


def _filled(values: NDArray[np.integer], size: int, fill: int = 0) -> NDArray[np.int32]:
    """int32 `values`, then `fill` up to `size`."""
    out = np.full(size, fill, np.int32)
    out[: len(values)] = values
    return out
