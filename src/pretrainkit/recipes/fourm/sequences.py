"""Runs of tokens hidden behind sentinels, for many sequences at once, and their inverse.

Dimensions: R sequences; F, I, T tokens of all sequences end to end: as they are, given to the encoder, asked of the
decoder.

Each token (or chunk of tokens that belong together) is kept or hidden by itself. Each run of hidden ones leaves a
sentinel among the inputs; the target names that sentinel and then the run, and ends with one more sentinel:
keep only the first of "a cat sits [EOS]" and the input is "a [S_1]", the target "[S_1] cat sits [EOS] [S_2]".
Source: released code of 4M (https://arxiv.org/abs/2312.06647), after T5's span corruption.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng

Ids = NDArray[np.int32]
Ints = NDArray[np.int64]

_FADE = 0.9
"""What the probability to keep is multiplied with where too much is kept."""
_FADED = _FADE ** np.arange(1000.0)
"""By the number of the attempt."""
_FAR = 14.0
"""Attempts that succeed with a chance of less than exp(-14) are not made."""
_TOKENS_AT_ONCE, _MOST_TRIES = 10_000, 16
_KEPT, _CUT = range(2)


@dataclass(frozen=True)
class Ragged:
    """Sequences end to end."""

    ids_F: Ids
    length_R: Ints
    unit_F: Ids | None = None
    """Number of the chunk that each token belongs to, ascending from 0 in each sequence; None: each is a chunk."""

    @property
    def start_R(self) -> Ints:
        """The place where each begins."""
        return np.cumsum(self.length_R) - self.length_R

    def take(self, rows: NDArray[np.integer]) -> "Ragged":
        """The sequences of `rows`."""
        places = spans(self.start_R[rows], self.length_R[rows])
        units = None if self.unit_F is None else self.unit_F[places]
        return Ragged(self.ids_F[places], self.length_R[rows], units)


@dataclass(frozen=True)
class Hidden:
    """Sequences divided by span masking."""

    input_ids_I: Ids
    input_from_I: Ids
    """Place of each input token within its own sequence; -1 for a sentinel."""
    input_length_R: Ints
    target_ids_T: Ids
    """With the first token, which is only fed to the decoder."""
    target_length_R: Ints


def spans(start_R: Ints, length_R: Ints) -> Ints:
    """Return start … start + length - 1 of each row, end to end."""
    ends_R = np.cumsum(length_R)
    total = int(ends_R[-1]) if len(ends_R) else 0
    # Within a row counting goes on by itself; the jump to each row's start is added.
    return np.arange(total) + np.repeat(start_R - (ends_R - length_R), length_R)


def hide_spans(
    sequences: Ragged,
    keys_R: rng.Keys,
    keep_R: NDArray[np.float64],
    budget_R: Ints,
    limit_R: Ints,
    first_sentinel: int,
) -> Hidden:
    """Divides sequences between inputs and targets.

    Args:
        sequences: What there is.
        keys_R: Of all that is random about a sequence.
        keep_R: Probability of each chunk to be kept; lowered until the inputs fit `budget_R`.
        budget_R: At most so many input tokens; 0: none at all, not even a sentinel, and all is asked for.
        limit_R: At most so many target tokens. A longer target is cut to a part that begins with a sentinel.
        first_sentinel: Id of the sentinel of the first run; the others follow it.
    """
    start_R, length_R = sequences.start_R, sequences.length_R
    row_F = np.repeat(np.arange(len(length_R)), length_R)
    is_kept_F = _keep(sequences, rng.fold(keys_R, _KEPT), np.where(budget_R > 0, keep_R, 0.0), budget_R)
    opens_F = _opens_run(is_kept_F, start_R[length_R > 0])
    run_F = _count_within(opens_F, start_R, row_F)
    sentinel_F = (first_sentinel - 1 + run_F).astype(np.int32)

    given_F = (is_kept_F | opens_F) & (budget_R[row_F] > 0)
    input_ids_I = np.where(is_kept_F, sequences.ids_F, sentinel_F)[given_F]
    place_F = np.arange(len(row_F)) - start_R[row_F]
    input_from_I = np.where(is_kept_F, place_F, -1)[given_F].astype(np.int32)
    input_length_R = np.bincount(row_F[given_F], minlength=len(length_R))

    num_runs_R = np.bincount(row_F[opens_F], minlength=len(length_R))
    num_hidden_R = np.bincount(row_F[~is_kept_F], minlength=len(length_R))
    whole_R = num_hidden_R + num_runs_R + 1
    begin_R = np.cumsum(whole_R) - whole_R
    whole_T = np.empty(int(whole_R.sum()), np.int32)
    hidden_before_F = _count_within(~is_kept_F, start_R, row_F) - ~is_kept_F
    place_F = begin_R[row_F] + hidden_before_F + run_F
    whole_T[place_F[~is_kept_F]] = sequences.ids_F[~is_kept_F]
    sentinel_places = place_F[opens_F] - 1
    whole_T[sentinel_places] = sentinel_F[opens_F]
    whole_T[begin_R + whole_R - 1] = first_sentinel + num_runs_R
    cut_R, target_length_R = _cut(
        rng.fold(keys_R, _CUT), whole_R, limit_R, num_runs_R, sentinel_places - begin_R[row_F[opens_F]]
    )
    return Hidden(
        input_ids_I=input_ids_I,
        input_from_I=input_from_I,
        input_length_R=input_length_R,
        target_ids_T=whole_T[spans(begin_R + cut_R, target_length_R)],
        target_length_R=target_length_R,
    )


def merge_spans(input_ids: Ids, target_ids: Ids, sentinels: frozenset[int]) -> Ids:
    """Return the sequence that `hide_spans` divided: each sentinel of the input replaced by what the target has behind
    it. Sentinels that the target lacks vanish."""
    behind: dict[int, list[int]] = {}
    run: list[int] = []
    for token in target_ids.tolist():
        if token in sentinels:
            run = behind[token] = []
        else:
            run.append(token)
    merged: list[int] = []
    for token in input_ids.tolist():
        merged += behind.get(token, []) if token in sentinels else [token]
    return np.array(merged, np.int32)


def _keep(sequences: Ragged, keys_R: rng.Keys, keep_R: NDArray[np.float64], budget_R: Ints) -> NDArray[np.bool_]:
    """Return (F,) True where a token is kept; the inputs of every sequence fit its budget. The first attempt that fits
    counts. A compiled helper (`_keep.c`) makes the same, where there is one."""
    attempt_R = _hopeless_attempts(sequences, keep_R, budget_R)
    try:
        import pretrainkit.recipes.fourm._keep as compiled
    except ImportError:
        return kept_by_numpy(sequences, keys_R, keep_R, budget_R, attempt_R)
    is_kept_F = np.zeros(len(sequences.ids_F), np.bool_)
    units_F = np.empty(0, np.int32) if sequences.unit_F is None else sequences.unit_F
    arrays = (
        *((keys_R, np.uint64), (keep_R, np.float64), (budget_R, np.int64), (attempt_R, np.int64)),
        *((sequences.length_R, np.int64), (_FADED, np.float64), (units_F, np.int32)),
    )
    compiled.keep(*(np.ascontiguousarray(values, dtype) for values, dtype in arrays), is_kept_F)
    return is_kept_F


def kept_by_numpy(
    sequences: Ragged, keys_R: rng.Keys, keep_R: NDArray[np.float64], budget_R: Ints, attempt_R: Ints
) -> NDArray[np.bool_]:
    """Several attempts are made at once, the more the fewer tokens are left; `attempt_R` is the number of the first."""
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
        given_F = kept_F | _opens_run(kept_F, start_T)  # tokens, and a sentinel for each run of hidden ones
        fits_T = np.add.reduceat(given_F, start_T, dtype=np.int64) <= budget_R[row_T]
        fits_PT = fits_T.reshape(len(pending), num_tries)
        is_done = fits_PT.any(axis=1)
        chosen_T = np.zeros(len(row_T), np.bool_)
        chosen_T[np.flatnonzero(is_done) * num_tries + fits_PT[is_done].argmax(axis=1)] = True
        chosen_F = chosen_T[tries_F]
        is_kept_F[place_F[chosen_F]] = kept_F[chosen_F]
        pending = pending[~is_done]
        attempt_R[pending] += num_tries
    return is_kept_F


def _hopeless_attempts(sequences: Ragged, keep_R: NDArray[np.float64], budget_R: Ints) -> Ints:
    """Return (R,) how many attempts are left out because fitting would be a wonder. With an expectation of m chunks
    kept, b or fewer are with a chance of at most exp(-(m - b)² / 2m) (Chernoff)."""
    chunks_R = sequences.length_R
    if sequences.unit_F is not None:
        chunks_R = np.zeros(len(chunks_R), np.int64)
        has = sequences.length_R > 0
        chunks_R[has] = sequences.unit_F[(sequences.start_R + sequences.length_R)[has] - 1] + 1
    hopeful_R = budget_R + _FAR + np.sqrt(_FAR * _FAR + 2 * _FAR * budget_R)
    expected_R = np.maximum(keep_R * chunks_R, 1e-9)
    skipped_R = np.searchsorted(-_FADED, -hopeful_R / expected_R)
    return np.where(expected_R > hopeful_R, skipped_R, 0)


def _opens_run(is_kept_F: NDArray[np.bool_], start_R: Ints) -> NDArray[np.bool_]:
    """(F,) True at the first token of each run of hidden ones."""
    before_F = np.empty_like(is_kept_F)
    before_F[1:] = is_kept_F[:-1]
    before_F[start_R] = True
    return before_F & ~is_kept_F


def _count_within(flag_F: NDArray[np.bool_], start_R: Ints, row_F: Ints) -> Ints:
    """(F,) how many are True from the beginning of the token's sequence up to and with itself."""
    counted = np.concatenate([[0], np.cumsum(flag_F)])
    return counted[1:] - counted[start_R][row_F]


def _cut(keys_R: rng.Keys, whole_R: Ints, limit_R: Ints, num_runs_R: Ints, sentinel_places: Ints) -> tuple[Ints, Ints]:
    """Return where the part of a target begins that is asked for, and its length. A target that is too long begins at a
    random sentinel; where fewer tokens follow than could be asked for, at the earliest one from which all the rest can
    be. `sentinel_places`: of all sequences end to end, without the closing ones, each within its own target."""
    is_long_R = whole_R > limit_R
    if not is_long_R.any():
        return np.zeros_like(whole_R), whole_R
    first_R = np.cumsum(num_runs_R) - num_runs_R
    choice_R = (rng.uniform(keys_R, 1)[:, 0] * num_runs_R).astype(np.int64)
    # Sequences without a run have the closing sentinel alone, which is never too long but for a limit of 0.
    padded = np.append(sentinel_places, 0)
    begin_R = np.where(num_runs_R > 0, padded[np.minimum(first_R + choice_R, len(sentinel_places))], 0)
    row = np.repeat(np.arange(len(num_runs_R)), num_runs_R)
    is_early = sentinel_places < (whole_R - limit_R)[row]
    earliest_R = first_R + np.bincount(row[is_early], minlength=len(num_runs_R))
    has_earliest_R = earliest_R < first_R + num_runs_R
    earliest_R = np.where(has_earliest_R, padded[np.minimum(earliest_R, len(sentinel_places))], whole_R - 1)
    begin_R = np.where(whole_R - begin_R >= limit_R, begin_R, earliest_R)
    begin_R = np.where(is_long_R, begin_R, 0)
    return begin_R, np.minimum(whole_R - begin_R, limit_R)
