"""CRC-32C (Castagnoli) in NumPy, for many pieces at once or one long one. TensorFlow's files and TensorStore use it.

The polynomial is 0x1EDC6F41 (RFC 3720), here with reversed bits. A CRC is linear in the register, so pieces of one text
can be processed in parallel and their registers combined afterwards.

Dimensions: N pieces.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8
_LANE_BYTES, _MAX_LANES = 64, 1 << 12
_SHORT_BYTES = 1 << 15
"""Below this size the lanes cost more than a loop over the bytes."""

Bytes = NDArray[np.uint8]
Registers = NDArray[np.uint32]


def crc32c(data: bytes | memoryview | Bytes) -> int:
    """Return the CRC of `data`."""
    raw = np.frombuffer(data, np.uint8)
    if len(raw) < _SHORT_BYTES:
        table, register = _table_of_ints(), _ONES
        for byte in raw.tolist():
            register = table[(register ^ byte) & 255] ^ (register >> 8)
        return register ^ _ONES
    num_lanes = min(1 << (len(raw) // _LANE_BYTES).bit_length(), _MAX_LANES)
    size = len(raw) // num_lanes
    crcs = crc32c_of_pieces(raw, np.arange(num_lanes) * size, np.full(num_lanes, size))
    # Combine neighbours: shift the CRC of the left lane over the bytes of the right lane, and add the right lane's CRC.
    shift = _shift_over_zeros(size)
    while len(crcs) > 1:
        crcs = _apply_map(shift, crcs[::2]) ^ crcs[1::2]
        shift = _apply_map(shift, shift)
    if len(rest := raw[size * num_lanes :]):
        crcs = _apply_map(_shift_over_zeros(len(rest)), crcs) ^ np.uint32(crc32c(rest))
    return int(crcs[0])


def masked(crcs: Any) -> Any:
    """Mask a CRC, or uint32 (N,), as TensorFlow stores it: rotated, plus a constant. A CRC of data that contains CRCs
    would otherwise detect few errors."""
    # A Python int is cut to 32 bits at the end; uint32 drops higher bits at each operation.
    return (((crcs >> 15) | (crcs << 17)) + _MASK_DELTA) & _ONES


def crc32c_of_pieces(data: Bytes, begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> Registers:
    """Return the (N,) CRCs of the pieces of `data` with these offsets and sizes in bytes."""
    # Longest pieces first, so that the first `num_active` pieces are always those with a further word of 8 bytes.
    order = np.argsort(-sizes, kind="stable")
    begins, sizes = begins[order], sizes[order]
    registers = np.full(len(sizes), _ONES, np.uint32)
    tables = _tables()
    words = sizes // 8
    num_active = len(sizes)
    for word in range(int(words[0]) if len(words) else 0):
        num_active = int(np.searchsorted(-words[:num_active], -word, side="left"))
        place = begins[:num_active] + 8 * word
        registers[:num_active] = _word(tables, registers[:num_active], [data[place + byte] for byte in range(8)])
    rest = sizes - 8 * words
    for byte in range(7):
        chosen = np.flatnonzero(rest > byte)
        place = begins[chosen] + 8 * words[chosen] + byte
        own = registers[chosen]
        registers[chosen] = tables[0][(own ^ data[place]) & 255] ^ (own >> 8)
    crcs = np.empty_like(registers)
    crcs[order] = registers ^ _ONES
    return crcs


def _word(tables: NDArray[np.uint32], registers: Registers, eight: list[Bytes]) -> Registers:
    """Return the registers after eight more bytes each ("slicing by 8")."""
    low = registers & 255
    updated = tables[7][low ^ eight[0]]
    for byte in (1, 2, 3):
        updated ^= tables[7 - byte][((registers >> 8 * byte) & 255) ^ eight[byte]]
    for byte in range(4, 8):
        updated ^= tables[7 - byte][eight[byte]]
    return updated


@cache
def _tables() -> NDArray[np.uint32]:
    """Return (8, 256): table k has the register after a byte and k zero bytes."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = (first >> np.uint32(1)) ^ np.where(first & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    tables = [first]
    for _ in range(7):
        tables.append(first[tables[-1] & 255] ^ (tables[-1] >> 8))
    return np.stack(tables)


@cache
def _table_of_ints() -> list[int]:
    return _tables()[0].tolist()


def _shift_over_zeros(num_bytes: int) -> Registers:
    """Return the linear map of a register over `num_bytes` zero bytes: uint32 (32,), the images of the bits."""
    step = np.uint32(1) << np.arange(32, dtype=np.uint32)  # each bit separately
    step = _tables()[0][step & 255] ^ (step >> 8)
    images = np.uint32(1) << np.arange(32, dtype=np.uint32)
    while num_bytes:  # powers by squaring
        if num_bytes & 1:
            images = _apply_map(step, images)
        step = _apply_map(step, step)
        num_bytes >>= 1
    return images


def _apply_map(images: Registers, registers: Registers) -> Registers:
    """Apply a linear map, given as the images of the bits, to each register."""
    mapped = np.zeros_like(registers)
    for bit in range(32):
        mapped ^= np.where(registers >> bit & 1, images[bit], np.uint32(0))
    return mapped
