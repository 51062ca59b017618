"""Span masking: no token is lost, budgets hold, and a batch gives the same results as each sequence alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit import rng
from pretrainkit.recipes.fourm.sequences import Ragged, hide_spans, merge_spans

FIRST = 5
SENTINELS = frozenset(range(4, 204))
EOS = 3


def hide(lengths, keep, budget, limit, seed=0, units=None):
    lengths = np.array(lengths)
    ids = (1000 + np.arange(lengths.sum())).astype(np.int32)
    num = len(lengths)
    return ids, hide_spans(
        Ragged(ids, lengths, units),
        rng.fold(seed, np.arange(num)),
        np.broadcast_to(np.asarray(keep, float), num),
        np.broadcast_to(np.asarray(budget), num),
        np.broadcast_to(np.asarray(limit), num),
        FIRST,
    )


def parts(values, lengths):
    return np.split(values, np.cumsum(lengths)[:-1])


def test_without_inputs_everything_is_a_target():
    _, hidden = hide([3], 0.9, 0, 100)
    assert hidden.input_ids_I.tolist() == []
    assert hidden.target_ids_T.tolist() == [FIRST, 1000, 1001, 1002, FIRST + 1]


def test_keeping_no_token_leaves_one_sentinel():
    _, hidden = hide([3], 0.0, 9, 100)
    assert hidden.input_ids_I.tolist() == [FIRST]
    assert hidden.target_ids_T.tolist() == [FIRST, 1000, 1001, 1002, FIRST + 1]


def test_keeping_all_tokens_makes_the_first_sentinel_the_only_target():
    _, hidden = hide([3], 1.0, 9, 100)
    assert hidden.input_ids_I.tolist() == [1000, 1001, 1002]
    assert hidden.input_from_I.tolist() == [0, 1, 2]
    assert hidden.target_ids_T.tolist() == [FIRST]


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    keep=st.floats(0, 1),
    budget=st.integers(1, 50),
    seed=st.integers(0, 2**32),
)
def test_inputs_and_targets_hold_every_token_and_fit_the_budget(lengths, keep, budget, seed):
    ids, hidden = hide(lengths, keep, budget, 1000, seed)
    assert (hidden.input_length_R <= budget).all()
    given_parts = parts(hidden.input_ids_I, hidden.input_length_R)
    asked_parts = parts(hidden.target_ids_T, hidden.target_length_R)
    for original, inputs, targets in zip(parts(ids, lengths), given_parts, asked_parts, strict=True):
        assert merge_spans(inputs, targets, SENTINELS).tolist() == original.tolist()
        shown = [token for token in inputs.tolist() if token in SENTINELS]
        asked = [token for token in targets.tolist() if token in SENTINELS]
        assert asked == list(range(FIRST, FIRST + len(asked)))
        assert shown == asked[:-1]
        assert targets[-1] in SENTINELS


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    keep=st.floats(0, 1),
    limit=st.integers(0, 30),
    seed=st.integers(0, 2**32),
)
def test_a_target_that_is_too_long_is_cut_to_a_part_that_begins_with_a_sentinel(lengths, keep, limit, seed):
    _, whole = hide(lengths, keep, 60, 1000, seed)
    _, cut = hide(lengths, keep, 60, limit, seed)
    assert (cut.target_length_R <= limit).all()
    assert cut.input_ids_I.tolist() == whole.input_ids_I.tolist()
    for long, short in zip(
        parts(whole.target_ids_T, whole.target_length_R), parts(cut.target_ids_T, cut.target_length_R), strict=True
    ):
        if len(long) <= limit:
            assert short.tolist() == long.tolist()
        elif limit:
            assert short[0] in SENTINELS
            start = long.tolist().index(short[0])
            assert long[start : start + len(short)].tolist() == short.tolist()
            assert len(short) == limit or start + len(short) == len(long)


def test_tokens_of_a_chunk_stay_together():
    units = np.repeat(np.arange(20), 2).astype(np.int32)
    for seed in range(20):
        _, hidden = hide([40], 0.5, 60, 1000, seed, units)
        kept = hidden.input_from_I[hidden.input_from_I >= 0]
        assert (kept.reshape(-1, 2)[:, 0] % 2 == 0).all()
        assert (np.diff(kept.reshape(-1, 2)) == 1).all()


def test_a_sequence_gets_the_same_alone_and_among_others():
    lengths, num = np.array([7, 30, 0, 12]), 4
    keys = rng.fold(3, np.arange(num))
    ids = np.arange(lengths.sum()).astype(np.int32) + 1000
    ragged = Ragged(ids, lengths)
    arguments = (np.full(num, 0.6), np.array([9, 5, 3, 4]), np.array([4, 20, 5, 9]))
    together = hide_spans(ragged, keys, *arguments, FIRST)
    for row in range(num):
        alone = hide_spans(ragged.take(np.array([row])), keys[[row]], *(a[[row]] for a in arguments), FIRST)
        inputs = parts(together.input_ids_I, together.input_length_R)[row]
        targets = parts(together.target_ids_T, together.target_length_R)[row]
        assert alone.input_ids_I.tolist() == inputs.tolist()
        assert alone.target_ids_T.tolist() == targets.tolist()


@pytest.mark.parametrize("budget", [3, 20, 80])
def test_attempts_that_are_skipped_change_nothing_that_can_be_seen(budget):
    """The number of kept tokens has the same distribution as without skipped attempts."""
    num, length = 600, 60
    _, hidden = hide([length] * num, 0.95, budget, 1000)
    kept = np.array([(part >= 0).sum() for part in parts(hidden.input_from_I, hidden.input_length_R)])
    generator, expected = np.random.default_rng(0), []
    for _ in range(num):
        keep = 0.95
        while True:
            is_kept = generator.random(length) <= keep
            runs = (~is_kept & np.concatenate([[True], is_kept[:-1]])).sum()
            if is_kept.sum() + runs <= budget:
                break
            keep *= 0.9
        expected.append(is_kept.sum())
    spread = max(np.std(expected), 0.3)
    assert abs(kept.mean() - np.mean(expected)) < 4.5 * spread * np.sqrt(2 / num)
