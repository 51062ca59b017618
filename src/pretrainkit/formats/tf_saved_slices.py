"""TensorFlow's checkpoints of version 1: sorted tables that hold slices of the arrays.

Source: tensorflow/core/util/saved_tensor_slice.proto, tensorflow/core/framework/tensor.proto.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.formats.protobuf import Buffer, fields, packed_int64, signed
from pretrainkit.formats.tensor_slice import TensorSlice, as_index, parse_slice
from pretrainkit.formats.tensor_table import mapped, table_items
from pretrainkit.formats.tf_types import BFLOAT16, array_of, numpy_dtype, parse_shape


@dataclass
class SavedArray:
    """An array of version 1 and the slices that were found of it."""

    shape: tuple[int, ...]
    dtype: int
    """Code of a DataType."""
    parts: list[tuple[TensorSlice, Buffer]] = field(default_factory=list)
    """Where each lies, and its TensorProto."""

    def array(self) -> NDArray[Any]:
        """Put together; bfloat16 as float32. Raises ValueError where parts are missing."""
        if not self.parts:
            raise ValueError("none of its parts is there")
        arrays = [(one, _tensor(message, numpy_dtype(self.dtype))) for one, message in self.parts]
        whole = np.empty(self.shape, arrays[0][1].dtype)
        num_filled = 0
        for one, flat in arrays:
            place = as_index(one)
            target = whole[place]
            num_filled += target.size
            whole[place] = np.broadcast_to(flat, target.size).reshape(target.shape)
        if num_filled != whole.size:
            raise ValueError(f"{num_filled} of {whole.size} elements are there")
        return whole


def read_tables(paths: list[Path]) -> dict[str, SavedArray]:
    """The arrays of some files. Each value is a SavedTensorSlices: meta = 1 under the empty key, else data = 2.

    Raises:
        ValueError: They are no tables, or damaged.
    """
    saved: dict[str, SavedArray] = {}
    for path in paths:
        data: list[Buffer] = []
        for _, value in table_items(mapped(path)):
            for number, _, message in fields(value):
                if number == 1 and not isinstance(message, int):
                    for name, one in _metas(message):
                        saved.setdefault(name, one)
                elif number == 2 and not isinstance(message, int):
                    data.append(message)
        for message in data:
            name, tensor = "", memoryview(b"")
            place: TensorSlice = ()
            for number, _, part in fields(message):
                if isinstance(part, int):
                    continue
                if number == 1:
                    name = str(part, "utf-8")
                elif number == 2:
                    place = parse_slice(part)
                elif number == 3:
                    tensor = part
            if name not in saved:
                raise ValueError(f"{name} is not in the list of {path.name}")
            saved[name].parts.append((place, tensor))
    return saved


def _metas(message: Buffer) -> Iterator[tuple[str, SavedArray]]:
    for number, _, meta in fields(message):
        if number != 1 or isinstance(meta, int):
            continue
        name, dtype = "", 0
        shape: tuple[int, ...] = ()
        for field_number, _, value in fields(meta):
            if isinstance(value, int):
                dtype = value if field_number == 3 else dtype
            elif field_number == 1:
                name = str(value, "utf-8")
            elif field_number == 2:
                shape = parse_shape(value)
        yield name, SavedArray(shape, dtype)


_FIXED = {5: "<f4", 6: "<f8"}
_VARINTS = (7, 10, 11, 13)
"""Fields of a TensorProto with elements one by one: int_val, int64_val, bool_val and half_val, which holds bits."""


def _tensor(message: Buffer, dtype: str) -> NDArray[Any]:
    """The elements of a TensorProto, flat; fewer than the shape has where the last one stands for the rest."""
    found: list[NDArray[Any]] = [np.empty(0, np.int64)]
    for number, _, value in fields(message):
        if number == 4 and not isinstance(value, int) and len(value):
            return array_of(value, dtype, (-1,))
        if number in _FIXED:
            size = np.dtype(_FIXED[number]).itemsize
            content = value.to_bytes(size, "little") if isinstance(value, int) else value
            found.append(np.frombuffer(content, _FIXED[number]))
        elif number in _VARINTS:
            found.append(np.array([signed(value)]) if isinstance(value, int) else packed_int64(value))
    flat = np.concatenate(found[1:] or found)
    if dtype == BFLOAT16 or dtype == "<f2":
        return array_of(flat.astype("<u2").tobytes(), dtype, (-1,))
    return flat.astype(dtype)
