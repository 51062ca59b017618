"""Sorting pairs on disk, and what hangs together, against a plain computation in memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus import pairs
from pretrainkit.corpus.components import write_components
from pretrainkit.corpus.pairs import PairRun, PairSorter, merged

Numbers = st.one_of(st.integers(0, 12), st.integers(0, 2**64 - 1))
Pairs = st.lists(st.tuples(Numbers, Numbers), max_size=120)


def as_array(found):
    return np.array(found, np.uint64).reshape(-1, 2)


def as_list(pieces):
    return [tuple(row) for piece in pieces for row in piece.tolist()]


@pytest.fixture(params=[1, 4, 1024])
def block(request, monkeypatch):
    """Pairs of a run that are read at once: with so few, hundreds of pairs are many runs, merged in steps."""
    monkeypatch.setattr(pairs, "_LEAST_BLOCK", request.param)
    return request.param


@settings(deadline=None)
@given(found=Pairs, cut=st.integers(0, 120))
def test_pairs_come_back_sorted_and_once(tmp_path_factory, found, cut):
    folder = tmp_path_factory.mktemp("sorted")
    for least in (1, 4, 1024):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pairs, "_LEAST_BLOCK", least)
            sorter = PairSorter(folder, 64 * 9)
            sorter.add(as_array(found[:cut]))
            sorter.add(as_array(found[cut:]))
            assert as_list(sorter.sorted()) == sorted(set(found))


def test_a_run_inside_a_file_is_read_from_where_it_begins(tmp_path):
    found = as_array([(n, n + 1) for n in range(9)])
    (tmp_path / "runs").write_bytes(found.tobytes())
    runs = [PairRun(tmp_path / "runs", 3, 16 * begin) for begin in (6, 0, 3)]
    assert as_list(merged(runs, tmp_path, 1 << 20)) == [(n, n + 1) for n in range(9)]


def sets_in_memory(found):
    first = {}

    def root(number):
        while first.setdefault(number, number) != number:
            number = first[number]
        return number

    for a, b in found:
        a, b = root(a), root(b)
        first[max(a, b)] = min(a, b)
    return sorted((number, root(number)) for number in first if root(number) != number)


@settings(deadline=None, max_examples=50)
@given(found=Pairs, block=st.sampled_from([1, 1024]))
def test_sets_are_those_of_a_search_in_memory(tmp_path_factory, found, block):
    folder = tmp_path_factory.mktemp("sets")
    found = [(a, b) for a, b in found if a != b]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "_LEAST_BLOCK", block)
        run = write_components(iter([as_array(found)]), folder / "work", 64 * 20, folder / "sets")
    assert as_list(run.pieces()) == sets_in_memory(found)
    assert not (folder / "work").exists()


def test_a_long_chain_and_a_crowd_are_one_set_each(tmp_path, block):
    chain = np.random.default_rng(0).permutation(300).astype(np.uint64)
    crowd = np.stack([np.arange(1001, 1300), np.full(299, 1000)], axis=1).astype(np.uint64)
    edges = np.concatenate([np.stack([chain[1:], chain[:-1]], axis=1), crowd])
    run = write_components(iter([edges]), tmp_path / "work", 64 * 50, tmp_path / "sets")
    assert as_list(run.pieces()) == [(n, 0) for n in range(1, 300)] + [(n, 1000) for n in range(1001, 1300)]
