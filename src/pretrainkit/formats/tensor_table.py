"""TensorFlow's sorted tables (SSTables, the format of LevelDB): what the index of a checkpoint is kept in.

A file is blocks, each with a byte for its compression and a masked CRC behind it; the last 48 bytes say where the block
of the index lies. Within a block every key is written as what differs from the key before.

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
    with open(path, "rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def table_items(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """(key, value) of a whole table, sorted by key. Raises ValueError where it is no table, is cut off, or a
    checksum is wrong."""
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("it does not end as a table of TensorFlow does")
    footer = data[-_FOOTER_BYTES:]
    place = 0
    for _ in range(2):  # the handle of the meta index, which nobody writes anything into
        _, place = _varint(footer, place)
    for _, handle in _entries(_block(data, footer[place:])):
        yield from _entries(_block(data, handle))


def _block(data: memoryview, handle: memoryview) -> memoryview:
    """The content of the block at a handle: offset and size."""
    offset, place = _varint(handle, 0)
    size, _ = _varint(handle, place)
    whole = data[offset : offset + size + _TRAILER_BYTES]
    if len(whole) != size + _TRAILER_BYTES:
        raise ValueError(f"the block at byte {offset} is cut off")
    content, kind = whole[:size], whole[size]
    if masked(crc32c(whole[: size + 1])) != struct.unpack("<I", whole[size + 1 :])[0]:
        raise ValueError(f"the block at byte {offset} has a wrong checksum")
    if kind == _PLAIN:
        return content
    if kind != _SNAPPY:
        raise ValueError(f"the block at byte {offset} is compressed in an unknown way: {kind}")
    import pyarrow

    size, _ = _varint(content, 0)
    try:
        return memoryview(pyarrow.decompress(content, size, codec="snappy", asbytes=True))
    except pyarrow.ArrowException as error:
        raise ValueError(f"a block cannot be decompressed: {error}") from error


def _entries(block: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Each is: how many bytes are shared with the key before, how many more the key has, how many the value; then those
    two. Behind them lie offsets to start from (uint32) and how many there are."""
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
    """(the unsigned number that begins at `place`, where the next value begins). Raises ValueError where it does not
    end."""
    number = 0
    for shift in range(0, 70, 7):  # seven bits in each byte, the lowest first; all but the last have the highest bit
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError(f"a number does not end at byte {place}")
