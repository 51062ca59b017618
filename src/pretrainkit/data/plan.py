"""Split a batch into ranks, microbatches and packed rows. All functions are pure: every rank computes the same
plan without communication."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.permutation import Ints
from pretrainkit.data.source import Records
from pretrainkit.errors import ConfigError, DataError


def rank_rows(batch_size: int, rank: int, world_size: int) -> slice:
    """Return the contiguous rows of a batch that `rank` computes. Raises ConfigError if the batch cannot be split
    evenly."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} does not exist among {world_size} ranks")
    if batch_size % world_size:
        raise ConfigError(f"a batch of {batch_size} examples cannot be split over {world_size} ranks")
    num_rows = batch_size // world_size
    return slice(rank * num_rows, (rank + 1) * num_rows)


def even_microbatches(num_rows: int, microbatch_size: int | None) -> list[slice]:
    """Split the rows of a rank into microbatches of equal size (None: one microbatch). Raises ConfigError if the rows
    cannot be split evenly."""
    size = num_rows if microbatch_size is None else microbatch_size
    if size < 1 or num_rows % size:
        raise ConfigError(f"{num_rows} examples of one rank cannot be split into microbatches of {microbatch_size}")
    return [slice(start, start + size) for start in range(0, num_rows, size)]


def token_microbatches(
    lengths: Ints, world_size: int, capacity: int, records: Records | None = None
) -> list[list[slice]]:
    """Return microbatches of at most `capacity` tokens for examples that are concatenated.

    Every rank distributes its examples over microbatches in order. All ranks get the same number of microbatches (the
    last ones may be empty), so that collective operations match. Raises DataError if an example is longer than a
    microbatch.

    Args:
        lengths: (B,) tokens of each example of the batch.
        world_size: Number of ranks; divides B.
        records: Identify an example that is too long in the message.

    Returns:
        The microbatches of each rank, as slices of the rows of the batch.
    """
    longest = int(lengths.max(initial=0))
    if longest > capacity:
        row = int(np.flatnonzero(lengths > capacity)[0])
        name = f"row {row} of the batch"
        if records is not None:
            name = f"example {records.index[row]} of component {records.source[row]}"
        raise DataError(
            f"{name} has {lengths[row]} tokens, which exceeds the microbatch size of {capacity} tokens\n"
            f"  allow at least {longest} tokens per microbatch, or shorten the examples"
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
    """Position of each example in rows of fixed length."""

    row: Ints
    """(N,) index of the row."""
    offset: Ints
    """(N,) first token within the row."""
    num_rows: int


def pack_rows(lengths: NDArray[np.integer] | Sequence[int], row_length: int, window: int = 4096) -> Packing:
    """Pack examples into rows by best fit decreasing: longest first, each into the fullest row with enough space.

    Windows of consecutive examples are packed independently, so a row does not depend on examples after its window.
    Raises DataError if an example is empty or longer than a row.

    Args:
        lengths: (N,) tokens of each example, at least 1.
        window: Number of examples that are packed together. A larger window needs less padding and mixes more distant
            examples.
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
    """Pack one window. `rows_with[free]` lists the rows with that many free tokens; bit r of `free_bits` is set if a
    row has r free tokens. The fullest row that fits is therefore the lowest set bit at or above the length."""
    rows_with: list[list[int]] = [[] for _ in range(row_length + 1)]
    free_bits = num_rows = 0
    row_of, offset_of = [0] * len(lengths), [0] * len(lengths)
    descending = np.argsort(-lengths, kind="stable")
    for example, length in zip(descending.tolist(), lengths[descending].tolist(), strict=True):
        fitting = free_bits >> length
        if fitting:
            free = length + (fitting & -fitting).bit_length() - 1
            row = rows_with[free].pop()
            if not rows_with[free]:
                free_bits ^= 1 << free
        else:
            free, row = row_length, num_rows
            num_rows += 1
        row_of[example], offset_of[example] = row, row_length - free
        free -= length
        if free:
            rows_with[free].append(row)
            free_bits |= 1 << free
    return np.array(row_of, np.int64), offset_of, num_rows
