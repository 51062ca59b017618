"""Laws of the order: every epoch visits everything once, and positions alone decide."""

import json
import runpy
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.data.order import Order
from pretrainkit.errors import ConfigError, DataError

GOLDEN = Path(__file__).parents[1] / "golden" / "order.json"
records_of = runpy.run_path(str(GOLDEN.with_suffix(".py")))["records_of"]
MODES = ["shuffle", "lanes", "sequential"]


def random_documents(size: int, seed: int = 0) -> np.ndarray:
    """Document sizes (some of them 0) that add up to `size`."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, size + 1, max(1, size // 6)))
    return np.diff(np.concatenate([[0], cuts, [size]]))


def make(sizes, mode="shuffle", weights=None, batch_size=4, seed=0) -> Order:
    documents = [random_documents(size, c) for c, size in enumerate(sizes)]
    return Order(sizes, seed=seed, mode=mode, weights=weights, batch_size=batch_size, document_sizes=documents)


def pairs(order: Order, start: int, stop: int) -> list[tuple[int, int]]:
    records = order.records(np.arange(start, stop))
    return list(zip(records.source.tolist(), records.index.tolist(), strict=True))


@given(
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    mode=st.sampled_from(MODES),
    batch_size=st.integers(1, 12),
    epoch=st.integers(0, 3),
)
def test_an_epoch_visits_every_record_once(sizes, mode, batch_size, epoch):
    order = make(sizes, mode, batch_size=batch_size)
    everything = [(c, i) for c, size in enumerate(sizes) for i in range(size)]
    start = epoch * sum(sizes)
    assert sorted(pairs(order, start, start + sum(sizes))) == everything
    assert order.epoch_size == sum(sizes)


@given(
    sizes=st.lists(st.integers(12, 60), min_size=2, max_size=3), mode=st.sampled_from(MODES), epoch=st.integers(0, 2)
)
def test_each_component_of_a_weighted_mixture_has_epochs_of_its_own(sizes, mode, epoch):
    order = make(sizes, mode, weights=[5, 3, 2][: len(sizes)], batch_size=10)
    records = order.records(np.arange(3000))
    for c, size in enumerate(sizes):
        own = records.take(np.flatnonzero(records.source == c))
        assert np.array_equal(own.epoch, np.arange(len(own)) // size)
        assert sorted(own.index[own.epoch == epoch].tolist()) == list(range(size))


@given(weights=st.lists(st.integers(1, 20), min_size=2, max_size=4), num=st.integers(1, 2000))
def test_weighted_shares_hold_in_every_prefix(weights, num):
    order = make([50] * len(weights), weights=weights)
    counts = np.bincount(order.records(np.arange(num)).source, minlength=len(weights))
    assert np.all(np.abs(counts - num * np.array(weights) / sum(weights)) < 1)


def test_weighted_lanes_give_each_component_whole_rows():
    order = make([40, 70], "lanes", weights=[1, 3], batch_size=8)
    source = order.records(np.arange(800)).source.reshape(100, 8)
    assert np.all(source == source[0])
    assert Counter(source[0].tolist()) == {0: 2, 1: 6}


@given(
    sizes=st.lists(st.integers(1, 2500), min_size=1, max_size=3),
    mode=st.sampled_from(MODES),
    is_weighted=st.booleans(),
    data=st.data(),
)
def test_a_position_does_not_depend_on_the_other_requests(sizes, mode, is_weighted, data):
    order = make(sizes, mode, weights=[2, 1, 1][: len(sizes)] if is_weighted else None)
    positions = np.array(data.draw(st.lists(st.integers(0, 10 * sum(sizes)), min_size=1, max_size=40)))
    together = order.records(positions)
    again = make(sizes, mode, weights=[2, 1, 1][: len(sizes)] if is_weighted else None)
    for row, position in enumerate(positions):
        alone = again.records(np.array([position]))
        for name in ("source", "epoch", "index", "key"):
            assert getattr(alone, name)[0] == getattr(together, name)[row], name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [7, 64, 1500])
def test_keys_differ_between_examples_epochs_and_seeds(mode, size):
    keys = [make([size, size + 1], mode, seed=seed).records(np.arange(4 * size)).key for seed in (0, 1)]
    assert len(np.unique(np.concatenate(keys))) == 8 * size


@pytest.mark.parametrize("mode", MODES)
def test_a_key_belongs_to_the_example_whatever_the_order(mode):
    """Key = function of (seed, component, epoch, index)."""
    by_example = {}
    for order in (make([30, 50], "sequential"), make([30, 50], mode)):
        records = order.records(np.arange(160))
        table = zip(records.source.tolist(), records.epoch.tolist(), records.index.tolist(), strict=True)
        keys = dict(zip(table, records.key.tolist(), strict=True))
        by_example.update({name: by_example.get(name, set()) | {key} for name, key in keys.items()})
    assert len(by_example) == 160
    assert all(len(keys) == 1 for keys in by_example.values())


@pytest.mark.parametrize("mode", ["shuffle", "lanes"])
def test_epochs_and_seeds_are_ordered_differently(mode):
    first, second = (pairs(make([500], mode), start, start + 500) for start in (0, 500))
    other = pairs(make([500], mode, seed=1), 0, 500)
    for a, b in [(first, second), (first, other)]:
        assert sum(x == y for x, y in zip(a, b, strict=True)) < 40


@given(size=st.integers(20, 400), batch_size=st.integers(1, 16))
def test_fact_23_a_row_reads_on_in_its_document(size, batch_size):
    """Acceptance fact 23: row i at step t + 1 continues the document of row i at step t, but for the ends of
    documents, lanes and epochs."""
    documents = random_documents(size)
    order = Order([size], seed=1, mode="lanes", batch_size=batch_size, document_sizes=[documents])
    document_of = np.repeat(np.arange(len(documents)), documents)
    last_of_document = np.cumsum(documents) - 1
    rows = order.records(np.arange(size)).index  # one epoch, which starts with row 0
    num_breaks = 0
    for row in range(batch_size):
        lane = rows[row::batch_size]
        for now, following in pairwise(lane):
            if now == last_of_document[document_of[now]]:
                assert following == last_of_document[document_of[following]] - documents[document_of[following]] + 1
                num_breaks += 1
            else:
                assert following == now + 1
    assert num_breaks <= np.count_nonzero(documents)


@given(size=st.integers(20, 300), batch_size=st.integers(1, 16))
def test_lanes_are_equally_long(size, batch_size):
    order = Order([size], seed=1, mode="lanes", batch_size=batch_size, document_sizes=[np.array([size])])
    index = order.records(np.arange(size)).index
    starts = np.sort(index[:batch_size])
    assert set(np.diff(np.append(starts, size)).tolist()) <= {size // batch_size, -(-size // batch_size)}


def test_epochs_of_lanes_start_where_the_last_ended():
    """10 examples on 4 rows: epoch 1 begins at row 2 of step 2."""
    order = Order([10], seed=0, mode="lanes", batch_size=4, document_sizes=[np.array([10])])
    grid = order.records(np.arange(20)).index.reshape(5, 4)
    assert grid.tolist() == [[0, 3, 6, 8], [1, 4, 7, 9], [2, 5, 0, 3], [6, 8, 1, 4], [7, 9, 2, 5]]


def test_sequential_is_as_stored():
    order = Order([3, 2], seed=0, mode="sequential")
    assert pairs(order, 0, 7) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 0), (0, 1)]


def test_num_epochs_counts_the_most_repeated_component():
    assert make([30, 70]).num_epochs(250) == 2.5
    weighted = make([10, 90], weights=[1, 1])
    assert weighted.num_epochs(40) == 2.0
    assert weighted.epoch_size == 20


def test_golden_first_indices():
    """An upgrade must not reorder data silently; tests/golden/order.py writes the file."""
    for case in json.loads(GOLDEN.read_text()):
        for name, values in records_of(case["order"], case["start"]).items():
            assert values == case[name], (name, case["order"])


def test_fingerprint_follows_sizes_weights_and_documents():
    orders = [
        make([30, 70]),
        make([31, 69]),
        make([30, 70], weights=[1, 1]),
        make([30, 70], weights=[1, 2]),
        make([30, 70], "lanes"),
        Order([30, 70], seed=0, mode="lanes", batch_size=4, document_sizes=[np.array([30]), np.array([70])]),
    ]
    assert len({order.fingerprint for order in orders}) == len(orders)
    assert make([30, 70]).fingerprint == make([30, 70]).fingerprint
    assert make([30, 70], weights=[2, 4]).fingerprint == make([30, 70], weights=[0.5, 1.0]).fingerprint
    assert make([30], weights=[2]).fingerprint == make([30]).fingerprint


@pytest.mark.parametrize(
    ("sizes", "settings", "error", "message"),
    [
        ([], {}, DataError, "no data"),
        ([5, 0], {}, DataError, "component 1 of the data has no examples"),
        ([5], {"mode": "random"}, ConfigError, "unknown data order 'random'"),
        ([5, 5], {"weights": [1]}, ConfigError, "there are 1 weights for 2 components"),
        ([5, 5], {"weights": [1, None]}, ConfigError, "components 1 have none"),
        ([5, 5], {"weights": [1, -1]}, ConfigError, "weight of component 1 is -1"),
        (
            [5],
            {"mode": "lanes", "batch_size": 2, "document_sizes": [np.array([2, 2])]},
            DataError,
            "add up to 4 examples, but it has 5",
        ),
    ],
)
def test_wrong_input_is_refused(sizes, settings, error, message):
    with pytest.raises(error, match=message):
        Order(sizes, seed=0, **settings)
