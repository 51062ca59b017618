"""A global sort of documents by 64-bit keys in bounded memory, on disk.

Pass 1 (`RunWriter`) gathers encoded documents until its share of memory is full, sorts them by key and writes a *run*:
the documents, and an index of their keys and ends. Pass 2 (`cut_positions`, `gather`) finds where each output shard
begins in each run, by bisection over key values, and merges the slices. Each document is read and written once per
pass.

A document's key is a bijection of its identity (file index, position in that file) under the seed, so the order is a
pure function of seed and input: run sizes, memory and workers cannot change it. Without a seed the key is the identity
itself: the input order.

Dimensions: R runs, D documents of a run, K cuts.
"""

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

_FILE_BITS, _POSITION_BITS = 23, 40  # the highest bit stays free, for those who compare documents
_RECORD_OVERHEAD_BYTES = 72
"""Of one buffered record besides its text: identity, key, start, end, order, and copies in that order."""
_PAIRS = 4096

U64 = NDArray[np.uint64]


def identity(file_index: int, position: int) -> int:
    """The number of a document in its corpus: file, then place in the file. Raises DataError where there are more
    than 2**23 files, or 2**40 documents in one."""
    if file_index >> _FILE_BITS or position >> _POSITION_BITS:
        raise DataError(
            f"document {position} of file {file_index} cannot be numbered\n"
            f"  at most {1 << _FILE_BITS} files with {1 << _POSITION_BITS} documents: join small files, or build the "
            "corpus in parts"
        )
    return file_index << _POSITION_BITS | position


def order_keys(identities: U64, seed: int | None) -> U64:
    """Identities (D,) to sort keys (D,), one to one; None keeps the order."""
    return identities if seed is None else fold(stream_key(seed, "corpus.shuffle"), identities)


@dataclass(frozen=True)
class Run:
    """Documents on disk, sorted by key: `PATH` holds them, `PATH.index` uint64 (2, D): keys and ends (bytes)."""

    path: Path
    num_documents: int
    num_bytes: int

    @property
    def index_path(self) -> Path:
        return self.path.with_name(self.path.name + ".index")

    def index(self) -> U64:
        """uint64 (2, D), memory-mapped."""
        return np.memmap(self.index_path, np.uint64, mode="r", shape=(2, self.num_documents))

    def is_whole(self) -> bool:
        """True when both files are there with the right size."""
        sizes = {self.path: self.num_bytes, self.index_path: 16 * self.num_documents}
        return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


class RunWriter:
    """Gathers encoded documents of several splits and writes sorted runs whenever `max_bytes` are held.

    The documents of a split lie one after another in a buffer of its own, so that memory goes back whole; millions of
    small objects would leave the allocator with holes.
    """

    def __init__(self, folder: Path, seed: int | None, max_bytes: int) -> None:
        self.folder, self.seed, self.max_bytes = folder, seed, max_bytes
        self.runs: dict[str, list[Run]] = {}
        self._buffers: dict[str, _Buffer] = {}
        self._held_bytes = 0

    def add(self, split: str, identity: int, record: bytes) -> None:
        """Takes one encoded document, line feed included."""
        size = len(record) + _RECORD_OVERHEAD_BYTES
        if self._held_bytes + size > self.max_bytes:
            self.spill()
        if split not in self._buffers:
            pages = mmap(-1, max(self.max_bytes, len(record), 1))
            self._buffers[split] = _Buffer(pages, array("Q"), array("Q"))
        self._buffers[split].add(identity, record)
        self._held_bytes += size

    def spill(self) -> None:
        """Writes what is held, one run per split."""
        for split, buffer in self._buffers.items():
            runs = self.runs.setdefault(split, [])
            path = self.folder / f"{split}-{len(runs):05d}.run"
            runs.append(_write_run(path, buffer, self.seed))
        self._buffers, self._held_bytes = {}, 0


@dataclass
class _Buffer:
    """Documents in the order they came. The pages of `data` take memory only once they are written to."""

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
        # Ends in the new order are sums of lengths, not the old ends.
        file.write(np.cumsum((ends - starts)[order]).astype(np.uint64).tobytes())
    return run


def _pairs(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Both arrays side by side as Python integers, a few thousand at a time."""
    for first in range(0, len(starts), _PAIRS):
        part = slice(first, first + _PAIRS)
        yield from zip(starts[part].tolist(), ends[part].tolist(), strict=True)


def cut_positions(keys: Sequence[U64], ranks: Sequence[int]) -> NDArray[np.int64]:
    """Where each run must be cut so that the parts before the cuts hold the `ranks` smallest keys of all runs.

    Args:
        keys: R sorted arrays (D,); no key occurs twice.
        ranks: K numbers between 0 and the number of all keys.

    Returns:
        int64 (R, K).
    """
    wanted = np.asarray(ranks, np.int64)
    low = np.zeros(len(wanted), np.uint64)
    high = np.full(len(wanted), np.iinfo(np.uint64).max, np.uint64)
    # The largest value below which there are at most `rank` keys is the key of that rank itself. A rank behind the
    # last key ends at the largest uint64, which is handled below.
    while (low < high).any():
        # Rounded up, so that the span shrinks; written so that no sum goes beyond 2**64.
        middle = low + (high - low) // np.uint64(2) + np.uint64(1)
        middle = np.where(low < high, middle, high)
        below = sum((np.searchsorted(run, middle, side="left") for run in keys), np.zeros(len(wanted), np.int64))
        fits = below <= wanted
        low = np.where(fits, middle, low)
        high = np.where(fits, high, middle - np.uint64(1))
    total = sum(len(run) for run in keys)
    cuts = np.empty((len(keys), len(wanted)), np.int64)
    for row, run in enumerate(keys):
        cuts[row] = np.where(wanted >= total, len(run), np.searchsorted(run, low, side="left"))
    return cuts


Part = tuple[Run, int, int]
"""Run, first document, document after the last."""


def parts_between(runs: Sequence[Run], start: Iterable[int], stop: Iterable[int]) -> list[Part]:
    """The documents `start[r]:stop[r]` of every run r that has some there."""
    return [(run, int(a), int(b)) for run, a, b in zip(runs, start, stop, strict=True) if b > a]


def gather(parts: Sequence[Part], writer: ShardWriter, max_bytes: int) -> None:
    """Writes documents by their keys, holding at most about `max_bytes`."""
    indexes = [run.index() for run, _, _ in parts]
    num_documents = sum(b - a for _, a, b in parts)
    num_bytes = sum(_span(index, a, b)[1] for index, (_, a, b) in zip(indexes, parts, strict=True))
    num_bytes += num_documents * _RECORD_OVERHEAD_BYTES
    if num_bytes <= max_bytes or num_documents <= 1:
        _gather_at_once(parts, indexes, writer)
        return
    # One more than fit exactly: pieces are cut by number of documents, of which some are longer.
    num_pieces = min(num_documents, -(-num_bytes // max_bytes) + 1)
    ranks = [num_documents * piece // num_pieces for piece in range(num_pieces + 1)]
    cuts = cut_positions([index[0, a:b] for index, (_, a, b) in zip(indexes, parts, strict=True)], ranks)
    # From places in the slices to places in the runs.
    cuts += np.array([[a] for _, a, _ in parts])
    runs = [run for run, _, _ in parts]
    for piece in range(num_pieces):
        gather(parts_between(runs, cuts[:, piece], cuts[:, piece + 1]), writer, max_bytes)


def _span(index: U64, start: int, stop: int) -> tuple[int, int]:
    """First byte and number of bytes of documents start:stop."""
    first = int(index[1, start - 1]) if start else 0
    return first, int(index[1, stop - 1]) - first


def _gather_at_once(parts: Sequence[Part], indexes: Sequence[U64], writer: ShardWriter) -> None:
    spans = [_span(index, start, stop) for index, (_, start, stop) in zip(indexes, parts, strict=True)]
    # Pages of its own: they go back to the system at once, whatever the allocator thinks.
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
                        f"{run.path} is shorter than its index says\n  remove the output folder and start anew"
                    )
                done += count
        keys.append(index[0, start:stop])
        # From ends in the file of the run to ends in `view`.
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
