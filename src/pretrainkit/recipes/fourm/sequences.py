"""Span masking of many sequences at once, and its inverse.

Dimensions: R sequences; F tokens of all sequences end to end, I input tokens of the encoder, T target tokens of the
decoder.

Each token (or chunk of tokens that belong together) is kept or hidden independently. A sentinel replaces each hidden
span in the input. The target has, for each span, that sentinel and the hidden tokens, and ends with one more sentinel.
Example: if only the first word of "a cat sits [EOS]" is kept, the input is "a [S_1]" and the target is "[S_1] cat sits
[EOS] [S_2]". Source: released code of 4M (https://arxiv.org/abs/2312.06647), after T5's span corruption.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng

Ids = NDArray[np.int32]
Ints = NDArray[np.int64]

_FADE = 0.9
"""Factor of the keep probability after each attempt that keeps too many tokens."""
_FADED = _FADE ** np.arange(1000.0)
"""Factor of the keep probability by number of the attempt."""
_FAR = 14.0
"""Attempts with a success probability below exp(-14) are skipped."""
_TOKENS_AT_ONCE, _MOST_TRIES = 10_000, 16
_KEPT, _CUT = range(2)


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths, stored end to end."""

    ids_F: Ids
    length_R: Ints
    unit_F: Ids | None = None
    """Number of each token's chunk, ascending from 0 in each sequence; None: each token is a chunk."""

    @property
    def start_R(self) -> Ints:
        """Index of the first token of each sequence."""
        return np.cumsum(self.length_R) - self.length_R

    def take(self, rows: NDArray[np.integer]) -> "Ragged":
        """Return the sequences of `rows`."""
        places = spans(self.start_R[rows], self.length_R[rows])
        units = None if self.unit_F is None else self.unit_F[places]
        return Ragged(self.ids_F[places], self.length_R[rows], units)


@dataclass(frozen=True)
class Hidden:
    """Sequences divided into inputs and targets by span masking."""

    input_ids_I: Ids
    input_from_I: Ids
    """Index of each input token within its sequence; -1 for a sentinel."""
    input_length_R: Ints
    target_ids_T: Ids
    """Target tokens, including the first token, which the decoder only reads."""
    target_length_R: Ints


def spans(start_R: Ints, length_R: Ints) -> Ints:
    """Return the indices start … start + length - 1 of each row, end to end."""
    ends_R = np.cumsum(length_R)
    total = int(ends_R[-1]) if len(ends_R) else 0
    # `arange` counts within and across rows; adding each row's offset makes it start at the row's `start`.
    return np.arange(total) + np.repeat(start_R - (ends_R - length_R), length_R)


def hide_spans(
    sequences: Ragged,
    keys_R: rng.Keys,
    keep_R: NDArray[np.float64],
    budget_R: Ints,
    limit_R: Ints,
    first_sentinel: int,
) -> Hidden:
    """Divide sequences into inputs and targets.

    Args:
        sequences: Complete sequences.
        keys_R: Random keys of the sequences.
        keep_R: Probability that a chunk is kept. It is lowered until the inputs fit `budget_R`.
        budget_R: Maximum number of input tokens. 0: no input at all, not even a sentinel; everything is a target.
        limit_R: Maximum number of target tokens. A longer target is cut to a part that begins with a sentinel.
        first_sentinel: Id of the first span's sentinel. The others follow it.
    """
    start_R, length_R = sequences.start_R, sequences.length_R
    row_F = np.repeat(np.arange(len(length_R)), length_R)
    is_kept_F = _keep(sequences, rng.fold(keys_R, _KEPT), np.where(budget_R > 0, keep_R, 0.0), budget_R)
    starts_span_F = _starts_span(is_kept_F, start_R[length_R > 0])
    span_F = _count_within(starts_span_F, start_R, row_F)
    sentinel_F = (first_sentinel - 1 + span_F).astype(np.int32)

    is_input_F = (is_kept_F | starts_span_F) & (budget_R[row_F] > 0)
    input_ids_I = np.where(is_kept_F, sequences.ids_F, sentinel_F)[is_input_F]
    place_F = np.arange(len(row_F)) - start_R[row_F]
    input_from_I = np.where(is_kept_F, place_F, -1)[is_input_F].astype(np.int32)
    input_length_R = np.bincount(row_F[is_input_F], minlength=len(length_R))

    num_spans_R = np.bincount(row_F[starts_span_F], minlength=len(length_R))
    num_hidden_R = np.bincount(row_F[~is_kept_F], minlength=len(length_R))
    whole_R = num_hidden_R + num_spans_R + 1
    begin_R = np.cumsum(whole_R) - whole_R
    whole_T = np.empty(int(whole_R.sum()), np.int32)
    hidden_before_F = _count_within(~is_kept_F, start_R, row_F) - ~is_kept_F
    place_F = begin_R[row_F] + hidden_before_F + span_F
    whole_T[place_F[~is_kept_F]] = sequences.ids_F[~is_kept_F]
    sentinel_places = place_F[starts_span_F] - 1
    whole_T[sentinel_places] = sentinel_F[starts_span_F]
    whole_T[begin_R + whole_R - 1] = first_sentinel + num_spans_R
    cut_R, target_length_R = _cut(
        rng.fold(keys_R, _CUT), whole_R, limit_R, num_spans_R, sentinel_places - begin_R[row_F[starts_span_F]]
    )
    return Hidden(
        input_ids_I=input_ids_I,
        input_from_I=input_from_I,
        input_length_R=input_length_R,
        target_ids_T=whole_T[spans(begin_R + cut_R, target_length_R)],
        target_length_R=target_length_R,
    )


def merge_spans(input_ids: Ids, target_ids: Ids, sentinels: frozenset[int]) -> Ids:
    """Return the sequence that `hide_spans` divided: the tokens after a sentinel in the target replace that sentinel in
    the input. Sentinels that the target lacks are removed."""
    spans_by_sentinel: dict[int, list[int]] = {}
    span: list[int] = []
    for token in target_ids.tolist():
        if token in sentinels:
            span = spans_by_sentinel[token] = []
        else:
            span.append(token)
    merged: list[int] = []
    for token in input_ids.tolist():
        merged += spans_by_sentinel.get(token, []) if token in sentinels else [token]
    return np.array(merged, np.int32)


def _keep(sequences: Ragged, keys_R: rng.Keys, keep_R: NDArray[np.float64], budget_R: Ints) -> NDArray[np.bool_]:
    """Return bool (F,): True where a token is kept. The result is the first attempt whose inputs fit the budget. The
    compiled module `_keep.c` computes it if it is available, otherwise NumPy, with equal results."""
    first_attempt_R = _skipped_attempts(sequences, keep_R, budget_R)
    try:
        import pretrainkit.recipes.fourm._keep as compiled
    except ImportError:
        return kept_by_numpy(sequences, keys_R, keep_R, budget_R, first_attempt_R)
    is_kept_F = np.zeros(len(sequences.ids_F), np.bool_)
    units_F = np.empty(0, np.int32) if sequences.unit_F is None else sequences.unit_F
    arrays = (
        *((keys_R, np.uint64), (keep_R, np.float64), (budget_R, np.int64), (first_attempt_R, np.int64)),
        *((sequences.length_R, np.int64), (_FADED, np.float64), (units_F, np.int32)),
    )
    compiled.keep(*(np.ascontiguousarray(values, dtype) for values, dtype in arrays), is_kept_F)
    return is_kept_F


def kept_by_numpy(
    sequences: Ragged, keys_R: rng.Keys, keep_R: NDArray[np.float64], budget_R: Ints, attempt_R: Ints
) -> NDArray[np.bool_]:
    """Return bool (F,): True where a token is kept. Several attempts are computed at once, more when fewer tokens are
    left. `attempt_R`: number of the first attempt of each sequence."""
    is_kept_F, attempt_R = np.zeros(len(sequences.ids_F), np.bool_), attempt_R.copy()
    whole_start_R, pending = sequences.start_R, np.flatnonzero((budget_R > 0) & (sequences.length_R > 0))
    while len(pending):
        num_tries = min(max(_TOKENS_AT_ONCE // int(sequences.length_R[pending].sum()), 1), _MOST_TRIES)
        row_T, try_T = np.repeat(pending, num_tries), np.tile(np.arange(num_tries), len(pending))
        length_T = sequences.length_R[row_T]
        start_T = np.cumsum(length_T) - length_T
        place_F = spans(whole_start_R[row_T], length_T)
        tries_F = np.repeat(np.arange(len(row_T)), length_T)
        unit_F = place_F - whole_start_R[row_T][tries_F] if sequences.unit_F is None else sequences.unit_F[place_F]
        number_T = attempt_R[row_T] + try_T
        tried_keys_T = rng.fold(keys_R[row_T], number_T)
        kept_F = rng.uniform(rng.fold(tried_keys_T[tries_F], unit_F), 1)[:, 0]
        kept_F = kept_F <= (keep_R[row_T] * _FADED[np.minimum(number_T, len(_FADED) - 1)])[tries_F]
        is_input_F = kept_F | _starts_span(kept_F, start_T)  # kept tokens, and a sentinel for each hidden span
        fits_T = np.add.reduceat(is_input_F, start_T, dtype=np.int64) <= budget_R[row_T]
        fits_PT = fits_T.reshape(len(pending), num_tries)
        is_done = fits_PT.any(axis=1)
        chosen_T = np.zeros(len(row_T), np.bool_)
        chosen_T[np.flatnonzero(is_done) * num_tries + fits_PT[is_done].argmax(axis=1)] = True
        chosen_F = chosen_T[tries_F]
        is_kept_F[place_F[chosen_F]] = kept_F[chosen_F]
        pending = pending[~is_done]
        attempt_R[pending] += num_tries
    return is_kept_F


def _skipped_attempts(sequences: Ragged, keep_R: NDArray[np.float64], budget_R: Ints) -> Ints:
    """Return the number of attempts to skip, (R,), because they would almost certainly exceed the budget. If m chunks
    are kept on average, the probability of keeping at most b is at most exp(-(m - b)² / 2m) (Chernoff)."""
    chunks_R = sequences.length_R
    if sequences.unit_F is not None:
        chunks_R = np.zeros(len(chunks_R), np.int64)
        is_filled = sequences.length_R > 0
        chunks_R[is_filled] = sequences.unit_F[(sequences.start_R + sequences.length_R)[is_filled] - 1] + 1
    feasible_R = budget_R + _FAR + np.sqrt(_FAR * _FAR + 2 * _FAR * budget_R)
    expected_R = np.maximum(keep_R * chunks_R, 1e-9)
    skipped_R = np.searchsorted(-_FADED, -feasible_R / expected_R)
    return np.where(expected_R > feasible_R, skipped_R, 0)


def _starts_span(is_kept_F: NDArray[np.bool_], start_R: Ints) -> NDArray[np.bool_]:
    """Return bool (F,): True at the first token of each hidden span."""
    is_previous_kept_F = np.empty_like(is_kept_F)
    is_previous_kept_F[1:] = is_kept_F[:-1]
    is_previous_kept_F[start_R] = True
    return is_previous_kept_F & ~is_kept_F


def _count_within(flag_F: NDArray[np.bool_], start_R: Ints, row_F: Ints) -> Ints:
    """Return (F,): the number of True flags in the token's sequence up to the token, including it."""
    counted = np.concatenate([[0], np.cumsum(flag_F)])
    return counted[1:] - counted[start_R][row_F]


def _cut(keys_R: rng.Keys, whole_R: Ints, limit_R: Ints, num_spans_R: Ints, sentinel_places: Ints) -> tuple[Ints, Ints]:
    """Return the start and the length of the part of each target that is used, both (R,). The part of a target that is
    too long begins at a random sentinel. If fewer than `limit_R` tokens follow it, the part begins at the earliest
    sentinel whose rest fits the limit. `sentinel_places`: index of each sentinel within its target, for all sequences
    end to end, without closing sentinels."""
    is_long_R = whole_R > limit_R
    if not is_long_R.any():
        return np.zeros_like(whole_R), whole_R
    first_R = np.cumsum(num_spans_R) - num_spans_R
    choice_R = (rng.uniform(keys_R, 1)[:, 0] * num_spans_R).astype(np.int64)
    # A sequence without a hidden span has only the closing sentinel, which is too long only for a limit of 0.
    padded = np.append(sentinel_places, 0)
    begin_R = np.where(num_spans_R > 0, padded[np.minimum(first_R + choice_R, len(sentinel_places))], 0)
    row = np.repeat(np.arange(len(num_spans_R)), num_spans_R)
    is_early = sentinel_places < (whole_R - limit_R)[row]
    earliest_R = first_R + np.bincount(row[is_early], minlength=len(num_spans_R))
    has_earliest_R = earliest_R < first_R + num_spans_R
    earliest_R = np.where(has_earliest_R, padded[np.minimum(earliest_R, len(sentinel_places))], whole_R - 1)
    begin_R = np.where(whole_R - begin_R >= limit_R, begin_R, earliest_R)
    begin_R = np.where(is_long_R, begin_R, 0)
    return begin_R, np.minimum(whole_R - begin_R, limit_R)
