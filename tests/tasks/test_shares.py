"""Shares of a mixture: of examples, of tokens, and passes over the data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.tasks.rates import epochs, mean_lengths, shares, spread, table


def test_shares_of_tokens_follow_from_rates_and_lengths():
    rows = shares(["a", "b", "never"], [3, 1, 0], [100, 10, 50], [(10.0, 2.0), (90.0, 2.0), (5.0, 5.0)])
    assert [row["share"] for row in rows] == [0.75, 0.25, 0.0]
    assert [row["share_of_input_tokens"] for row in rows] == pytest.approx([0.25, 0.75, 0.0])
    assert [row["share_of_target_tokens"] for row in rows] == pytest.approx([0.75, 0.25, 0.0])
    assert [epochs(row, 400) for row in rows] == [3.0, 10.0, 0.0]


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 50), st.floats(0.1, 50)), min_size=1, max_size=5))
def test_shares_add_up_to_one(components):
    names = [str(number) for number in range(len(components))]
    rows = shares(names, [c[0] for c in components], [1] * len(names), [(c[1], c[2]) for c in components])
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["share_of_target_tokens"] for row in rows) == pytest.approx(1)


@given(st.integers(0, 300), st.integers(1, 80))
def test_measured_examples_are_spread_over_all(size, num):
    found = spread(size, num)
    assert len(found) == len(set(found)) == min(size, num)
    assert not found or (found[0] == 0 and (num == 1 or found[-1] == size - 1))


def test_mean_lengths_are_those_of_the_examples():
    examples = [{"inputs": [1] * length, "targets": [1]} for length in range(10)]
    assert mean_lengths(examples, ("inputs", "targets", "other")) == {"inputs": 4.5, "targets": 1.0, "other": 0.0}
    assert mean_lengths([], ("inputs",)) == {"inputs": 0.0}


def test_the_table_has_a_line_for_each_component_and_epochs_where_a_length_is_known():
    rows = shares(["a", "longer name"], [1, 3], [10, 10], [(1.0, 2.0), (1.0, 2.0)])
    short, long = list(table(rows)), list(table(rows, 40))
    assert len(short) == len(long) == 3
    assert "epochs" not in short[0]
    assert list(table(rows, 60_000))[2].split()[5] == "4,500"
    assert long[2].split() == ["longer", "name", "3", "75.00%", "10", "3", "1.0", "2.0", "75.00%", "75.00%"]
