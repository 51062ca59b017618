"""Settings of the order of pairs decide the order of the loader."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.data.order import Order
from pretrainkit.data.turns import Debias
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip.config import ClipRun, ClipSourceConfig
from pretrainkit.recipes.clip.presets import tiny
from pretrainkit.recipes.clip.source import build_order


def steps_per_epoch(sizes, batch_size, world_size, order):
    """Updates in what ZeroVL calls an epoch: every set (shuffle: all together) is spread over the ranks, the last of
    which may get a pair twice, and each rank drops what does not fill its last batch.

    With `compat_static_order` our epoch has this many on one rank.
    """
    own_batch = batch_size // world_size
    streams = [sum(sizes)] if order == "shuffle" else sizes
    return sum(-(-size // world_size) // own_batch for size in streams)


def run(weights=(None, None), **data) -> ClipRun:
    config = tiny()
    sources = tuple(ClipSourceConfig(path=f"sets/{name}", weight=w) for name, w in zip("ab", weights, strict=True))
    return config.model_copy(
        update={"data": config.data.model_copy(update={"train": sources, "batch_size": 8, **data})}
    )


@pytest.mark.parametrize(
    ("config", "same"),
    [
        (run(), {"mode": "shuffle"}),
        (run((1.0, 3.0)), {"mode": "shuffle", "weights": [1.0, 3.0]}),
        (run(order="sequential"), {"mode": "set_by_set"}),
        (run(order="debias"), {"mode": "debias"}),
        (run((1.0, 3.0), order="debias"), {"mode": "debias", "weights": [1.0, 3.0]}),
        (run(order="debias", debias_exponent=0.5), {"mode": "debias", "debias": Debias(exponent=0.5)}),
        (run(order="debias", debias_draw="balanced"), {"mode": "debias", "debias": Debias(draw="balanced")}),
        (run(order="debias", debias_seed=3), {"mode": "debias", "debias": Debias(seed=3)}),
        (run(order="debias", compat_static_order=True), {"mode": "debias", "is_static": True}),
    ],
)
def test_the_config_becomes_the_order(config, same):
    sizes = [30, 50]
    found, expected = build_order(config, sizes), Order(sizes, seed=config.seed, batch_size=8, **same)
    assert found.fingerprint == expected.fingerprint
    ours, theirs = (order.records(np.arange(800)) for order in (found, expected))
    for name in ("source", "epoch", "index", "key"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("order", ["sequential", "debias"])
def test_a_set_smaller_than_a_batch_may_be_wrapped(order):
    assert build_order(run(order="shuffle"), [5, 50])
    wrapped = build_order(run(order=order, small_set="wrap"), [5, 50])
    assert wrapped.draws_per_batch(8) == []
    assert set(wrapped.records(np.arange(800)).source.tolist()) == {0, 1}


def test_weights_of_sets_that_come_in_turn_are_refused():
    with pytest.raises(ConfigError, match="have no weights"):
        build_order(run((1.0, 2.0), order="sequential"), [30, 50])


@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    world_size=st.sampled_from([1, 2, 4]),
    order=st.sampled_from(["shuffle", "sequential", "debias"]),
)
def test_fact_11_steps_per_epoch_are_those_of_distributed_samplers(sizes, world_size, order):
    from torch.utils.data import BatchSampler
    from torch.utils.data.distributed import DistributedSampler

    streams = [sum(sizes)] if order == "shuffle" else sizes
    expected = sum(
        len(BatchSampler(DistributedSampler(range(size), world_size, 0), batch_size=8 // world_size, drop_last=True))
        for size in streams
    )
    assert steps_per_epoch(sizes, 8, world_size, order) == expected


@given(sizes=st.lists(st.integers(8, 200), min_size=1, max_size=3))
def test_fact_11_an_epoch_of_the_static_order_has_as_many_steps_as_the_original_on_one_rank(sizes):
    for order in ("shuffle", "sequential", "debias"):
        config = run((None,) * 2, order=order, compat_static_order=True)
        sources = tuple(ClipSourceConfig(path=f"sets/{c}") for c in range(len(sizes)))
        config = config.model_copy(update={"data": config.data.model_copy(update={"train": sources})})
        assert build_order(config, sizes).epoch_size == 8 * steps_per_epoch(sizes, 8, 1, order)


def test_fact_12_the_static_order_of_all_sets_together_is_one_permutation_of_torch():
    order = build_order(run(compat_static_order=True), [30, 50])
    place = torch.randperm(80, generator=torch.Generator().manual_seed(0)).numpy()
    for epoch in range(2):
        records = order.records(np.arange(80) + 80 * epoch)
        assert np.array_equal(records.index + 30 * records.source, place)
