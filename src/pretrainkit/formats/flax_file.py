"""Read the arrays of a Flax checkpoint, which is one MessagePack value, without executing any of its content.

Sources: https://github.com/msgpack/msgpack/blob/master/spec.md; the extension types are those of
https://github.com/google/flax/blob/main/flax/serialization.py: 1 is an array and 3 a NumPy scalar, both as
[shape, dtype, bytes]; 2 is a complex number, which no model has. Arrays of more than a gigabyte are maps of pieces.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import CheckpointError
from pretrainkit.formats.tf_messages import array_of

_ARRAY, _SCALAR = 1, 3
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"} | {
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_LENGTHS = {0: ">B", 1: ">H", 2: ">I"}
_CHUNKED = "__msgpack_chunked_array__"


def read_flax(path: Path) -> Any:
    """Read the tree of a checkpoint: dicts with text keys, arrays (views of the file's bytes; bfloat16 as float32) and
    numbers. Raises CheckpointError if the file cannot be read, is truncated, or is not a Flax checkpoint."""
    try:
        reader = _Reader(memoryview(path.read_bytes()))
        tree = reader.value()
        if reader.place != len(reader.data):
            raise ValueError(f"{len(reader.data) - reader.place} bytes follow the value")
    except (OSError, ValueError, TypeError, LookupError, AttributeError, struct.error, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a complete Flax checkpoint: {error}\n  copy it again; it is one file"
        ) from error
    return tree


def flat_arrays(tree: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a tree by their path, with keys joined by "/"."""
    if not isinstance(tree, dict):
        return {}
    arrays = {}
    for key, value in tree.items():
        if isinstance(value, np.ndarray):
            arrays[key] = value
        arrays |= {f"{key}/{name}": array for name, array in flat_arrays(value).items()}
    return arrays


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.place = 0

    def _take(self, num_bytes: int) -> memoryview:
        taken = self.data[self.place : self.place + num_bytes]
        if len(taken) != num_bytes:
            raise ValueError(f"the file ends at byte {len(self.data)}, {num_bytes - len(taken)} bytes too early")
        self.place += num_bytes
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def value(self) -> Any:
        mark = self._number(">B")
        if mark < 0x80 or mark >= 0xE0:  # the mark is a small number itself, in two's complement if negative
            return mark if mark < 0x80 else mark - 256
        if mark < 0x90:
            return self._map(mark & 15)
        if mark < 0xA0:
            return [self.value() for _ in range(mark & 15)]
        if mark < 0xC0:
            return str(self._take(mark & 31), "utf-8")
        if mark in _CONSTANTS:
            return _CONSTANTS[mark]
        if mark in _NUMBERS:
            return self._number(_NUMBERS[mark])
        if 0xC4 <= mark <= 0xC6:
            return self._take(self._number(_LENGTHS[mark - 0xC4]))
        if 0xC7 <= mark <= 0xC9:
            return self._extension(self._number(_LENGTHS[mark - 0xC7]))
        if 0xD4 <= mark <= 0xD8:  # extensions of 1, 2, 4, 8 and 16 bytes
            return self._extension(1 << (mark - 0xD4))
        if 0xD9 <= mark <= 0xDB:
            return str(self._take(self._number(_LENGTHS[mark - 0xD9])), "utf-8")
        if mark in (0xDC, 0xDD):
            return [self.value() for _ in range(self._number(_LENGTHS[mark - 0xDB]))]
        if mark in (0xDE, 0xDF):
            return self._map(self._number(_LENGTHS[mark - 0xDD]))
        raise ValueError(f"byte {self.place - 1} is 0x{mark:02x}, which does not begin a value")

    def _map(self, num: int) -> dict[str, Any] | NDArray[Any]:
        tree = {self._key(): self.value() for _ in range(num)}
        if _CHUNKED not in tree:
            return tree
        # Flax stores lists as maps with their indices as keys.
        shape, pieces = ([part[str(place)] for place in range(len(part))] for part in (tree["shape"], tree["chunks"]))
        return np.concatenate([piece.reshape(-1) for piece in pieces]).reshape(shape)

    def _key(self) -> str:
        key = self.value()
        if not isinstance(key, str):
            raise ValueError(f"the key before byte {self.place} is not text")
        return key

    def _extension(self, num_bytes: int) -> NDArray[Any]:
        kind, inside = self._number(">b"), _Reader(self._take(num_bytes))
        if kind not in (_ARRAY, _SCALAR):
            raise ValueError(f"it contains a value of Flax's type {kind}, which is not an array")
        shape, dtype, content = inside.value()
        return array_of(content, str(dtype), tuple(shape))
