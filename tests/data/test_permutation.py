"""Laws of the permutation: a bijection for every size and key, and no visible bias."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from pretrainkit import rng
from pretrainkit.data import permutation
from pretrainkit.data.permutation import permute

KEYS = rng.fold(rng.stream_key(3, "permutation test"), np.arange(20_000))


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
@example(size=1, key=0)
@example(size=1024, key=1)
@example(size=1025, key=1)
def test_it_is_a_bijection(size, key):
    out = permute(np.arange(size), size, np.array([key], np.uint64))
    assert np.array_equal(np.sort(out), np.arange(size))


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 123_457])
def test_it_is_a_bijection_of_larger_domains(size):
    out = permute(np.arange(size), size, KEYS[:1])
    assert np.array_equal(np.bincount(out, minlength=size), np.ones(size))


@pytest.mark.parametrize("size", [10**9 + 7, 2**40 + 1, permutation.MAX_SIZE])
def test_huge_domains_stay_within_bounds_without_collisions(size):
    index = np.linspace(0, size - 1, 50_000).astype(np.int64).clip(0, size - 1)
    out = permute(index, size, KEYS[:1])
    assert out.min() >= 0
    assert out.max() < size
    assert len(np.unique(out)) == len(np.unique(index))
    assert stats.kstest(out / size, "uniform").pvalue > 1e-3


@given(size=st.sampled_from([2, 10, 1000, 1500, 40_000]), data=st.data())
def test_an_index_does_not_depend_on_the_other_requests(size, data):
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50)))
    keys = KEYS[np.array(data.draw(st.lists(st.integers(0, 5), min_size=len(index), max_size=len(index))))]
    together = permute(index, size, keys)
    assert together.tolist() == [int(permute(i[None], size, k[None])[0]) for i, k in zip(index, keys, strict=True)]


@pytest.mark.parametrize("size", [2, 3, 10])
def test_small_domains_reach_every_place_evenly(size):
    for index in range(size):
        places = permute(np.full(len(KEYS), index), size, KEYS)
        assert stats.chisquare(np.bincount(places, minlength=size)).pvalue > 1e-4


def test_all_permutations_of_three_are_equally_likely():
    seen = np.zeros(27, int)
    columns = [permute(np.full(len(KEYS), i), 3, KEYS) for i in range(3)]
    np.add.at(seen, columns[0] * 9 + columns[1] * 3 + columns[2], 1)
    assert np.count_nonzero(seen) == 6
    assert stats.chisquare(seen[seen > 0]).pvalue > 1e-4


@pytest.mark.parametrize("size", [1000, 1500, 5000])
def test_places_differences_and_sums_are_even(size):
    keys = KEYS if size > 1024 else KEYS[:5000]
    first, second, far = (permute(np.full(len(keys), i), size, keys) for i in (5, 6, size // 2))
    bins = 50  # divides all sizes
    for values in (first, second, far, (second - first) % size, (far - first) % size, (first + second) % size):
        assert stats.chisquare(np.bincount(values * bins // size, minlength=bins)).pvalue > 1e-4
    low_bits = np.bincount(first % 4 * 4 + second % 4, minlength=16)
    assert stats.chisquare(low_bits).pvalue > 1e-4


def test_order_within_one_permutation_looks_random():
    """Serial correlation and number of ascents of one long permutation, as of a random one."""
    size = 100_000
    out = permute(np.arange(size), size, KEYS[:1])
    scaled = out / size - 0.5
    for lag in (1, 2, 100, 316, 317):  # 317 is the number of high digits
        assert abs(np.mean(scaled[lag:] * scaled[:-lag])) * 12 < 5 / np.sqrt(size)
    ascents = np.count_nonzero(np.diff(out) > 0)
    assert abs(ascents - (size - 1) / 2) < 5 * np.sqrt(size / 12)
    fixed_points = np.count_nonzero(out == np.arange(size))
    assert fixed_points < 10


@pytest.mark.parametrize("size", [700_000_000, 10**9])
def test_a_prefix_of_a_huge_epoch_is_spread_over_all_of_it(size):
    """torch's random sampler is sequentially biased at these sizes, which has cost others whole runs."""
    prefix = np.arange(200_000)
    epochs = [permute(prefix, size, KEYS[i : i + 1]) / size for i in range(2)]
    for scaled in epochs:
        for part in np.split(scaled, 4):
            counts = np.histogram(part, 500, (0, 1))[0]
            assert stats.chisquare(counts).pvalue > 1e-4
        assert abs(np.corrcoef(prefix, scaled)[0, 1]) < 5 / np.sqrt(len(prefix))
    assert abs(np.corrcoef(*epochs)[0, 1]) < 5 / np.sqrt(len(prefix))


@pytest.mark.parametrize(
    ("size", "places"),
    [
        (1024, [975, 120, 850, 934, 730, 335]),
        (1025, [230, 905, 852, 809, 340, 359]),
        (2500, [1137, 2420, 2054, 2196, 2386, 2339]),
        (2501, [47, 846, 157, 1994, 2484, 428]),
    ],
    ids=["largest table", "smallest network", "square", "square and one"],
)
def test_the_order_of_a_size_and_a_key_never_changes(size, places):
    """Runs that resume rely on it. The bases of the digits change after a square."""
    assert permute(np.arange(6), size, KEYS[:1]).tolist() == places


@pytest.mark.parametrize("size", [0, -1, permutation.MAX_SIZE + 1])
def test_impossible_domains_are_refused(size):
    with pytest.raises(ValueError, match="cannot permute a domain"):
        permute(np.zeros(1, np.int64), size, KEYS[:1])
