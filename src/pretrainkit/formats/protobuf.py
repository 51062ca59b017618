"""The wire format of protocol buffers, enough to read messages whose fields are known by number.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

Value = int | memoryview
Buffer = memoryview


def varint(data: Buffer, place: int) -> tuple[int, int]:
    """(the unsigned number that begins at `place`, where the next value begins).

    Raises:
        ValueError: It does not end.
    """
    number = data[place]
    if number < 128:
        return number, place + 1
    number &= 127
    for shift in range(7, 70, 7):
        place += 1
        byte = data[place]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place + 1
    raise ValueError(f"a number of more than ten bytes ends at byte {place}")


def fields(data: Buffer) -> Iterator[tuple[int, int, Value]]:
    """(number, wire type, value) of each field of a message: numbers without sign or sense, or bytes.

    Raises:
        ValueError: It is no message, or is cut off.
    """
    place, size = 0, len(data)
    try:
        while place < size:
            key, place = varint(data, place)
            kind = key & 7
            value: Value
            if kind == BYTES:
                length, place = varint(data, place)
                value = data[place : place + length]
                place += length
            elif kind == VARINT:
                value, place = varint(data, place)
            elif kind in (FIXED32, FIXED64):
                length = 4 if kind == FIXED32 else 8
                value = int.from_bytes(data[place : place + length], "little")
                place += length
            else:
                raise ValueError(f"wire type {kind} at byte {place}")
            if place > size:
                raise ValueError(f"a field ends at byte {place} of {size}")
            yield key >> 3, kind, value
    except IndexError:
        raise ValueError(f"the message ends within a number, at byte {size}") from None


def signed(number: int) -> int:
    """An `int64` or `int32` that was read as an unsigned number."""
    return number - (1 << 64) if number >> 63 else number


def packed_int64(data: Buffer) -> NDArray[np.int64]:
    """The numbers of a packed `repeated int64`.

    Raises:
        ValueError: The last one is cut off.
    """
    raw = np.frombuffer(data, np.uint8)
    is_last = raw < 128
    if is_last.all():
        return raw.astype(np.int64)
    if not is_last[-1]:
        raise ValueError("a packed number is cut off")
    ends = np.flatnonzero(is_last)
    begins = np.concatenate([[0], ends[:-1] + 1])
    shift = 7 * (np.arange(len(raw)) - np.repeat(begins, ends - begins + 1))
    parts = (raw & 127).astype(np.uint64) << shift.astype(np.uint64)
    return np.add.reduceat(parts, begins).view(np.int64)
