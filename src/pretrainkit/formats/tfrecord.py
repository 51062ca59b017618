"""Read TFRecord files. A record consists of its length (uint64), the masked CRC of the length, its bytes, and their
masked CRC. All numbers are little-endian.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord (TFRecords format details).
"""

import struct
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from pretrainkit.formats.crc32c import crc32c, crc32c_of_pieces, masked

_LENGTH = struct.Struct("<Q")
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_CHECKED_BYTES = 1 << 24
"""Number of bytes that are checked at once."""


def record_places(chunks: Iterable[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the (N,) offsets of each record's first byte, and the (N,) offsets after its last byte.

    `chunks` are the bytes of the file, in pieces of any size. All checksums are verified. Raises ValueError if one is
    wrong, or the file is truncated.
    """
    begins: list[NDArray[np.int64]] = []
    sizes: list[NDArray[np.int64]] = []
    base, held = 0, b""
    for block in _blocks(chunks):
        held += block
        own_begins, own_sizes = _whole_records(held, base)
        begins.append(own_begins + base)
        sizes.append(own_sizes)
        used = int(own_begins[-1] + own_sizes[-1]) + _FOOTER_BYTES if len(own_begins) else 0
        base, held = base + used, held[used:]
    if held:
        raise ValueError(f"the file ends within the record at byte {base}")
    all_begins = np.concatenate([np.empty(0, np.int64), *begins])
    return all_begins, all_begins + np.concatenate([np.empty(0, np.int64), *sizes])


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in larger pieces."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= _CHECKED_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _whole_records(data: bytes, base: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (begins, sizes) of the complete records in `data`, after checking their checksums."""
    begins: list[int] = []
    sizes: list[int] = []
    place, end = 0, len(data) - _HEADER_BYTES - _FOOTER_BYTES
    unpack = _LENGTH.unpack_from
    while place <= end:
        (size,) = unpack(data, place)
        if size > end - place:
            length, crc = data[place : place + 8], data[place + 8 : place + _HEADER_BYTES]
            if (
                masked(crc32c(length)).to_bytes(4, "little") != crc
            ):  # the length is damaged; otherwise the record continues in the next block
                raise ValueError(f"the length of the record at byte {base + place} has a wrong checksum")
            break
        begins.append(place + _HEADER_BYTES)
        sizes.append(size)
        place += _HEADER_BYTES + size + _FOOTER_BYTES
    begins_N, sizes_N = np.array(begins, np.int64), np.array(sizes, np.int64)
    raw = np.frombuffer(data, np.uint8)
    _check(raw, begins_N - _HEADER_BYTES, np.full(len(begins_N), 8, np.int64), "length", base)
    _check(raw, begins_N, sizes_N, "content", base)
    return begins_N, sizes_N


def _check(raw: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64], part: str, base: int) -> None:
    crcs = masked(crc32c_of_pieces(raw, begins, sizes))
    ends = begins + sizes
    stored = sum(raw[ends + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4))
    wrong = np.flatnonzero(crcs != stored)
    if len(wrong):
        where = base + int(begins[wrong[0]])
        raise ValueError(f"the {part} of a record at byte {where} has a wrong checksum")
