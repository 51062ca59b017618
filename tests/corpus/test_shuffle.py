import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus.shard_writer import open_shard
from pretrainkit.corpus.shuffle import RunWriter, cut_positions, gather, identity, order_keys
from pretrainkit.errors import DataError

key_sets = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=20), max_size=5).map(
    lambda runs: [
        np.array(sorted(key for key in set(run) if all(key not in other for other in runs[:index])), np.uint64)
        for index, run in enumerate(runs)
    ]
)


@given(runs=key_sets, data=st.data())
def test_cuts_hold_the_smallest_keys(runs, data):
    total = sum(map(len, runs))
    ranks = sorted(data.draw(st.lists(st.integers(0, total), max_size=6)))
    merged = sorted(key for run in runs for key in run.tolist())
    cuts = cut_positions(runs, ranks)
    assert cuts.shape == (len(runs), len(ranks))
    for column, rank in enumerate(ranks):
        below = sorted(key for run, cut in zip(runs, cuts[:, column]) for key in run[:cut].tolist())
        assert below == merged[:rank]


@given(
    pairs=st.lists(st.tuples(st.integers(0, 2**23 - 1), st.integers(0, 2**40 - 1)), unique=True),
    seed=st.integers(0, 99),
)
def test_keys_never_collide(pairs, seed):
    identities = np.array([identity(*pair) for pair in pairs], np.uint64)
    assert len(set(order_keys(identities, seed).tolist())) == len(pairs)
    assert order_keys(identities, None) is identities


def test_identities_out_of_range_are_refused():
    with pytest.raises(DataError, match="cannot be numbered"):
        identity(2**23, 0)
    with pytest.raises(DataError, match="cannot be numbered"):
        identity(0, 2**40)


def test_the_first_of_a_shuffle_are_golden():
    """An upgrade must not reorder corpora silently."""
    identities = np.array([identity(file, position) for file in range(3) for position in range(4)], np.uint64)
    assert np.argsort(order_keys(identities, 0)).tolist() == [5, 1, 11, 9, 10, 4, 8, 2, 7, 6, 3, 0]


def test_order_is_near_to_uniform():
    """Each of 20 documents comes first equally often over 4000 seeds."""
    # Chi-squared with 19 degrees of freedom: a uniform order exceeds 43.8 once in a thousand.
    identities = np.arange(20, dtype=np.uint64)
    first = np.bincount([np.argmin(order_keys(identities, seed)) for seed in range(4000)], minlength=20)
    assert ((first - 200) ** 2 / 200).sum() < 43.8


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    run_bytes=st.integers(1, 4000),
    piece_bytes=st.integers(1, 4000),
    seed=st.one_of(st.none(), st.integers(0, 9)),
)
def test_any_memory_gives_the_same_order(tmp_path_factory, lengths, run_bytes, piece_bytes, seed):
    folder = tmp_path_factory.mktemp("runs")
    records = [b"%d:" % index + b"x" * length + b"\n" for index, length in enumerate(lengths)]
    writer = RunWriter(folder, seed, run_bytes)
    for index, record in enumerate(records):
        writer.add("train", index, record)
    writer.spill()
    runs = writer.runs["train"]
    with open_shard(folder / "out", "none") as (shard, entry):
        gather([(run, 0, run.num_documents) for run in runs], shard, piece_bytes)
    order = np.argsort(order_keys(np.arange(len(records), dtype=np.uint64), seed))
    assert (folder / "out").read_bytes() == b"".join(records[index] for index in order)
    assert entry["num_documents"] == len(records)
