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


def test_uniform_is_in_the_unit_interval_and_flat():
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


@given(key=st.integers(0, 2**64 - 1), value=st.integers(0, 2**63 - 1))
def test_folding_one_key_is_folding_keys(key, value):
    assert rng.fold_one(key, value) == int(rng.fold(key, value))


@given(key=st.integers(0, 2**64 - 1))
def test_a_generator_depends_on_its_key_alone(key):
    first, again, other = rng.generator(key), rng.generator(key), rng.generator((key + 1) % 2**64)
    assert (first.integers(1 << 62, size=8) == again.integers(1 << 62, size=8)).all()
    assert first.integers(1 << 62) != other.integers(1 << 62)


def test_generators_of_neighbouring_keys_draw_independent_numbers():
    drawn = np.array([rng.generator(key).random(4) for key in range(4000)])
    assert abs(drawn.mean(axis=0) - 0.5).max() < 4 * (1 / 12 / 4000) ** 0.5
    correlation = np.corrcoef(np.concatenate([drawn[:-1], drawn[1:]], axis=1).T) - np.eye(8)
    lagged = [(row, row - 4) for row in range(4, 8)]
    assert abs(np.array([correlation[pair] for pair in lagged])).max() < 0.07
    assert abs(correlation[:4, :4]).max() < 0.07
