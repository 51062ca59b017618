"""The equalities: ranks, microbatches, workers and interruptions never change what a step sees."""

import json
import threading
import time
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.data.rows import RowSource
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import ConfigError, DataError, RunError

SIZES = (37, 64)
MODES = ["shuffle", "lanes", "sequential"]


class NamedSource(BatchSource):
    """Examples that contain their own index; their lengths vary from 1 to 9 tokens."""

    def __init__(self, sizes=SIZES, fails_at: int | None = None) -> None:
        self._sizes, self._fails_at = tuple(sizes), fails_at

    @property
    def sizes(self):
        return self._sizes

    @property
    def fingerprint(self):
        return f"examples that name themselves, with these numbers by component: {self._sizes}"

    def lengths(self, records):
        return 1 + records.index % 9

    def build(self, records):
        if self._fails_at is not None and self._fails_at in records.index:
            raise KeyError("no such example")
        return {
            "source": records.source,
            "epoch": records.epoch,
            "index": records.index,
            "noise": (records.key >> np.uint64(40)).astype(np.float32),
        }


class DyingSource(NamedSource):
    """Kills its process."""

    def build(self, records):
        import os

        os._exit(7)


def make(batch_size=8, mode="shuffle", weights=None, seed=0, source=None, **settings) -> Loader:
    source = source or NamedSource()
    documents = [np.array([5] * (size // 5) + [size % 5]) for size in source.sizes]
    order = Order(source.sizes, seed=seed, mode=mode, weights=weights, batch_size=batch_size, document_sizes=documents)
    return Loader(source, order, batch_size=batch_size, **settings)


def joined(microbatches) -> dict[str, np.ndarray]:
    return {name: np.concatenate([micro[name] for micro in microbatches]) for name in microbatches[0]}


def assert_same(first, second) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name


@settings(max_examples=30)
@given(
    mode=st.sampled_from(MODES),
    weights=st.sampled_from([None, [1, 3]]),
    world_size=st.sampled_from([1, 2, 4, 8]),
    cut=st.sampled_from([{}, {"microbatch_size": 1}, {"microbatch_size": 2}, {"microbatch_tokens": 9}]),
    step=st.integers(0, 5000),
)
def test_any_ranks_and_microbatches_give_the_same_global_batch(mode, weights, world_size, cut, step):
    if cut.get("microbatch_size") == 2 and world_size == 8:
        cut = {}
    whole = make(mode=mode, weights=weights).global_batch(step)
    ranks = [make(mode=mode, weights=weights, rank=r, world_size=world_size, **cut) for r in range(world_size)]
    by_rank = [loader.step(step) for loader in ranks]
    assert len({len(micros) for micros in by_rank}) == 1
    assert_same(joined([micro for micros in by_rank for micro in micros]), whole)


@pytest.mark.parametrize("mode", MODES)
def test_steps_may_be_requested_in_any_order(mode):
    loader = make(mode=mode)
    steps = [*np.random.default_rng(0).permutation(40).tolist(), 100_000, 3]
    loader._block_steps = 3  # many blocks, so that the kept ones are replaced
    for step in steps:
        assert_same(joined(loader.step(step)), make(mode=mode).global_batch(step))


def test_an_epoch_of_steps_sees_every_example_once():
    loader = make(batch_size=8, source=NamedSource((64,)))
    assert (loader.num_steps_for(1), loader.num_steps_for(2.5)) == (8, 20)
    for epoch in range(3):
        seen = [loader.global_batch(step)["index"] for step in range(8 * epoch, 8 * epoch + 8)]
        assert sorted(np.concatenate(seen).tolist()) == list(range(64))
    assert loader.epochs_for(12) == 1.5


def test_stopping_and_resuming_equals_never_stopping():
    never_stopped = [joined(p.microbatches) for p in make().iterate(0, 30)]
    before = [joined(p.microbatches) for p in make().iterate(0, 11)]
    state = json.dumps(make().state(11))
    resumed = make(prefetch=5)
    after = [joined(p.microbatches) for p in resumed.iterate(resumed.check_state(json.loads(state)), 30)]
    assert len(before + after) == 30
    for a, b in zip(never_stopped, before + after, strict=True):
        assert_same(a, b)


def test_resuming_on_another_number_of_ranks():
    state = make(rank=1, world_size=2).state(7)
    ranks = [make(rank=rank, world_size=4, microbatch_size=1) for rank in range(4)]
    assert [loader.check_state(state) for loader in ranks] == [7] * 4
    assert_same(joined([micro for loader in ranks for micro in loader.step(7)]), make().global_batch(7))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch_size": 16}, "data.batch_size: the checkpoint has 8, the config now has 16"),
        ({"seed": 1}, "seed: the checkpoint has 0, the config now has 1"),
        ({"mode": "sequential"}, "data.order: the checkpoint has shuffle, the config now has sequential"),
        ({"weights": [1, 2]}, "weights of the mixture: the checkpoint has"),
        ({"source": NamedSource((37, 65))}, "the data itself: the checkpoint has"),
    ],
)
def test_resuming_with_other_data_is_refused_by_name(changes, named):
    state = make().state(12_000)
    with pytest.raises(DataError) as caught:
        make(**changes).check_state(state)
    assert named in str(caught.value)
    assert "resuming at step 12000 would not continue the same data" in str(caught.value)


@pytest.mark.parametrize("state", [{}, {"step": 3}, {**make().state(0), "step": "3"}, {**make().state(0), "step": -1}])
def test_an_invalid_state_is_refused(state):
    with pytest.raises(DataError, match="not a valid state of a loader"):
        make().check_state(state)


def test_a_run_that_continues_the_count_reads_the_data_from_its_start():
    plain, later = make(), make(first_step=100)
    for step in (0, 1, 7):
        assert_same(later.global_batch(100 + step), plain.global_batch(step))
        assert_same(joined(later.step(100 + step)), joined(plain.step(step)))
    with pytest.raises(ValueError, match="the first one is 100"):
        later.step(99)


@pytest.mark.parametrize(("before", "now"), [(0, 100), (100, 0), (100, 50)])
def test_the_start_of_the_data_is_part_of_the_state(before, now):
    state = make(first_step=before).state(120)
    assert make(first_step=before).check_state(state) == 120
    with pytest.raises(DataError, match="the step at which the data begins"):
        make(first_step=now).check_state(state)


def test_the_state_is_small_and_forgets_the_ranks():
    states = [make(rank=r, world_size=4, seed=2**63).state(2**40) for r in range(4)]
    assert len(json.dumps(states[0]).encode()) <= 256
    assert states.count(states[0]) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"prefetch": 0},
        {"prefetch": 1},
        {"prefetch": 7},
        {"prefetch": 0, "num_workers": 3},
        {"prefetch": 5, "num_workers": 2},
        {"prefetch": 3, "workers": "processes", "num_workers": 2},
        {"prefetch": 0, "workers": "processes", "num_workers": 1},
    ],
    ids=str,
)
def test_any_number_of_workers_gives_equal_batches(settings):
    prepared = list(make(microbatch_tokens=20, world_size=2, **settings).iterate(5, 17))
    assert [p.step for p in prepared] == list(range(5, 17))
    expected = make(microbatch_tokens=20, world_size=2)
    for p in prepared:
        assert p.waited_seconds >= 0
        for micro, other in zip(p.microbatches, expected.step(p.step), strict=True):
            assert_same(micro, other)


WORKERS = [
    {"prefetch": 0},
    {"prefetch": 2},
    {"num_workers": 3},
    {"workers": "processes", "num_workers": 1, "prefetch": 2},
]


@pytest.mark.parametrize("settings", WORKERS, ids=str)
def test_errors_surface_with_their_type_at_their_step(settings):
    loader = make(source=NamedSource((40,), fails_at=17), mode="sequential", batch_size=8, **settings)
    steps = loader.iterate()
    assert [next(steps).step for _ in range(2)] == [0, 1]
    with pytest.raises(KeyError, match="no such example"):
        next(steps)
    assert num_prefetching() == 0


def test_even_an_exit_within_a_thread_surfaces():
    class Exiting(NamedSource):
        def build(self, records):
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        next(make(source=Exiting()).iterate())
    assert num_prefetching() == 0


def test_a_process_that_dies_is_an_error_not_a_hang():
    loader = make(source=DyingSource(), workers="processes", num_workers=1)
    with pytest.raises(RunError, match=r"died while preparing step 0 \(exit code 7\)"):
        next(loader.iterate())


def num_prefetching() -> int:
    import multiprocessing

    threads = [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
    return len(threads) + len(multiprocessing.active_children())


@pytest.mark.parametrize("settings", WORKERS, ids=str)
def test_leaving_early_leaves_no_thread_or_process(settings):
    steps = make(**settings).iterate()
    assert [p.step for p in islice(steps, 3)] == [0, 1, 2]
    steps.close()
    assert num_prefetching() == 0
    unused = make(**settings).iterate()
    del unused
    assert num_prefetching() == 0


def test_an_interrupt_of_the_consumer_stops_the_thread():
    def consume():
        for prepared in make().iterate():
            if prepared.step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert num_prefetching() == 0


def test_prefetching_is_bounded():
    class Counting(NamedSource):
        num_built = 0

        def build(self, records):
            self.num_built += 1
            return super().build(records)

    source = Counting()
    steps = make(source=source, prefetch=3).iterate()
    next(steps)
    time.sleep(0.05)
    assert source.num_built <= 4
    steps.close()


def test_fewer_examples_than_a_batch_are_refused_with_the_numbers():
    with pytest.raises(DataError, match=r"a batch needs 32 examples, .* only 20(.|\n)*at most 20"):
        make(batch_size=32, source=NamedSource((20,)))
    with pytest.raises(DataError, match=r"a batch needs 24 examples, .* only 20(.|\n)*at most 26"):
        make(batch_size=32, source=NamedSource((20, 100)), weights=[3, 1])
    make(batch_size=32, source=NamedSource((20, 12)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"world_size": 3}, "8 examples cannot be split over 3 ranks"),
        ({"microbatch_size": 3}, "cannot be split into microbatches of 3"),
        ({"microbatch_size": 2, "microbatch_tokens": 2}, "not both"),
        ({"workers": "processes"}, "needs at least one"),
    ],
)
def test_impossible_cuts_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_an_example_too_long_for_a_microbatch_is_named():
    loader = make(mode="sequential", microbatch_tokens=6)
    with pytest.raises(DataError, match="example 6 of component 0 has 7 tokens, which exceeds the microbatch size"):
        loader.step(0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_come_from_arrays_and_memory_maps(tmp_path, num_workers):
    arrays = [np.arange(40 * 6, dtype=np.uint16).reshape(40, 6), np.arange(300, 360, dtype=np.uint16).reshape(10, 6)]
    maps = []
    for i, array in enumerate(arrays):
        array.tofile(tmp_path / f"{i}.bin")
        maps.append(np.memmap(tmp_path / f"{i}.bin", np.uint16, "r", shape=array.shape))
    kind = {"workers": "processes", "num_workers": num_workers} if num_workers else {}
    loader = make(source=RowSource(maps), **kind)
    for prepared in loader.iterate(0, 12):
        records = loader.global_records(prepared.step)
        expected = [arrays[c][i] for c, i in zip(records.source, records.index, strict=True)]
        assert np.array_equal(prepared.microbatches[0]["tokens"], expected)
    assert RowSource(maps).fingerprint == RowSource(arrays).fingerprint
    assert RowSource(maps).fingerprint != RowSource([arrays[0], arrays[1] + 1]).fingerprint


def test_memory_maps_are_sent_to_processes_by_path(tmp_path):
    import pickle

    array = np.zeros((20_000, 8), np.uint16)
    array.tofile(tmp_path / "rows.bin")
    source = RowSource([np.memmap(tmp_path / "rows.bin", np.uint16, "r", shape=array.shape)])
    assert len(pickle.dumps(source)) < 1000


def test_rows_of_different_kinds_are_refused():
    with pytest.raises(DataError, match=r"not uint16\[3, 4\], int64\[3, 4\]"):
        RowSource([np.zeros((3, 4), np.uint16), np.zeros((3, 4), np.int64)])
    with pytest.raises(DataError, match="not nothing"):
        RowSource([])


def test_records_can_be_taken_by_slice_and_index():
    records = Order([9], seed=0).records(np.arange(9))
    part = records.take(np.array([3, 1]))
    assert isinstance(part, Records)
    assert part.index.tolist() == [records.index[3], records.index[1]]
    assert len(records.take(slice(2, 2))) == 0
