import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pretrainkit.report.axis import Axis, log_labels, log_ticks, smooth, thin, tick_labels, ticks, widened

sizes = st.floats(-1e12, 1e12, allow_nan=False)


@given(a=sizes, b=sizes, target=st.integers(2, 12), whole=st.booleans())
def test_ticks_are_round_evenly_spaced_and_within(a, b, target, whole):
    low, high = widened(min(a, b), max(a, b))
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


@given(st.floats(-290, 250), st.floats(0.01, 40), st.integers(2, 9))
def test_log_ticks_lie_within_and_grow(exponent, decades, target):
    low, high = 10.0**exponent, 10.0 ** (exponent + decades)
    found = log_ticks(low, high, target)
    assert len(found) >= 1
    assert all(low * 0.999 <= t <= high * 1.001 for t in found)
    assert found == sorted(set(found))
    assert len(set(log_labels(found))) == len(found)


@given(a=sizes, b=sizes)
def test_labels_of_ticks_tell_them_apart(a, b):
    found = ticks(*widened(min(a, b), max(a, b)))
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


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_any_single_value_gets_an_axis_with_room(value):
    low, high = widened(value, value)
    axis = Axis(low, high, 0.0, 100.0)
    assert low < high
    assert 0 <= axis.pixel(min(max(value, -1e300), 1e300)) <= 100


values = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf])


@given(ys=st.lists(values, max_size=300), num_buckets=st.integers(1, 20))
def test_thinning_keeps_ends_extremes_order_and_gaps(ys, num_buckets):
    xs, ys = np.arange(len(ys), dtype=np.float64), np.array(ys, np.float64)
    kept_xs, kept_ys = thin(xs, ys, num_buckets)
    assert (np.diff(kept_xs) > 0).all()
    is_real = np.isfinite(ys)
    num_gaps = int((~is_real & np.append(True, is_real[:-1])).sum()) if len(ys) else 0
    assert len(kept_xs) <= 4 * (num_buckets + num_gaps) + num_gaps
    kept = np.isfinite(kept_ys)
    assert np.array_equal(kept_ys[kept], ys[kept_xs[kept].astype(int)])
    if is_real.any():
        assert kept_ys[kept].min() == ys[is_real].min()
        assert kept_ys[kept].max() == ys[is_real].max()
        assert kept_ys[kept][0] == ys[is_real][0]
        assert kept_ys[kept][-1] == ys[is_real][-1]
    drawn_together = set(zip(kept_xs[:-1][kept[:-1] & kept[1:]], kept_xs[1:][kept[:-1] & kept[1:]], strict=True))
    assert all(is_real[int(a) : int(b) + 1].all() for a, b in drawn_together)


def test_thinning_keeps_a_single_spike_of_a_million_points():
    ys = np.zeros(1_000_000)
    ys[123_456] = 7.0
    xs, kept = thin(np.arange(len(ys), dtype=np.float64), ys, 200)
    assert len(xs) <= 800
    assert kept.max() == 7.0


@given(ys=arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e3, 1e3)), num_points=st.integers(1, 50))
def test_smoothing_stays_near_the_values_and_keeps_gaps(ys, num_points):
    ys[::7] = math.nan
    smoothed = smooth(np.arange(len(ys), dtype=np.float64), ys, num_points)
    assert np.array_equal(np.isnan(smoothed), np.isnan(ys))
    if len(ys) > 1:
        assert np.nanmax(np.abs(smoothed)) <= 3 * np.nanmax(np.abs(ys)) + 1e-6


@given(slope=st.floats(-10, 10), offset=st.floats(-100, 100), num_points=st.integers(2, 60))
def test_smoothing_a_straight_line_changes_nothing(slope, offset, num_points):
    xs = np.arange(10.0, 2010.0, 10.0)
    assert np.allclose(smooth(xs, offset + slope * xs, num_points), offset + slope * xs, atol=1e-6)
