"""Connected components of a graph whose edges are pairs of numbers, in bounded memory, by sorting on disk.

Source: Kiryati et al. 2014, "Connected Components in MapReduce and Beyond", https://doi.org/10.1145/2670979.2670997:
the steps large-star and small-star alternate until nothing changes. Each step sorts the pairs once. The number of pairs
never grows, and the number of rounds grows with the logarithm of the longest chain.

Dimensions: N pairs.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pretrainkit.corpus.pairs import U64, PairRun, PairSorter, least_of_firsts, write_pairs


def write_components(pairs: Iterator[U64], folder: Path, max_bytes: int, path: Path) -> PairRun:
    """Write (number, least number of its set), sorted, for all numbers that are not the least of their sets.

    `pairs` are uint64 (N, 2) in pieces; the two numbers of a pair differ and belong to one set. `folder` is for
    temporary files and is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Every pair has the greater number first.
    star = write_pairs(folder / "star-0.pairs", (np.sort(piece, axis=1)[:, ::-1] for piece in pairs))
    turn, has_changed = 0, True
    while has_changed:
        both_ways = PairSorter(_empty(folder / "large"), max_bytes // 2)
        for piece in star.pieces():
            # Each number needs its neighbours on both sides.
            both_ways.add(piece)
            both_ways.add(piece[:, ::-1])
        downwards = PairSorter(_empty(folder / "small"), max_bytes // 2)
        large = _large_star(both_ways.sorted(), downwards.add)
        turn += 1
        done = star.path
        star, small = _small_star(downwards, folder, folder / f"star-{turn}.pairs", max_bytes // 2)
        done.unlink()
        # If neither step changes a pair, every number points to the least of its set.
        has_changed = large or small
    path.parent.mkdir(parents=True, exist_ok=True)
    result = write_pairs(path, star.pieces())
    shutil.rmtree(folder)
    return result


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _large_star(neighbours: Iterator[U64], take: Callable[[U64], None]) -> bool:
    """Join the greater neighbours of each number to the least of it and its neighbours. Return True if a pair
    changed."""
    has_changed = False
    for pairs, least, _ in least_of_firsts(neighbours):
        own, other = pairs[:, 0], pairs[:, 1]
        centre = np.minimum(least, own)
        # Lesser neighbours handle this edge on their side.
        is_greater = other > own
        take(np.stack([other[is_greater], centre[is_greater]], axis=1))
        has_changed |= bool((centre[is_greater] != own[is_greater]).any())
    return has_changed


def _small_star(downwards: PairSorter, folder: Path, path: Path, max_bytes: int) -> tuple[PairRun, bool]:
    """Join each number and its lesser neighbours to the least of these. Return the new pairs, and True if one
    changed."""
    result = PairSorter(_empty(folder / "result"), max_bytes)
    has_changed = False
    for pairs, least, is_first in least_of_firsts(downwards.sorted()):
        own, other = pairs[:, 0], pairs[:, 1]
        is_other = other != least
        result.add(np.stack([other[is_other], least[is_other]], axis=1))
        result.add(np.stack([own[is_first], least[is_first]], axis=1))
        has_changed |= bool(is_other.any())
    return write_pairs(path, result.sorted()), has_changed
