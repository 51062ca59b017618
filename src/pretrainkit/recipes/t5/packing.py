"""Where examples of several sequences lie in rows of fixed lengths, so that all of an example is in one row.

An example has the same number in its row for all of its sequences, also where one of them is empty; the released
packers number each sequence by itself and then pair those of different examples.

Dimensions: B examples, F sequences of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.plan import pack_rows
from pretrainkit.errors import DataError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    row: Ints
    """(B,) index of the row."""
    number: Ints
    """(B,) number within the row, from 1."""
    offset: dict[str, Ints]
    """By sequence, (B,) slot of its first token."""
    num_rows: int


def one_per_row(num_examples: int, names: Mapping[str, int]) -> Placement:
    """Example i in row i."""
    zeros = np.zeros(num_examples, np.int64)
    return Placement(np.arange(num_examples), zeros + 1, dict.fromkeys(names, zeros), num_examples)


def pairs(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
    """Examples 2 i and 2 i + 1 in row i. Raises DataError where both together are longer than a row."""
    joined = {name: sizes.reshape(-1, 2).sum(1) for name, sizes in lengths.items()}
    _check(joined, widths)
    num_rows = len(next(iter(joined.values())))
    zeros = np.zeros(num_rows, np.int64)
    offsets = {name: np.stack([zeros, sizes[0::2]], axis=1).ravel() for name, sizes in lengths.items()}
    return Placement(np.repeat(np.arange(num_rows), 2), np.tile([1, 2], num_rows), offsets, num_rows)


def best_fit(lengths: Mapping[str, Ints], widths: Mapping[str, int], num_rows: int | None = None) -> Placement:
    """Longest examples first, each into the row that it leaves least room in. Pure: the same lengths, the same rows.

    Args:
        lengths: By sequence, (B,) tokens, each at most its width.
        widths: By sequence, slots of a row.
        num_rows: Rows to make, the last ones maybe empty; None: as many as are needed. More are a DataError.
    """
    _check(lengths, widths)
    if len(lengths) == 1:
        name = next(iter(lengths))
        row = _one_sequence(lengths[name], widths[name])
    else:
        row = _several_sequences(
            np.stack([lengths[name] for name in lengths], axis=1), np.array([widths[name] for name in lengths])
        )
    needed = int(row.max(initial=-1)) + 1
    if num_rows is not None and needed > num_rows:
        raise DataError(
            f"{len(row)} examples need {needed} rows of {dict(widths)} tokens, but there are {num_rows}\n"
            "  allow more rows, or put fewer examples into a microbatch"
        )
    return _placed(row, lengths, needed if num_rows is None else num_rows)


def next_fit(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
    """As SeqIO packs: in order, into the last row if all sequences of the example fit, else into a new one, which every
    max(widths)-th example gets too. Arguments are those of `best_fit`."""
    _check(lengths, widths)
    group, names = max(widths.values()), list(lengths)
    table = np.stack([lengths[name] for name in names], axis=1).tolist()
    limits = [widths[name] for name in names]
    rows, row, used = [], -1, [0] * len(names)
    for example, sizes in enumerate(table):
        used = [have + size for have, size in zip(used, sizes, strict=True)]
        if example % group == 0 or any(have > limit for have, limit in zip(used, limits, strict=True)):
            row, used = row + 1, sizes
        rows.append(row)
    return _placed(np.array(rows, np.int64), lengths, row + 1)


def _placed(row: Ints, lengths: Mapping[str, Ints], num_rows: int) -> Placement:
    """Examples of a row one after another in the order of their indices."""
    # Sorted by row, stably: `first` is then the place of the first example of each example's row.
    order = np.argsort(row, kind="stable")
    sorted_rows = row[order]
    first = np.searchsorted(sorted_rows, sorted_rows, side="left")
    number = np.empty(len(row), np.int64)
    number[order] = np.arange(len(row)) - first + 1
    offsets = {}
    for name, sizes in lengths.items():
        # Tokens of all examples before it, less those before its row.
        before = np.cumsum(sizes[order]) - sizes[order]
        offset = np.empty(len(row), np.int64)
        offset[order] = before - before[first]
        offsets[name] = offset
    return Placement(row, number, offsets, num_rows)


def _one_sequence(lengths: Ints, width: int) -> Ints:
    row = np.zeros(len(lengths), np.int64)
    has_tokens = lengths > 0
    if has_tokens.any():  # an example without tokens fits anywhere, and is put into the first row
        row[has_tokens] = pack_rows(lengths[has_tokens], width).row
    return row


def _several_sequences(lengths_BF: Ints, widths_F: Ints) -> Ints:
    """The row of each example. Rows that are full or nearly so stay candidates: to look at all of them at once costs
    less than to keep them sorted by several measures."""
    share_BF = lengths_BF / widths_F
    order = np.argsort(-share_BF.max(1), kind="stable")
    room_FR = np.empty((len(widths_F), len(lengths_BF)), np.int64)
    weight_F = 1 / widths_F
    row, num_rows = np.empty(len(lengths_BF), np.int64), 0
    for example in order.tolist():
        left_FR = room_FR[:, :num_rows] - lengths_BF[example][:, None]
        fits_R = (left_FR >= 0).all(0)
        best = -1
        if fits_R.any():
            # What is left, each sequence measured by its width, so that long and short rows count alike.
            waste_R = np.where(fits_R, weight_F @ left_FR, np.inf)
            best = int(waste_R.argmin())
        else:
            best, num_rows = num_rows, num_rows + 1
            room_FR[:, best] = widths_F
        room_FR[:, best] -= lengths_BF[example]
        row[example] = best
    return row


def _check(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> None:
    for name, sizes in lengths.items():
        if len(sizes) and int(sizes.max()) > widths[name]:
            raise DataError(
                f"example {int(sizes.argmax())} has {int(sizes.max())} tokens of {name}, but a row holds {widths[name]}"
                "\n  cut examples to the row before packing"
            )
