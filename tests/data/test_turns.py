"""Batches of one component each: who is drawn when, and that nothing is lost. Facts 9 to 14 of the clip recipe."""

from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.data.turns import Debias
from pretrainkit.errors import ConfigError, DataError

KINDS = [
    ("debias", {}),
    ("debias", {"debias": Debias(draw="balanced")}),
    ("debias", {"debias": Debias(exponent=0.0)}),
    ("debias", {"weights": [3.0, 1.0, 2.0]}),
    ("set_by_set", {}),
    ("debias", {"is_static": True}),
    ("debias", {"is_static": True, "debias": Debias(draw="balanced")}),
    ("set_by_set", {"is_static": True}),
]
SIZES = st.lists(st.integers(6, 70), min_size=3, max_size=3)


def make(sizes, kind=("debias", {}), batch_size=6, seed=0) -> Order:
    mode, settings = kind
    return Order(sizes, seed=seed, mode=mode, batch_size=batch_size, **settings)


def steps_of(order: Order, start: int, stop: int) -> list[Records]:
    return [
        order.records(np.arange(step * order.batch_size, (step + 1) * order.batch_size)) for step in range(start, stop)
    ]


def sequence(order: Order, num_steps: int) -> list[int]:
    """The component of each step."""
    return order.records(np.arange(num_steps) * order.batch_size).source.tolist()


@given(sizes=SIZES, kind=st.sampled_from(KINDS))
def test_fact_9_every_batch_comes_from_one_component(sizes, kind):
    order = make(sizes, kind)
    for records in steps_of(order, 0, 40):
        assert len(set(records.source.tolist())) == 1
        assert (records.index >= 0).all()
        assert (records.index < sizes[records.source[0]]).all()


@pytest.mark.parametrize("seed", [2021, 7])
def test_fact_10_components_are_drawn_one_by_one_from_one_stream(seed):
    sizes = [13, 40, 27]
    order = make(sizes, ("debias", {"debias": Debias(seed=seed)}))
    generator = np.random.default_rng(seed)
    expected = [int(generator.choice(3, p=np.array(sizes) / sum(sizes))) for _ in range(3000)]
    assert sequence(order, 3000) == expected
    # A resumed run begins with a late step.
    assert steps_of(make(sizes, ("debias", {"debias": Debias(seed=seed)})), 2500, 2501)[0].source[0] == expected[2500]


@given(sizes=SIZES, kind=st.sampled_from(KINDS[:5]))
def test_nothing_is_lost(sizes, kind):
    """Batches of a component, in order, contain it pass by pass, each pass complete before the next."""
    order = make(sizes, kind)
    records = order.records(np.arange(600 * 6))
    for c, size in enumerate(sizes):
        own = records.take(np.flatnonzero(records.source == c))
        assert np.array_equal(own.epoch, np.arange(len(own)) // size)
        for epoch in range(len(own) // size):
            assert sorted(own.index[own.epoch == epoch].tolist()) == list(range(size))


@given(sizes=SIZES, kind=st.sampled_from(KINDS), steps=st.lists(st.integers(0, 5000), min_size=1, max_size=8))
def test_a_step_does_not_depend_on_the_other_requests(sizes, kind, steps):
    order = make(sizes, kind)
    together = order.records((np.array(steps)[:, None] * 6 + np.arange(6)).ravel())
    for number, step in enumerate(steps):
        alone = steps_of(make(sizes, kind), step, step + 1)[0]
        for name in ("source", "epoch", "index", "key"):
            assert np.array_equal(getattr(alone, name), getattr(together, name)[number * 6 : number * 6 + 6])


@given(sizes=SIZES, is_static=st.booleans(), epoch=st.integers(0, 5))
def test_fact_13_sequential_takes_all_batches_of_one_set_before_the_next(sizes, is_static, epoch):
    order = make(sizes, ("set_by_set", {"is_static": is_static}))
    if is_static:
        counts = [size // 6 for size in sizes]
        start = epoch * sum(counts)
    else:  # what was left over adds up to further batches
        counts = [(epoch + 1) * size // 6 - epoch * size // 6 for size in sizes]
        start = sum(epoch * size // 6 for size in sizes)
    found = sequence(order, start + sum(counts))[start:]
    assert [(c, len(list(run))) for c, run in groupby(found)] == list(enumerate(counts))


@given(sizes=SIZES, epoch=st.integers(0, 4))
def test_a_balanced_draw_takes_each_component_as_often_as_it_fills_a_batch(sizes, epoch):
    order = make(sizes, ("debias", {"debias": Debias(draw="balanced")}))
    counts = [size // 6 for size in sizes]
    num_steps = sum(counts)
    found = sequence(order, (epoch + 1) * num_steps)[epoch * num_steps :]
    assert np.bincount(found, minlength=3).tolist() == counts
    assert order.epoch_size == 6 * num_steps


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, np.array([100, 300, 600]) / 1000),
        ({"debias": Debias(exponent=0.5)}, np.array([100, 300, 600]) ** 0.5 / (10 + 300**0.5 + 600**0.5)),
        ({"weights": [1, 1, 2]}, np.array([0.25, 0.25, 0.5])),
    ],
)
def test_fact_14_shares_of_batches_are_within_three_deviations(settings, shares):
    num_steps = 10_000
    found = np.bincount(sequence(make([100, 300, 600], ("debias", settings)), num_steps), minlength=3)
    assert (np.abs(found - num_steps * shares) < 3 * np.sqrt(num_steps * shares * (1 - shares))).all()


def torch_order(size: int) -> list[int]:
    return torch.randperm(size, generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("size", [20, 23, 1500])
def test_fact_12_a_static_order_is_that_of_torch_in_every_pass_and_drops_the_tail(size):
    expected = torch_order(size)[: size // 6 * 6]
    shuffled = Order([size], seed=3, mode="shuffle", batch_size=6, is_static=True)
    by_set = make([size, 30], ("set_by_set", {"is_static": True}))
    for epoch in range(3):
        passed = shuffled.records(np.arange(len(expected)) + epoch * len(expected))
        assert passed.index.tolist() == expected
        assert set(passed.epoch.tolist()) == {epoch}
        start = epoch * (len(expected) + 30)
        assert by_set.records(np.arange(start, start + len(expected))).index.tolist() == expected
    keys = shuffled.records(np.arange(2 * len(expected))).key
    assert len(np.unique(keys)) == len(keys)  # augmentation differs from pass to pass all the same


def test_a_static_order_of_all_components_together_has_whole_batches_alone():
    order = make([13, 40, 27], ("shuffle", {"is_static": True}), batch_size=9)
    assert order.epoch_size == 72
    assert order.num_epochs(180) == 2.5


def test_without_the_static_order_passes_differ():
    order = Order([600], seed=3, mode="shuffle", batch_size=6)
    first, second = (order.records(np.arange(600) + epoch * 600).index.tolist() for epoch in (0, 1))
    assert first != second


def test_the_static_debiased_order_is_that_of_zerovl_over_three_epochs():
    """Simulated as the original runs: an iterator for each set, opened again in each epoch and when exhausted."""
    sizes, batch_size = [13, 40, 27], 6
    generator = np.random.default_rng(2021)
    expected = []
    for _ in range(3):
        opened = [iter(()) for _ in sizes]
        for _ in range(sum(size // batch_size for size in sizes)):
            k = int(generator.choice(3, p=np.array(sizes) / sum(sizes)))
            batch = next(opened[k], None)
            if batch is None:
                usable = torch_order(sizes[k])[: sizes[k] // batch_size * batch_size]
                opened[k] = iter(np.array(usable).reshape(-1, batch_size).tolist())
                batch = next(opened[k])
            expected.append((k, batch))
    order = make(sizes, ("debias", {"is_static": True}))
    found = steps_of(order, 0, len(expected))
    assert [(records.source[0], records.index.tolist()) for records in found] == expected
    assert order.epoch_size == batch_size * sum(size // batch_size for size in sizes)
    keys = np.concatenate([records.key for records in found])
    assert len(np.unique(keys)) == len(keys)


class Numbered(BatchSource):
    sizes = (13, 40, 27)
    fingerprint = "numbered"

    def lengths(self, records: Records):
        return np.ones(len(records), np.int64)

    def build(self, records: Records) -> dict[str, np.ndarray]:
        return {"source": records.source, "index": records.index, "key": records.key}


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_ranks_and_microbatches_sees_the_same_batches(kind):
    alone = Loader(Numbered(), make([13, 40, 27], kind), batch_size=6)
    ranks = [
        Loader(
            Numbered(), make([13, 40, 27], kind), batch_size=6, rank=rank, world_size=3, microbatch_size=1, prefetch=0
        )
        for rank in range(3)
    ]
    for step in (0, 1, 2, 57, 4000):
        whole = alone.step(step)[0]
        parts = [batch for rank in ranks for batch in rank.step(step)]
        for name, values in whole.items():
            assert np.array_equal(np.concatenate([part[name] for part in parts]), values)


def test_the_fingerprint_follows_every_setting():
    orders = [make([13, 40, 27], kind) for kind in KINDS]
    orders += [
        make([13, 40, 28]),
        make([13, 40, 27], ("debias", {"debias": Debias(seed=1)})),
        make([13, 40, 27], ("debias", {"debias": Debias(exponent=0.5)})),
        make([13, 40, 27], ("debias", {"weights": [3, 1, 1]})),
        make([13, 40, 27], ("shuffle", {})),
        make([13, 40, 27], ("shuffle", {"is_static": True})),
    ]
    assert len({order.fingerprint for order in orders}) == len(orders)


def test_a_loader_refuses_small_components_unless_examples_may_repeat():
    small = make([13, 40, 27], ("debias", {}), batch_size=20)
    with pytest.raises(DataError, match="20 examples, but the data has only 13"):
        Loader(Numbered(), small, batch_size=20)
    wrapping = make([13, 40, 27], ("debias", {"may_repeat": True}), batch_size=20)
    loader = Loader(Numbered(), wrapping, batch_size=20)
    batch = next(b for b in (loader.step(step)[0] for step in range(100)) if b["source"][0] == 0)
    assert len(np.unique(batch["index"])) == 13
    with pytest.raises(ValueError, match="batches of 20, not 10"):
        Loader(Numbered(), wrapping, batch_size=10)


@pytest.mark.parametrize(
    ("mode", "settings", "error", "message"),
    [
        ("set_by_set", {"weights": [1, 1, 1]}, ConfigError, "have no weights"),
        ("debias", {"weights": [1, 1, 1], "debias": Debias(exponent=0.5)}, ConfigError, "exponent 0.5"),
        ("debias", {"weights": [1, 1, 1], "debias": Debias(draw="balanced")}, ConfigError, "ignores its weight"),
        ("debias", {"debias": Debias(draw="balanced", exponent=0.5)}, ConfigError, "exponent 0.5"),
        ("debias", {"debias": Debias(draw="balanced"), "batch_size": 20}, DataError, "component 0 has 13 examples"),
        ("debias", {"is_static": True, "batch_size": 20}, DataError, "component 0 has 13 examples"),
        ("sequential", {"is_static": True}, ConfigError, "no static order for 'sequential'"),
        ("shuffle", {"is_static": True, "weights": [1, 1, 1]}, ConfigError, "of weighted components"),
    ],
)
def test_settings_that_do_not_fit_are_refused(mode, settings, error, message):
    with pytest.raises(error, match=message):
        Order([13, 40, 27], seed=0, mode=mode, **({"batch_size": 6} | settings))
