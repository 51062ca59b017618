"""How a global batch is cut into ranks, microbatches and packed rows: pure functions that every rank computes alike,
without communication."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.permutation import Ints
from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError


def rank_rows(batch_size: int, rank: int, world_size: int) -> slice:
    """The contiguous rows of the global batch that `rank` works on. Raises ConfigError where the batch cannot be split
    evenly."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} does not exist among {world_size} ranks")
    if batch_size % world_size:
        raise ConfigError(f"a batch of {batch_size} examples cannot be split over {world_size} ranks")
    num_rows = batch_size // world_size
    return slice(rank * num_rows, (rank + 1) * num_rows)


def even_microbatches(num_rows: int, microbatch_size: int | None) -> list[slice]:
    """A rank's rows in microbatches of equal size; None: all in one. Raises ConfigError where the rows cannot be split
    evenly."""
    size = num_rows if microbatch_size is None else microbatch_size
    if size < 1 or num_rows % size:
        raise ConfigError(f"{num_rows} examples of one rank cannot be split into microbatches of {microbatch_size}")
    return [slice(start, start + size) for start in range(0, num_rows, size)]


def token_microbatches(
    lengths: Ints, world_size: int, capacity: int, records: Records | None = None
) -> list[list[slice]]:
    """Microbatches of at most `capacity` tokens for examples that are laid one after another.

    Every rank fills its examples into microbatches in order. All ranks get as many microbatches as the one that needs
    most, the last ones maybe empty, so that collective operations match. Raises DataError where an example is longer
    than a microbatch.

    Args:
        lengths: (B,) tokens of each example of the global batch.
        world_size: Number of ranks; divides B.
        records: To name an example that is too long.

    Returns:
        For each rank its microbatches, as slices of the rows of the global batch.
    """
    longest = int(lengths.max(initial=0))
    if longest > capacity:
        row = int(np.flatnonzero(lengths > capacity)[0])
        name = f"row {row} of the batch"
        if records is not None:
            name = f"example {records.index[row]} of component {records.source[row]}"
        raise DataError(
            f"{name} has {lengths[row]} tokens, more than a microbatch of {capacity} tokens holds\n"
            f"  allow at least {longest} tokens per microbatch, or cut the examples shorter"
        )
    by_rank = []
    for rank in range(world_size):
        rows = rank_rows(len(lengths), rank, world_size)
        ends = np.cumsum(lengths[rows])
        slices, start = [], 0
        while start < len(ends):
            used = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, used + capacity, side="right"))
            slices.append(slice(rows.start + start, rows.start + stop))
            start = stop
        by_rank.append(slices)
    most = max(len(slices) for slices in by_rank)
    for rank, slices in enumerate(by_rank):
        end = (rank + 1) * len(lengths) // world_size
        slices += [slice(end, end)] * (most - len(slices))
    return by_rank


@dataclass(frozen=True)
class Packing:
    """Where each example lies in rows of fixed length."""

    row: Ints
    """(N,) index of the row."""
    offset: Ints
    """(N,) first token within the row."""
    num_rows: int


def pack_rows(lengths: NDArray[np.integer] | Sequence[int], row_length: int, window: int = 4096) -> Packing:
    """Pack examples into rows by best fit decreasing: longest first, each into the fullest row that still has room.

    Windows of consecutive examples are packed independently, so a row never depends on what comes after its window.
    Raises DataError where an example is empty or longer than a row.

    Args:
        lengths: (N,) tokens of each example, at least 1.
        window: Examples that are packed together. More fill rows better and mix examples from farther apart.
    """
    num_tokens: Ints = np.asarray(lengths, np.int64)
    wrong = np.flatnonzero((num_tokens < 1) | (num_tokens > row_length))
    if len(wrong):
        raise DataError(
            f"example {wrong[0]} has {num_tokens[wrong[0]]} tokens and cannot be packed into rows of {row_length}\n"
            f"  {len(wrong)} of {len(num_tokens)} examples are empty or too long; drop them or cut them before packing"
        )
    rows, offsets = np.empty(len(num_tokens), np.int64), np.empty(len(num_tokens), np.int64)
    num_rows = 0
    for start in range(0, len(num_tokens), window):
        part = slice(start, start + window)
        row, offset, added = _best_fit_decreasing(num_tokens[part], row_length)
        rows[part], offsets[part] = row + num_rows, offset
        num_rows += added
    return Packing(rows, offsets, num_rows)


def _best_fit_decreasing(lengths: Ints, row_length: int) -> tuple[Ints, list[int], int]:
    """Open rows stand in `rows_with[room]`; bit r of `rooms` says whether there is one with r tokens of room, so the
    tightest row that fits is the lowest bit at or above the length."""
    rows_with: list[list[int]] = [[] for _ in range(row_length + 1)]
    rooms = num_rows = 0
    row_of, offset_of = [0] * len(lengths), [0] * len(lengths)
    descending = np.argsort(-lengths, kind="stable")
    for example, length in zip(descending.tolist(), lengths[descending].tolist(), strict=True):
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = rows_with[room].pop()
            if not rows_with[room]:
                rooms ^= 1 << room
        else:
            room, row = row_length, num_rows
            num_rows += 1
        row_of[example], offset_of[example] = row, row_length - room
        room -= length
        if room:
            rows_with[room].append(row)
            rooms |= 1 << room
    return np.array(row_of, np.int64), offset_of, num_rows
