"""Sort pairs of 64-bit numbers on disk in bounded memory. The search for duplicates uses it.

Dimensions: N pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrainkit.files.manifest import atomic_file

U64 = NDArray[np.uint64]
PAIR_BYTES = 16
_HELD_COPIES = 4
"""Copies of the pairs in memory while they are sorted: the pairs, their order, the sorted pairs, and the comparison."""
_LEAST_BLOCK = 1024
"""Minimum number of pairs of a run that are read at once. If one such block per run exceeds the memory, runs are merged
in several steps."""


_NO_PAIRS = np.empty((0, 2), np.uint64)


@dataclass(frozen=True)
class PairRun:
    """Sorted pairs in a file, from byte `begin` on."""

    path: Path
    num_pairs: int
    begin: int = 0

    def pieces(self, size: int = 1 << 14) -> Iterator[U64]:
        """Yield all pairs as uint64 (N, 2), `size` at a time."""
        for start in range(0, self.num_pairs, size):
            count = 2 * min(size, self.num_pairs - start)
            yield np.fromfile(self.path, np.uint64, count, offset=self.begin + start * PAIR_BYTES).reshape(-1, 2)


def sorted_pairs(pairs_N2: U64) -> U64:
    """Sort by first, then by second number, and drop repeated pairs."""
    # lexsort's last key is the primary one.
    pairs_N2 = pairs_N2[np.lexsort((pairs_N2[:, 1], pairs_N2[:, 0]))]
    is_new = np.ones(len(pairs_N2), bool)
    is_new[1:] = (pairs_N2[1:] != pairs_N2[:-1]).any(axis=1)
    return pairs_N2[is_new]


class PairSorter:
    """Sorts pairs and drops repeated ones. Pairs beyond `max_bytes` are written to disk."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self._max_bytes = folder, max_bytes
        self._max_pairs = max(_LEAST_BLOCK, max_bytes // (PAIR_BYTES * _HELD_COPIES))
        self._held: list[U64] = []
        self._num_held = 0
        self._runs: list[PairRun] = []

    def add(self, pairs_N2: U64) -> None:
        """Add pairs in any order."""
        while len(pairs_N2):
            part = pairs_N2[: self._max_pairs - self._num_held]
            self._held.append(part.copy())  # a view would keep the whole array in memory
            self._num_held += len(part)
            pairs_N2 = pairs_N2[len(part) :]
            if self._num_held == self._max_pairs:
                self._spill()

    def _spill(self) -> None:
        path = self.folder / f"sorted-{len(self._runs):05d}.pairs"
        self._runs.append(write_pairs(path, iter([self._take()])))

    def _take(self) -> U64:
        pairs = sorted_pairs(np.concatenate([_NO_PAIRS, *self._held]))
        self._held, self._num_held = [], 0
        return pairs

    def sorted(self) -> Iterator[U64]:
        """Yield all pairs in pieces. May be called once."""
        if not self._runs:
            yield self._take()
            return
        if self._held:
            self._spill()
        yield from merged(self._runs, self.folder, self._max_bytes)


def write_pairs(path: Path, pieces: Iterator[U64]) -> PairRun:
    """Write sorted pieces to a file, one after another."""
    num = 0
    with atomic_file(path) as file:
        for piece in pieces:
            file.write(np.ascontiguousarray(piece).tobytes())
            num += len(piece)
    return PairRun(path, num)


def merged(runs: Sequence[PairRun], folder: Path, max_bytes: int) -> Iterator[U64]:
    """Yield the pairs of all runs sorted and without repetitions, in pieces. `folder` is for temporary files."""
    max_pairs = max(2 * _LEAST_BLOCK, max_bytes // (PAIR_BYTES * _HELD_COPIES))
    at_once = max(2, max_pairs // _LEAST_BLOCK)
    level = 0
    while len(runs) > at_once:
        joined = []
        for start in range(0, len(runs), at_once):
            path = folder / f"level-{level}-{start:05d}.pairs"
            joined.append(write_pairs(path, _merged_at_once(runs[start : start + at_once], max_pairs)))
        runs, level = joined, level + 1
    return _merged_at_once(runs, max_pairs)


def _merged_at_once(runs: Sequence[PairRun], max_pairs: int) -> Iterator[U64]:
    # A block is refilled when half of it is used, so it has at most 1.5 times the pairs that are read at once.
    size = max(1, max_pairs * 2 // (3 * max(1, len(runs))))
    streams = [run.pieces(size) for run in runs]
    blocks = [next(stream, _NO_PAIRS) for stream in streams]
    while any(map(len, blocks)):
        # All pairs up to the least end of a block are in memory: the unread pairs of any run are greater.
        bound = min((block[-1, 0], block[-1, 1]) for block in blocks if len(block))
        ends = [_num_up_to(block, bound) for block in blocks]
        yield sorted_pairs(np.concatenate([block[:end] for block, end in zip(blocks, ends)]))
        blocks = [block[end:] for block, end in zip(blocks, ends)]
        for number, stream in enumerate(streams):
            if 2 * len(blocks[number]) <= size:
                blocks[number] = np.concatenate([blocks[number], next(stream, _NO_PAIRS)])


def _num_up_to(pairs_N2: U64, bound: tuple[np.uint64, np.uint64]) -> int:
    """Count the sorted pairs that are at most `bound`."""
    first = pairs_N2[:, 0]
    # Rows low to high have the bound's first number. Among these, count the rows up to its second number.
    low, high = np.searchsorted(first, bound[0], "left"), np.searchsorted(first, bound[0], "right")
    return int(low + np.searchsorted(pairs_N2[low:high, 1], bound[1], "right"))


def least_of_firsts(pieces: Iterator[U64]) -> Iterator[tuple[U64, U64, NDArray[np.bool_]]]:
    """Group sorted pairs by their first number. For each piece, yield the pairs, the least second number of each pair's
    group, and True where a pair is the first of its group."""
    before: tuple[np.uint64, np.uint64] | None = None
    for pairs in pieces:
        if not len(pairs):
            continue
        is_first = np.ones(len(pairs), bool)
        is_first[1:] = pairs[1:, 0] != pairs[:-1, 0]
        is_first[0] = before is None or pairs[0, 0] != before[0]
        starts = np.flatnonzero(is_first)
        least = pairs[starts, 1]
        # If the piece begins within a group, the group's least number comes from the previous piece.
        if not is_first[0]:
            assert before is not None
            starts, least = np.concatenate([[0], starts]), np.concatenate([[before[1]], least])
        # Repeat the value of each group for all its pairs: a group ends where the next one starts.
        least_N = np.repeat(least, np.diff(starts, append=len(pairs)))
        before = (pairs[-1, 0], least_N[-1])
        yield pairs, least_N, is_first
