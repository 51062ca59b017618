from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.report.bars import histogram, share_bars, ticks
from pretrainkit.report.numbers import short


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


@given(high=st.floats(1.06, 1e13))
def test_ticks_are_few_round_numbers_with_distinct_labels(high):
    shown = ticks(high)
    assert shown[0] == 0
    assert shown[-1] <= high < shown[-1] + shown.step
    assert len(shown) <= 7
    assert len(shown) >= 3 or (shown.step == 1 and high < 2)
    assert str(shown.step).rstrip("0") in ("1", "2", "5")
    assert len({short(value) for value in shown}) == len(shown)


@pytest.mark.parametrize(("high", "labels"), [(1.06, "0 1"), (24, "0 5 10 15 20"), (10_600, "0 2k 4k 6k 8k 10k")])
def test_labels_of_ticks(high, labels):
    assert [short(value) for value in ticks(high)] == labels.split()
