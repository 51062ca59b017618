"""Pairs of BERT's own kind: the second segment follows the first, or comes from elsewhere."""

import numpy as np
import pytest

from pretrainkit.recipes.bert.chunks import ChunkIndex
from pretrainkit.recipes.bert.segments import draw_segments
from pretrainkit.rng import fold, stream_key

NUM_CHUNKS, MAX_TOKENS = 12, 9


@pytest.fixture(scope="module")
def index() -> ChunkIndex:
    """Chunks of three sentences of four tokens; every fourth is a single sentence."""
    counts = np.array([1 if number % 4 == 0 else 3 for number in range(NUM_CHUNKS)])
    lengths = 4 * counts
    inner = [4 * np.arange(1, count, dtype=np.uint16) for count in counts]
    return ChunkIndex(
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths.astype(np.int32),
        inner_begins=np.concatenate([[0], np.cumsum([len(ends) for ends in inner])]),
        inner_ends=np.concatenate(inner),
        document_sizes=np.array([NUM_CHUNKS]),
    )


def drawn(index, pair, probability=0.5):
    rows = np.tile(np.arange(len(index)), 2000)
    keys = fold(stream_key(3, "test"), np.arange(len(rows)))
    found = draw_segments(
        index, rows, keys, max_tokens=MAX_TOKENS, sentence_order=True, swap_probability=probability, pair=pair
    )
    return rows, found


def test_half_of_the_pairs_have_another_second_segment_and_single_segments_have_no_second(index):
    rows, found = drawn(index, "next")
    is_pair = index.num_inner[rows] > 0
    assert not found.is_swapped[~is_pair].any()
    assert found.is_swapped[is_pair].mean() == pytest.approx(0.5, abs=0.02)


def test_the_first_segment_and_all_lengths_are_those_of_the_pair_as_written(index):
    _, written = drawn(index, "next", probability=0.0)
    _, found = drawn(index, "next", probability=1.0)
    assert not written.is_swapped.any()
    np.testing.assert_array_equal(found.lengths_B2, written.lengths_B2)
    np.testing.assert_array_equal(found.starts_B2[:, 0], written.starts_B2[:, 0])


def test_random_second_segments_begin_any_other_chunk_equally_often_and_never_their_own(index):
    rows, found = drawn(index, "next")
    length = found.lengths_B2[:, 1]
    last = index.starts[-1] + index.lengths[-1]
    for row in (1, 2, 7):
        own = (rows == row) & found.is_swapped
        start, end = found.starts_B2[own, 1], found.starts_B2[own, 1] + length[own]
        assert (end <= last).all()
        is_cut = end == last  # moved forward to where as many tokens are left
        assert np.isin(start[~is_cut], index.starts).all()
        counts = np.array([(start[~is_cut] == one).sum() for one in index.starts[:-1]])
        assert counts[row] == 0
        others = np.delete(counts, row)
        assert others.min() > 0.6 * own.sum() / (NUM_CHUNKS - 1)


def test_a_corpus_of_one_chunk_has_no_elsewhere(index):
    one = ChunkIndex(
        starts=np.array([0]),
        lengths=np.array([8], np.int32),
        inner_begins=np.array([0, 1]),
        inner_ends=np.array([4], np.uint16),
        document_sizes=np.array([1]),
    )
    _, found = drawn(one, "next", probability=1.0)
    assert not found.is_swapped.any()


def test_swapping_draws_the_same_as_before(index):
    """Adding the other kind has changed no draw of the first."""
    _, order = drawn(index, "order")
    _, following = drawn(index, "next")
    np.testing.assert_array_equal(order.is_swapped, following.is_swapped)
    undone = np.where(order.is_swapped[:, None], order.lengths_B2[:, ::-1], order.lengths_B2)
    np.testing.assert_array_equal(undone, following.lengths_B2)
