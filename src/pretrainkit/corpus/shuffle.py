"""Sort documents globally by 64-bit keys, on disk, in bounded memory.

Pass 1 (`RunWriter`) collects encoded documents until its share of memory is full, sorts them by key and writes a *run*:
the documents, and an index of their keys and ends. Pass 2 (`cut_positions`, `gather`) finds the beginning of each
output shard in each run, by bisection over key values, and merges the slices. Each pass reads and writes each document
once.

A document's key is a bijection of its identity (file index, position in that file) that depends on the seed. So the
order is a pure function of the seed and the input, and does not depend on run sizes, memory or workers. Without a seed
the key is the identity itself, which gives the input order.

Dimensions: R runs, D documents of a run, K cuts.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrainkit.corpus.shard_writer import ShardWriter
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.rng import fold, stream_key

_FILE_BITS, _POSITION_BITS = 23, 40  # the highest bit stays free for `duplicates`
_RECORD_OVERHEAD_BYTES = 72
"""Memory of one buffered record besides its text: identity, key, start, end, order, and sorted copies of these."""
_PAIRS = 4096

U64 = NDArray[np.uint64]


def identity(file_index: int, position: int) -> int:
    """Return the number of a document in its corpus: the file in the high bits, the position in the low bits. Raises
    DataError if there are more than 2**23 files, or 2**40 documents in one file."""
    if file_index >> _FILE_BITS or position >> _POSITION_BITS:
        raise DataError(
            f"document {position} of file {file_index} cannot be numbered: a corpus has at most {1 << _FILE_BITS} "
            f"files with {1 << _POSITION_BITS} documents each\n  join small files, or build the corpus in parts"
        )
    return file_index << _POSITION_BITS | position


def order_keys(identities: U64, seed: int | None) -> U64:
    """Map identities (D,) to sort keys (D,), one to one. The seed None keeps the order."""
    return identities if seed is None else fold(stream_key(seed, "corpus.shuffle"), identities)


@dataclass(frozen=True)
class Run:
    """Documents on disk, sorted by key. `PATH` has the documents, `PATH.index` their keys and ends (in bytes) as uint64
    (2, D)."""

    path: Path
    num_documents: int
    num_bytes: int

    @property
    def index_path(self) -> Path:
        return self.path.with_name(self.path.name + ".index")

    def index(self) -> U64:
        """Return the keys and ends, uint64 (2, D), memory-mapped."""
        return np.memmap(self.index_path, np.uint64, mode="r", shape=(2, self.num_documents))

    def is_whole(self) -> bool:
        """True if both files exist and have the right size."""
        sizes = {self.path: self.num_bytes, self.index_path: 16 * self.num_documents}
        return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


class RunWriter:
    """Collects encoded documents of several splits, and writes sorted runs when they reach `max_bytes`.

    Each split has one buffer with its documents one after another, so that its memory is freed as a whole. Millions of
    small objects would fragment the memory.
    """

    def __init__(self, folder: Path, seed: int | None, max_bytes: int) -> None:
        self.folder, self.seed, self.max_bytes = folder, seed, max_bytes
        self.runs: dict[str, list[Run]] = {}
        self._buffers: dict[str, _Buffer] = {}
        self._held_bytes = 0

    def add(self, split: str, identity: int, record: bytes) -> None:
        """Add one encoded document, with its line feed."""
        size = len(record) + _RECORD_OVERHEAD_BYTES
        if self._held_bytes + size > self.max_bytes:
            self.spill()
        if split not in self._buffers:
            pages = mmap(-1, max(self.max_bytes, len(record), 1))
            self._buffers[split] = _Buffer(pages, array("Q"), array("Q"))
        self._buffers[split].add(identity, record)
        self._held_bytes += size

    def spill(self) -> None:
        """Write the collected documents, one run per split."""
        for split, buffer in self._buffers.items():
            runs = self.runs.setdefault(split, [])
            path = self.folder / f"{split}-{len(runs):05d}.run"
            runs.append(_write_run(path, buffer, self.seed))
        self._buffers, self._held_bytes = {}, 0


@dataclass
class _Buffer:
    """Documents in the order of their arrival. The pages of `data` take no memory until they are written."""

    data: mmap
    identities: "array[int]"
    ends: "array[int]"

    def add(self, identity: int, record: bytes) -> None:
        start = self.ends[-1] if self.ends else 0
        end = start + len(record)
        self.data[start:end] = record
        self.identities.append(identity)
        self.ends.append(end)


def _write_run(path: Path, buffer: _Buffer, seed: int | None) -> Run:
    keys = order_keys(np.frombuffer(buffer.identities, np.uint64), seed)
    ends = np.frombuffer(buffer.ends, np.uint64).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    order = np.argsort(keys, kind="stable")
    with memoryview(buffer.data) as view, atomic_file(path) as file:
        file.writelines(view[start:end] for start, end in _pairs(starts[order], ends[order]))
    run = Run(path, len(order), int(ends[-1]))
    with atomic_file(run.index_path) as file:
        file.write(keys[order].tobytes())
        # The ends in the new order are cumulative lengths.
        file.write(np.cumsum((ends - starts)[order]).astype(np.uint64).tobytes())
    return run


def _pairs(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield pairs from both arrays as Python integers, converted a few thousand at a time."""
    for first in range(0, len(starts), _PAIRS):
        part = slice(first, first + _PAIRS)
        yield from zip(starts[part].tolist(), ends[part].tolist(), strict=True)


def cut_positions(keys: Sequence[U64], ranks: Sequence[int]) -> NDArray[np.int64]:
    """Return where to cut each run so that the parts before the cuts have the `ranks` smallest keys of all runs.

    Args:
        keys: R sorted arrays (D,); no key occurs twice.
        ranks: K numbers between 0 and the total number of keys.

    Returns:
        int64 (R, K).
    """
    ranks_K = np.asarray(ranks, np.int64)
    low = np.zeros(len(ranks_K), np.uint64)
    high = np.full(len(ranks_K), np.iinfo(np.uint64).max, np.uint64)
    # The key of rank r is the largest value below which there are at most r keys. A rank after the last key ends at the
    # largest uint64, which is handled below.
    while (low < high).any():
        # The middle is rounded up, so that the span shrinks, and no sum exceeds 2**64.
        middle = low + (high - low) // np.uint64(2) + np.uint64(1)
        middle = np.where(low < high, middle, high)
        below = sum((np.searchsorted(run, middle, side="left") for run in keys), np.zeros(len(ranks_K), np.int64))
        fits = below <= ranks_K
        low = np.where(fits, middle, low)
        high = np.where(fits, high, middle - np.uint64(1))
    total = sum(len(run) for run in keys)
    cuts = np.empty((len(keys), len(ranks_K)), np.int64)
    for row, run in enumerate(keys):
        cuts[row] = np.where(ranks_K >= total, len(run), np.searchsorted(run, low, side="left"))
    return cuts


Part = tuple[Run, int, int]
"""A run, its first document in the part, and the document after the last."""


def parts_between(runs: Sequence[Run], start: Iterable[int], stop: Iterable[int]) -> list[Part]:
    """Return the documents `start[r]:stop[r]` of every run r, without empty parts."""
    return [(run, int(a), int(b)) for run, a, b in zip(runs, start, stop, strict=True) if b > a]


def save_cuts(folder: Path, split: str, runs: Sequence[Run], cuts_RK: NDArray[np.int64]) -> None:
    """Store the runs of a split and the result of `cut_positions` in `folder`, for `load_parts`."""
    with atomic_file(folder / f"{split}.json") as file:
        file.write(json.dumps([[str(run.path), run.num_documents, run.num_bytes] for run in runs]).encode())
    with atomic_file(folder / f"{split}.npy") as file:
        np.save(file, cuts_RK.T)


def load_parts(folder: Path, split: str, index: int) -> list[Part]:
    """Return the parts of all runs between the cuts number `index` and `index + 1`."""
    stored = json.loads((folder / f"{split}.json").read_bytes())
    runs = [Run(Path(path), num_documents, num_bytes) for path, num_documents, num_bytes in stored]
    start_R, stop_R = np.load(folder / f"{split}.npy", mmap_mode="r")[index : index + 2]
    return parts_between(runs, start_R, stop_R)


def gather(parts: Sequence[Part], writer: ShardWriter, max_bytes: int) -> None:
    """Write the documents in the order of their keys, with at most about `max_bytes` in memory."""
    indexes = [run.index() for run, _, _ in parts]
    num_documents = sum(b - a for _, a, b in parts)
    num_bytes = sum(_span(index, a, b)[1] for index, (_, a, b) in zip(indexes, parts, strict=True))
    num_bytes += num_documents * _RECORD_OVERHEAD_BYTES
    if num_bytes <= max_bytes or num_documents <= 1:
        _gather_at_once(parts, indexes, writer)
        return
    # One more piece than needed on average: pieces are cut by number of documents, and some documents are longer.
    num_pieces = min(num_documents, -(-num_bytes // max_bytes) + 1)
    ranks = [num_documents * piece // num_pieces for piece in range(num_pieces + 1)]
    cuts = cut_positions([index[0, a:b] for index, (_, a, b) in zip(indexes, parts, strict=True)], ranks)
    # Convert positions in the slices to positions in the runs.
    cuts += np.array([[a] for _, a, _ in parts])
    runs = [run for run, _, _ in parts]
    for piece in range(num_pieces):
        gather(parts_between(runs, cuts[:, piece], cuts[:, piece + 1]), writer, max_bytes)


def _span(index: U64, start: int, stop: int) -> tuple[int, int]:
    """Return the first byte and the number of bytes of documents start:stop."""
    first = int(index[1, start - 1]) if start else 0
    return first, int(index[1, stop - 1]) - first


def _gather_at_once(parts: Sequence[Part], indexes: Sequence[U64], writer: ShardWriter) -> None:
    spans = [_span(index, start, stop) for index, (_, start, stop) in zip(indexes, parts, strict=True)]
    # A separate mapping is returned to the system as soon as it is freed, unlike memory of the allocator.
    view = memoryview(mmap(-1, max(1, sum(num_bytes for _, num_bytes in spans))))
    keys, ends, filled = [], [], 0
    for (run, start, stop), index, (first, num_bytes) in zip(parts, indexes, spans, strict=True):
        with open(run.path, "rb", buffering=0) as file:
            file.seek(first)
            done = 0
            while done < num_bytes:
                count = file.readinto(view[filled + done : filled + num_bytes])
                if not count:
                    raise DataError(
                        f"{run.path} is shorter than its index says\n  remove the output folder and start again"
                    )
                done += count
        keys.append(index[0, start:stop])
        # Convert ends in the run's file to ends in `view`.
        ends.append(index[1, start:stop].astype(np.int64) - first + filled)
        filled += num_bytes
    if not keys:
        return
    all_ends = np.concatenate(ends)
    starts = np.concatenate([[0], all_ends[:-1]])
    order = np.argsort(np.concatenate(keys), kind="stable")
    for start, stop in _pairs(starts[order], all_ends[order]):
        writer.write(view[start:stop])
    writer.settle()
