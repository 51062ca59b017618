"""Tables of word counts: in memory, compiled or in Python. Larger tables are sorted runs on disk, which are merged.

The compiled table is `_words.c`, available if the package was installed with a compiler. The Python table gives equal
rows.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.files.sources import whole_lines

Order = Literal["count", "bytes", "sabertooth"]
"""count: most frequent first, then by bytes. bytes: by the words' bytes. sabertooth: the order of Sabertooth's trie, by
bytes with the low half of each byte first."""

_MAX_MERGED_RUNS = 200
_SORTED_ROW_BYTES = 280
"""Memory of a row besides its word while a Python list of rows is sorted: tuple, bytes, int, key."""
TOO_MANY = "a word count does not fit into 64 bits"
# Sabertooth's trie branches on four bits at a time, the low ones first.
_SWAP_NIBBLES = bytes((byte & 15) << 4 | byte >> 4 for byte in range(256))
_SEPARATORS_TO_SPACE = bytes.maketrans(b"\t\n\r", b"   ")


def split_words(data: bytes) -> list[bytes]:
    """Return the words of `data`, in order."""
    if b"\v" in data or b"\f" in data:  # bytes.split() would split there
        return [word for word in data.translate(_SEPARATORS_TO_SPACE).split(b" ") if word]
    return data.split()


class PythonTable:
    """Words and their counts in pure Python. The compiled table has the same methods."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        return 140 * len(self._counts)

    def update(self, data: bytes) -> None:
        """Count the words of `data`."""
        self._counts.update(split_words(data))

    def merge(self, data: bytes) -> int:
        """Add the rows before the first malformed one, and return their number of bytes. Raises OverflowError if a
        count exceeds 64 bits."""
        taken = 0
        for row in data.split(b"\n")[:-1]:
            word, tab, count = row.partition(b"\t")
            if not (word and tab and count.isdigit() and len(count) <= 20 and 0 < int(count) < 1 << 64):
                break
            self._counts[word] += int(count)
            if self._counts[word] >> 64:
                raise OverflowError(TOO_MANY)
            taken += len(row) + 1
        return taken

    def dump(self, write: Callable[[bytes], Any], order: str) -> int:
        """Pass the rows in `order` to `write`, in pieces. Return the sum of the counts."""
        rows = sorted(self._counts.items(), key=order_key(order))
        for start in range(0, len(rows), 10_000):
            write(b"".join(b"%b\t%d\n" % row for row in rows[start : start + 10_000]))
        return self._counts.total()


@contextmanager
def explained_overflow() -> Iterator[None]:
    """Turn an OverflowError of a count into a DataError. Only input tables can have counts beyond 64 bits."""
    try:
        yield
    except OverflowError as error:
        raise DataError(f"{error}\n  correct or remove the input table (.tsv) with this count") from error


def new_table() -> PythonTable:
    """Return an empty table, compiled if available."""
    try:
        from pretrainkit.corpus._words import WordTable
    except ImportError:
        return PythonTable()
    return WordTable()


def order_key(order: str) -> Callable[[tuple[bytes, int]], Any]:
    """Return the sort key of rows (word, count)."""
    match order:
        case "count":
            return lambda row: (-row[1], row[0])
        case "sabertooth":
            return lambda row: row[0].translate(_SWAP_NIBBLES)
        case "bytes":
            return itemgetter(0)
    raise ValueError(f"order {order} is not one of count, bytes, sabertooth")


class Tally:
    """Table that is written to a sorted run when it exceeds its share of memory."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.table = new_table()
        self.runs: list[Path] = []
        self._folder = folder
        # Growing needs the old and the new slots, and writing needs an array of rows besides the table.
        self._max_bytes = memory_bytes // 3

    def update(self, data: bytes) -> None:
        """Count the words of `data`."""
        self.table.update(data)
        if self.table.num_bytes > self._max_bytes:
            self.spill()

    def spill(self) -> None:
        """Write the table as a run sorted by bytes, and start a new table."""
        if len(self.table):
            path = self._folder / f"run-{len(self.runs):05d}.tsv"
            with atomic_file(path) as file:
                self.table.dump(file.write, "bytes")
            self.runs.append(path)
            self.table = new_table()


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yield a file in pieces of a megabyte."""
    with open(path, "rb") as file:
        yield from iter(lambda: file.read(1 << 20), b"")


def write_merged(
    table: PythonTable,
    runs: Sequence[Path],
    write: Callable[[bytes], Any],
    order: Order,
    folder: Path,
    memory_bytes: int,
    merged: Callable[[int], None],
) -> int:
    """Add up `table` and sorted `runs`, and pass the rows in `order` to `write`. Return the sum of all counts."""
    for path in runs:
        for chunk, _ in whole_lines(chunks_of(path)):
            table.merge(chunk)
            if table.num_bytes > memory_bytes:
                return _write_merged_on_disk(runs, write, order, folder, memory_bytes)
        merged(1)
    return table.dump(write, order)


def _write_merged_on_disk(
    runs: Sequence[Path], write: Callable[[bytes], Any], order: Order, folder: Path, memory_bytes: int
) -> int:
    """Do the same as `write_merged` for runs that do not fit into memory together: merge sorted files, then sort the
    sums again."""
    level = 0
    runs = list(runs)
    while len(runs) > _MAX_MERGED_RUNS:
        merged = []
        for start in range(0, len(runs), _MAX_MERGED_RUNS):
            rows = _summed(runs[start : start + _MAX_MERGED_RUNS])
            merged.append(_write_part(rows, folder / f"level-{level}-{start:05d}.tsv"))
        runs, level = merged, level + 1
    rows = _summed(runs)
    if order == "bytes":
        return _write_rows(rows, write)
    key = order_key(order)
    parts: list[Path] = []
    held: list[tuple[bytes, int]] = []
    held_bytes = 0
    for row in rows:
        held.append(row)
        held_bytes += len(row[0]) + _SORTED_ROW_BYTES
        if held_bytes > memory_bytes:
            parts.append(_write_part(sorted(held, key=key), folder / f"order-{len(parts):05d}.tsv"))
            held, held_bytes = [], 0
    parts.append(_write_part(sorted(held, key=key), folder / f"order-{len(parts):05d}.tsv"))
    return _write_rows(heapq.merge(*map(_read_rows, parts), key=key), write)


def _write_part(rows: Iterable[tuple[bytes, int]], path: Path) -> Path:
    with atomic_file(path) as file:
        _write_rows(rows, file.write)
    return path


def _read_rows(path: Path) -> Iterator[tuple[bytes, int]]:
    with open(path, "rb") as file:
        for row in file:
            word, _, count = row.rpartition(b"\t")
            yield word, int(count)


def _summed(runs: Sequence[Path]) -> Iterator[tuple[bytes, int]]:
    merged = heapq.merge(*map(_read_rows, runs), key=itemgetter(0))
    for word, rows in groupby(merged, key=itemgetter(0)):
        total = sum(count for _, count in rows)
        if total >> 64:
            raise OverflowError(TOO_MANY)
        yield word, total


def _write_rows(rows: Iterable[tuple[bytes, int]], write: Callable[[bytes], Any]) -> int:
    total = 0
    for word, count in rows:
        write(b"%b\t%d\n" % (word, count))
        total += count
    return total
