"""CRC-32C against its published values and against the definition, bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.formats.crc32c import crc32c, crc32c_of_pieces, masked


def bit_by_bit(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_published_values_of_rfc_3720(data, crc):
    assert crc32c(data) == crc


@pytest.mark.parametrize("size", [32767, 32768, 65535, 65536, 65537, 300_001])
def test_checksums_in_lanes_equal_those_byte_by_byte(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    assert crc32c(data) == bit_by_bit(data)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=20))
def test_checksums_of_pieces_equal_those_of_each(pieces):
    data = np.frombuffer(b"".join(pieces), np.uint8)
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    begins = np.cumsum(sizes) - sizes
    expected = [bit_by_bit(piece) for piece in pieces]
    assert crc32c_of_pieces(data, begins, sizes).tolist() == expected
    assert masked(np.array(expected, np.uint32)).tolist() == [masked(crc) for crc in expected]
