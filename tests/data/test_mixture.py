"""Laws of the turn-taking of a weighted mixture."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.data.turns import MAX_SLOTS, interleave, slot_counts
from pretrainkit.errors import ConfigError


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_every_prefix_has_its_shares_to_within_one_slot(counts):
    pattern = interleave(counts)
    assert np.bincount(pattern, minlength=len(counts)).tolist() == counts
    prefix = np.arange(1, len(pattern) + 1)
    for component, count in enumerate(counts):
        drawn = np.cumsum(pattern == component)
        assert np.all(np.abs(drawn - prefix * count / len(pattern)) < 1)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [([0.7, 0.3], (7, 3)), ([1, 1], (1, 1)), ([2, 4, 6], (1, 2, 3)), ([0.1], (1,)), ([3.5, 2.25, 1.25], (14, 9, 5))],
)
def test_decimal_weights_are_taken_as_written(weights, counts):
    assert slot_counts(weights) == counts


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_any_weights_are_met_to_within_one_slot_of_the_longest_pattern(weights):
    counts = slot_counts(weights)
    assert sum(counts) <= MAX_SLOTS
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / sum(counts) - weight / sum(weights)) <= 1 / MAX_SLOTS


def test_rows_of_a_batch_are_dealt_out_by_largest_remainder():
    assert slot_counts([0.5, 0.3, 0.2], 8) == (4, 2, 2)
    assert slot_counts([1, 1, 1], 8) == (3, 3, 2)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_are_not_shares_are_refused(weight):
    with pytest.raises(ConfigError, match="weight of component 1"):
        slot_counts([1.0, weight])


def test_a_share_below_one_slot_is_refused():
    with pytest.raises(ConfigError, match="less than one in 8"):
        slot_counts([0.99, 0.01], 8)
