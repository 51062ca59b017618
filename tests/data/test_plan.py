"""Laws of the cuts of a global batch."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.data.plan import even_microbatches, pack_rows, rank_rows, token_microbatches
from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError


def rows_of(slices) -> list[int]:
    return [row for s in slices for row in range(s.start, s.stop)]


@given(world_size=st.integers(1, 9), per_rank=st.integers(1, 9))
def test_ranks_share_the_batch_in_order(world_size, per_rank):
    slices = [rank_rows(world_size * per_rank, rank, world_size) for rank in range(world_size)]
    assert rows_of(slices) == list(range(world_size * per_rank))
    assert {s.stop - s.start for s in slices} == {per_rank}


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_a_mistake_of_ours(rank):
    with pytest.raises(ValueError, match=f"rank {rank}"):
        rank_rows(8, rank, 2)


def test_uneven_splits_are_refused():
    with pytest.raises(ConfigError, match="10 examples cannot be split over 4 ranks"):
        rank_rows(10, 0, 4)
    with pytest.raises(ConfigError, match="8 examples of one rank cannot be split into microbatches of 3"):
        even_microbatches(8, 3)


def test_even_microbatches_cover_the_rows():
    assert even_microbatches(6, 2) == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert even_microbatches(6, None) == [slice(0, 6)]


@given(data=st.data(), world_size=st.sampled_from([1, 2, 3, 4]), capacity=st.integers(10, 60))
def test_token_microbatches_keep_order_and_capacity_and_agree_over_ranks(data, world_size, capacity):
    num_rows = world_size * data.draw(st.integers(1, 12))
    lengths = np.array(data.draw(st.lists(st.integers(0, 10), min_size=num_rows, max_size=num_rows)))
    by_rank = token_microbatches(lengths, world_size, capacity)
    assert len({len(slices) for slices in by_rank}) == 1
    assert rows_of(s for slices in by_rank for s in slices) == list(range(num_rows))
    for rank, slices in enumerate(by_rank):
        own = rank_rows(num_rows, rank, world_size)
        assert rows_of(slices) == list(range(own.start, own.stop))
        assert all(own.start <= s.start <= s.stop <= own.stop for s in slices)  # also those without a row
        assert all(lengths[s].sum() <= capacity for s in slices)
        full = [s for s in slices if s.stop > s.start]
        for now, following in pairwise(full):  # greedy: the next example would not have fitted
            assert lengths[now].sum() + lengths[following.start] > capacity
    fewest_needed = max(sum(s.stop > s.start for s in slices) for slices in by_rank)
    assert len(by_rank[0]) == fewest_needed


def test_an_example_longer_than_a_microbatch_is_named():
    lengths = np.array([3, 10, 12, 3])
    ids = np.arange(4)
    with pytest.raises(DataError, match="row 2 of the batch has 12 tokens, which exceeds the microbatch size of 10"):
        token_microbatches(lengths, 2, 10)
    with pytest.raises(DataError, match="example 102 of component 2 has 12 tokens"):
        token_microbatches(lengths, 2, 10, Records(ids, ids, ids + 100, ids.astype(np.uint64)))


def check_packing(lengths: np.ndarray, row_length: int, window: int) -> float:
    """Check that every example is within one row and none overlap. Return the share of slots that are used."""
    packing = pack_rows(lengths, row_length, window)
    used = np.zeros((packing.num_rows, row_length), int)
    for row, offset, length in zip(packing.row, packing.offset, lengths, strict=True):
        assert 0 <= offset <= row_length - length
        used[row, offset : offset + length] += 1
    assert used.max(initial=1) == 1
    assert used.sum() == sum(lengths)
    assert used.any(axis=1).all()
    return float(used.mean()) if used.size else 1.0


@given(
    lengths=st.lists(st.integers(1, 40), max_size=80),
    row_length=st.integers(40, 70),
    window=st.sampled_from([1, 7, 100]),
)
def test_packing_keeps_every_example_once_without_overlap(lengths, row_length, window):
    check_packing(np.array(lengths, np.int64), row_length, window)


@given(lengths=st.lists(st.integers(1, 40), min_size=8, max_size=60))
def test_packing_of_a_window_does_not_depend_on_later_examples(lengths):
    whole, first = pack_rows(lengths, 50, window=8), pack_rows(lengths[:8], 50, window=8)
    assert np.array_equal(whole.row[:8], first.row)
    assert np.array_equal(whole.offset[:8], first.offset)


def test_windows_have_4096_examples_by_default():
    assert pack_rows(np.ones(4096, int), 5000).num_rows == 1
    assert pack_rows(np.ones(4097, int), 5000).num_rows == 2


def first_fit_rows(lengths, row_length: int) -> int:
    rooms: list[int] = []
    for length in lengths:
        row = next((i for i, room in enumerate(rooms) if room >= length), None)
        if row is None:
            rooms.append(row_length - length)
        else:
            rooms[row] -= length
    return len(rooms)


@pytest.mark.parametrize("seed", range(5))
def test_packing_fills_rows_at_least_as_well_as_first_fit(seed):
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(4.5, 0.9, 1500), 1, 512).astype(np.int64)
    assert pack_rows(lengths, 512, window=1500).num_rows <= first_fit_rows(lengths.tolist(), 512)
    assert check_packing(lengths, 512, 1500) > 0.98


def test_packing_a_known_case_by_hand():
    """Longest first: 7 opens row 0 and 6 row 1; 4 fits best beside 6, 3 beside 7; 2 opens row 2."""
    packing = pack_rows([2, 3, 4, 6, 7], 10)
    assert packing.row.tolist() == [2, 0, 1, 1, 0]
    assert packing.offset.tolist() == [0, 7, 6, 0, 0]
    assert packing.num_rows == 3


@pytest.mark.parametrize("length", [0, 11])
def test_examples_that_cannot_be_packed_are_named(length):
    with pytest.raises(DataError, match=f"example 1 has {length} tokens and cannot be packed into rows of 10"):
        pack_rows([3, length], 10)
