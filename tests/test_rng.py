"""Laws of the keyed randomness: pure, independent of the batch, and statistically unremarkable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pretrainkit import rng

KEYS = rng.fold(rng.stream_key(0, "test"), np.arange(4000))


def splitmix64(state: int, num: int) -> list[int]:
    """SplitMix64 as published, in Python integers."""
    drawn = []
    for _ in range(num):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        drawn.append(z ^ (z >> 31))
    return drawn


@settings(deadline=None)
@given(key=st.integers(0, 2**64 - 1), num=st.integers(0, 40))
def test_bits_are_splitmix64_started_at_the_key(key, num):
    assert rng.bits(np.array([key], np.uint64), num)[0].tolist() == splitmix64(key, num)


@settings(deadline=None)
@given(rows=st.lists(st.integers(0, 3999), max_size=30), num=st.integers(1, 300))
def test_a_draw_depends_on_its_own_key_only(rows, num):
    keys = KEYS[np.array(rows, np.int64)]
    drawn = rng.uniform(keys, num)
    for row, key in enumerate(keys):
        assert np.array_equal(drawn[row], rng.uniform(key[None], num + 5)[0, :num])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (70, 300)])
def test_keys_of_any_shape_give_the_same_draws(shape):
    keys = rng.fold(7, np.arange(int(np.prod(shape))).reshape(shape))
    drawn = rng.bits(keys, 5)
    assert drawn.shape == (*shape, 5)
    assert np.array_equal(drawn.reshape(-1, 5), rng.bits(keys.reshape(-1), 5))


def test_inputs_are_left_alone():
    keys = KEYS.copy()
    for draw in (rng.mix, lambda k: rng.bits(k, 3), lambda k: rng.uniform(k, 3), lambda k: rng.fold(k, 1)):
        draw(keys)
        assert np.array_equal(keys, KEYS)


def test_uniform_lies_in_the_unit_interval_and_is_flat():
    drawn = rng.uniform(KEYS, 128)
    assert drawn.dtype == np.float64
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel()[:200_000], "uniform").pvalue > 1e-3
    assert stats.kstest(drawn[:, 0], "uniform").pvalue > 1e-3
    assert np.array_equal(drawn, (rng.bits(KEYS, 128) >> np.uint64(11)) / 2**53)


def test_neighbouring_keys_and_draws_are_uncorrelated():
    drawn = rng.uniform(KEYS, 64) - 0.5
    bound = 5 / np.sqrt(drawn.size)
    assert abs(np.mean(drawn[1:] * drawn[:-1])) * 12 < bound
    assert abs(np.mean(drawn[:, 1:] * drawn[:, :-1])) * 12 < bound


def test_every_bit_of_a_draw_is_fair():
    drawn = rng.bits(KEYS, 16).ravel()
    for bit in range(64):
        ones = int(((drawn >> np.uint64(bit)) & np.uint64(1)).sum())
        assert stats.binomtest(ones, drawn.size).pvalue > 1e-5


def test_streams_differ_by_seed_name_and_type():
    keys = {
        rng.stream_key(*parts) for parts in [(0, "a"), (1, "a"), (0, "b"), (0, "a", "b"), (0, "ab"), (0, 1), (0, "1")]
    }
    assert len(keys) == 7
    assert rng.stream_key(0, "a") == rng.stream_key(0, "a")
