"""CRC-32C (Castagnoli), as TensorFlow's files and TensorStore use it, in NumPy: many pieces at once, or one long one.

The polynomial is 0x1EDC6F41 (RFC 3720), here with its bits in reverse. A CRC is linear in the register, so pieces of
one text can be worked on side by side and their registers put together afterwards.

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

Bytes = NDArray[np.uint8]
Registers = NDArray[np.uint32]


def crc32c(data: bytes | memoryview | Bytes) -> int:
    raw = np.frombuffer(data, np.uint8)
    num_lanes = min(1 << (len(raw) // _LANE_BYTES).bit_length(), _MAX_LANES)
    size = len(raw) // num_lanes
    crcs = crc32c_of_pieces(raw, np.arange(num_lanes) * size, np.full(num_lanes, size))
    # Two neighbours become one: the CRC of the left lane, moved over the right one's bytes, and that of the right.
    behind = _behind_zeros(size)
    while len(crcs) > 1:
        crcs = _times(behind, crcs[::2]) ^ crcs[1::2]
        behind = _times(behind, behind)
    if len(rest := raw[size * num_lanes :]):
        crcs = _times(_behind_zeros(len(rest)), crcs) ^ np.uint32(crc32c(rest))
    return int(crcs[0])


def masked(crcs: Any) -> Any:
    """A CRC, or uint32 (N,), as TensorFlow stores it: turned and moved, as a CRC of a text with its CRC says little."""
    # An int grows to the left and is cut to 32 bits in the end; uint32 loses these bits on the way.
    return (((crcs >> 15) | (crcs << 17)) + _MASK_DELTA) & _ONES


def crc32c_of_pieces(data: Bytes, begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> Registers:
    """(N,) the CRCs of the pieces of `data` with these offsets and sizes in bytes."""
    # Longest first: then the pieces that still have a next word of 8 bytes are always the first `num_active` ones.
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
    found = np.empty_like(registers)
    found[order] = registers ^ _ONES
    return found


def _word(tables: NDArray[np.uint32], registers: Registers, eight: list[Bytes]) -> Registers:
    """The registers after eight bytes each ("slicing by 8")."""
    low = registers & 255
    found = tables[7][low ^ eight[0]]
    for byte in (1, 2, 3):
        found ^= tables[7 - byte][((registers >> 8 * byte) & 255) ^ eight[byte]]
    for byte in range(4, 8):
        found ^= tables[7 - byte][eight[byte]]
    return found


@cache
def _tables() -> NDArray[np.uint32]:
    """(8, 256): table k gives the register of a byte with k bytes of zeros behind it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = (first >> np.uint32(1)) ^ np.where(first & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    found = [first]
    for _ in range(7):
        found.append(first[found[-1] & 255] ^ (found[-1] >> 8))
    return np.stack(found)


def _behind_zeros(num_bytes: int) -> Registers:
    """Return the linear map of a register over `num_bytes` zero bytes: uint32 (32,), the images of the bits."""
    step = np.uint32(1) << np.arange(32, dtype=np.uint32)  # each bit alone
    step = _tables()[0][step & 255] ^ (step >> 8)
    found = np.uint32(1) << np.arange(32, dtype=np.uint32)
    while num_bytes:  # powers by squaring
        if num_bytes & 1:
            found = _times(step, found)
        step = _times(step, step)
        num_bytes >>= 1
    return found


def _times(images: Registers, registers: Registers) -> Registers:
    """A linear map, as the images of the bits, of each register."""
    found = np.zeros_like(registers)
    for bit in range(32):
        found ^= np.where(registers >> bit & 1, images[bit], np.uint32(0))
    return found
