"""Sequences of different lengths, one after another in one array: a batch before it is laid out in rows.

Dimensions: B sequences, N tokens of all of them together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.subsets import slots
from pretrainkit.rng import Keys

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """B sequences."""

    values: NDArray[np.int32]
    """(N,) the tokens, sequence after sequence."""
    lengths: Ints
    """(B,) number of tokens of each sequence."""

    @cached_property
    def ends(self) -> Ints:
        """(B,) index in `values` after the last token of each sequence."""
        return np.cumsum(self.lengths)

    @property
    def begins(self) -> Ints:
        return self.ends - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.values[int(self.begins[index]) : int(self.ends[index])]

    def take_slots(self, is_kept: NDArray[np.bool_]) -> "Ragged":
        """Return the tokens where `is_kept` (N,) is True."""
        return kept(self.values, np.flatnonzero(is_kept), self.ends)

    def head(self, most: int) -> "Ragged":
        """Return the first `most` tokens of each sequence."""
        if not len(self) or int(self.lengths.max()) <= most:
            return self
        return self.take_slots(slots(self.lengths) < most)

    def with_end(self, eos: int) -> "Ragged":
        """Return each sequence with the token `eos` after it."""
        values = np.full(len(self.values) + len(self), eos, np.int32)
        is_own = np.ones(len(values), np.bool_)
        # The end mark of a sequence is moved by the number of end marks before it.
        is_own[self.ends + np.arange(len(self))] = False
        values[is_own] = self.values
        return Ragged(values, self.lengths + 1)


def kept(values: NDArray[np.int32], where: Ints, ends: Ints) -> Ragged:
    """Return the tokens at the ascending indices `where` of sequences that end at `ends`."""
    return Ragged(values[where], np.diff(np.searchsorted(where, ends), prepend=0))


def ragged(sequences: Sequence[Sequence[int] | NDArray[np.integer]]) -> Ragged:
    """Return separate sequences as one `Ragged`."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    values = [np.asarray(sequence, np.int32) for sequence in sequences]
    return Ragged(np.concatenate([np.empty(0, np.int32), *values]), lengths)


def below(draws: Keys, sizes: Ints) -> Ints:
    """Return a number of range(size) for each draw: the upper 32 bits of a product, which is faster than a
    remainder."""
    _32 = np.uint64(32)
    return ((draws >> _32) * sizes.astype(np.uint64) >> _32).astype(np.int64)


def constant(values: Sequence[int], num: int) -> Ragged:
    return Ragged(np.tile(np.asarray(values, np.int32), num), np.full(num, len(values), np.int64))


def joined(first: Ragged, second: Ragged) -> Ragged:
    """Return each sequence of `first`, followed by the sequence of `second` with the same index."""
    lengths = first.lengths + second.lengths
    begins = np.cumsum(lengths) - lengths
    # All other tokens are those of the first sequences, in the same order.
    is_second = np.zeros(int(lengths.sum()), np.bool_)
    is_second[np.repeat(begins + first.lengths, second.lengths) + slots(second.lengths)] = True
    values = np.empty(len(is_second), np.int32)
    values[~is_second], values[is_second] = first.values, second.values
    return Ragged(values, lengths)


def merged(parts: Sequence[tuple[Ints, Ragged]], num: int) -> Ragged:
    """Return sequences of several parts in the order of their numbers, which are 0 … num - 1 over all parts.

    A part is the ascending numbers of its sequences, and the sequences."""
    if len(parts) == 1:
        return parts[0][1]
    lengths, part_of = np.zeros(num, np.int64), np.zeros(num, np.int64)
    for number, (rows, part) in enumerate(parts):
        lengths[rows], part_of[rows] = part.lengths, number
    # Within a part the tokens are already in the order of the sequences, so a mask puts them into place.
    values, part_of_token = np.empty(int(lengths.sum()), np.int32), np.repeat(part_of, lengths)
    for number, (_, part) in enumerate(parts):
        values[part_of_token == number] = part.values
    return Ragged(values, lengths)
