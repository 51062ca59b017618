"""Parts of arrays in TensorFlow's checkpoints: where they lie, and the keys that name them.

Source: tensorflow/core/framework/tensor_slice.proto, tensorflow/core/lib/strings/ordered_code.cc.
"""

from pretrainkit.formats.protobuf import Buffer, fields, signed

TensorSlice = tuple[tuple[int, int | None], ...]
"""(begin, length) along each dimension; None: to the end."""


def parse_slice(message: Buffer) -> TensorSlice:
    """A TensorSliceProto: extents = 1 of start = 1 and length = 2; without a length all of the dimension."""
    found = []
    for number, _, extent in fields(message):
        if number == 1 and not isinstance(extent, int):
            values = {field: signed(value) for field, _, value in fields(extent) if isinstance(value, int)}
            found.append((values.get(1, 0), values.get(2)))
    return tuple(found)


def as_index(one: TensorSlice) -> tuple[slice, ...]:
    """For NumPy."""
    return tuple(slice(begin, None if length is None else begin + length) for begin, length in one)


def parse_key(key: bytes) -> tuple[str, TensorSlice]:
    """(name, slice) of an ordered code: 0, the name, the number of dimensions, begin and length of each."""
    place = _number_end(key, 0)
    name, place = _ordered_string(key, place)
    num_dims, place = _ordered_number(key, place)
    found: list[tuple[int, int | None]] = []
    for _ in range(num_dims):
        begin, place = _ordered_signed(key, place)
        length, place = _ordered_signed(key, place)
        found.append((begin, None if length == -1 else length))
    return name, tuple(found)


def _number_end(key: bytes, place: int) -> int:
    return place + 1 + key[place]


def _ordered_number(key: bytes, place: int) -> tuple[int, int]:
    """An unsigned number: how many bytes, then those, big-endian."""
    end = _number_end(key, place)
    return int.from_bytes(key[place + 1 : end], "big"), end


def _ordered_string(key: bytes, place: int) -> tuple[str, int]:
    """Bytes up to 0 1; 0 255 stands for 0, and 255 0 for 255."""
    found = bytearray()
    while key[place : place + 2] != b"\x00\x01":
        byte = key[place]
        found.append(byte)
        place += 2 if byte in (0, 255) else 1
    return found.decode(), place + 2


def _ordered_signed(key: bytes, place: int) -> tuple[int, int]:
    """A signed number: its leading ones (zeros where it is negative) say how many bytes follow."""
    first = key[place]
    is_negative = first < 128
    bits = first ^ 255 if is_negative else first
    num_bytes, mask = 1, 0x40
    while mask and bits & mask and num_bytes < 8:
        num_bytes, mask = num_bytes + 1, mask >> 1
    raw = (
        bytes(byte ^ 255 for byte in key[place : place + num_bytes]) if is_negative else key[place : place + num_bytes]
    )
    value = int.from_bytes(raw, "big") & ((1 << (7 * num_bytes - 1)) - 1)
    return (~value if is_negative else value), place + num_bytes
