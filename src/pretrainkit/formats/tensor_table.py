"""Read TensorFlow's sorted tables (SSTables, the format of LevelDB), which store the index of a checkpoint.

A file consists of blocks, each followed by a byte for its compression and a masked CRC. The last 48 bytes locate the
index block. Within a block, keys are delta-encoded: each key stores only its difference from the previous key.

Source: https://github.com/google/leveldb/blob/main/doc/table_format.md.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from pretrainkit.formats.crc32c import crc32c, masked

_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
_MAGIC = 0xDB4775248B80FB57
_PLAIN, _SNAPPY = 0, 1


def mapped(path: Path) -> memoryview:
    """Map a file into memory."""
    with open(path, "rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def table_items(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield (key, value) of a table, sorted by key. Raises ValueError if `data` is not a table, is truncated, or has a
    wrong checksum."""
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("it does not end like a TensorFlow table")
    footer = data[-_FOOTER_BYTES:]
    place = 0
    for _ in range(2):  # skip the handle of the meta index, which is always empty
        _, place = _varint(footer, place)
    for _, handle in _entries(_block(data, footer[place:])):
        yield from _entries(_block(data, handle))


def _block(data: memoryview, handle: memoryview) -> memoryview:
    """Return the content of the block at a handle (offset and size)."""
    offset, place = _varint(handle, 0)
    size, _ = _varint(handle, place)
    whole = data[offset : offset + size + _TRAILER_BYTES]
    if len(whole) != size + _TRAILER_BYTES:
        raise ValueError(f"the block at byte {offset} is truncated")
    content, kind = whole[:size], whole[size]
    if masked(crc32c(whole[: size + 1])) != struct.unpack("<I", whole[size + 1 :])[0]:
        raise ValueError(f"the block at byte {offset} has a wrong checksum")
    if kind == _PLAIN:
        return content
    if kind != _SNAPPY:
        raise ValueError(f"the block at byte {offset} has an unknown compression: {kind}")
    import pyarrow

    size, _ = _varint(content, 0)
    try:
        return memoryview(pyarrow.decompress(content, size, codec="snappy", asbytes=True))
    except pyarrow.ArrowException as error:
        raise ValueError(f"a block cannot be decompressed: {error}") from error


def _entries(block: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the entries of a block.

    An entry has three numbers, the rest of the key and the value. The numbers are: how many bytes the key shares with
    the previous key, the length of its rest, and the length of the value. After the entries come restart offsets
    (uint32) and their number.
    """
    (num_restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (num_restarts + 1)
    place, key = 0, b""
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        size, place = _varint(block, place)
        key = key[:shared] + bytes(block[place : place + own])
        place += own
        yield key, block[place : place + size]
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return the unsigned number that begins at `place`, and the place after it. Raises ValueError if it does not
    end."""
    number = 0
    # Each byte has seven bits, the lowest first. The highest bit is set in all bytes except the last.
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError(f"a number does not end at byte {place}")
