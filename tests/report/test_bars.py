import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.report.bars import histogram, share_bars, tick_labels, ticks


def bars_of(svg):
    root = ElementTree.fromstring(svg)
    return [node for node in root.iter() if node.tag.endswith("}rect") and node.get("class", "").startswith("f")]


@given(counts=st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_a_bar_is_as_high_as_its_share_and_inside_the_chart(counts):
    svg = histogram(list(range(len(counts) + 1)), counts, title="<T>", x_label="words")
    bars = bars_of(svg)
    if not any(counts):
        assert "no data" in svg
        return
    heights = [float(bar.get("height")) for bar in bars]
    assert len(heights) == len(counts)
    for count, height in zip(counts, heights):
        assert abs(height - max(heights) * count / max(counts)) <= 0.1
    assert all(float(bar.get("y")) >= 50 for bar in bars)


def test_a_histogram_describes_each_bin():
    svg = histogram([0, 1, 2, 5], [3, 0, 1], title="T", x_label="words")
    assert "0 words: 3 documents, 75" in svg
    assert "2 to 5 words: 1 documents, 25" in svg
    with pytest.raises(ValueError, match="3 edges for 3 bins"):
        histogram([0, 1, 2], [1, 2, 3], title="T", x_label="words")
    assert "no data" in histogram([], [], title="T", x_label="words")


@given(counts=st.dictionaries(st.text(max_size=40), st.integers(0, 10**9), max_size=30))
def test_shares_of_all_kinds_are_drawn_or_added_up(counts):
    svg = share_bars(counts, title="T", most=5)
    assert len(bars_of(svg)) == (min(len(counts), 6) if sum(counts.values()) else 0)
    if len(counts) > 5 and sum(counts.values()):
        assert f"{len(counts) - 5} others" in svg


sizes = st.floats(-1e12, 1e12, allow_nan=False)


def ordered(a, b):
    """Ends of an axis, far enough apart for distinct ticks."""
    low, high = min(a, b), max(a, b)
    return low, max(high, low + 1e-6 * max(1, abs(low)))


@given(a=sizes, b=sizes, target=st.integers(2, 12), whole=st.booleans())
def test_ticks_are_round_evenly_spaced_and_within(a, b, target, whole):
    low, high = ordered(a, b)
    found = ticks(low, high, target, whole=whole)
    assert len(found) <= 2 * target + 1
    slack = 1e-6 * (high - low)
    assert all(low - slack <= t <= high + slack for t in found)
    if not whole or high - low > 2 * target:
        assert len(found) >= max(1, target // 2)
    if len(found) > 1:
        step = found[1] - found[0]
        mantissa = step / 10 ** math.floor(math.log10(step) + 1e-6)
        assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5)) < 1e-3
        assert np.allclose(np.diff(found), step, rtol=1e-6, atol=slack)
    if whole:
        assert all(t == int(t) for t in found)


@given(a=sizes, b=sizes)
def test_labels_of_ticks_are_distinct(a, b):
    found = ticks(*ordered(a, b))
    assert len(set(tick_labels(found))) == len(found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], ["0.0", "0.5", "1.0"]),
        ([0.0, 500.0, 1000.0], ["0", "500", "1,000"]),
        ([0.0, 5000.0, 10000.0], ["0", "5k", "10k"]),
        ([0.0, 2.5e6, 5e6], ["0", "2.5M", "5M"]),
        ([0.0, 5e-5, 1e-4], ["0", "5e-5", "1e-4"]),
        ([4.0, 6.0, 8.0], ["4", "6", "8"]),
        ([], []),
    ],
)
def test_tick_labels(values, expected):
    assert tick_labels(values) == expected
