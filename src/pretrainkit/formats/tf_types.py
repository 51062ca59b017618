"""What TensorFlow's messages say about arrays: number formats by code, and which part of an array is meant.

Source: tensorflow/core/framework/{types,tensor_slice}.proto.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"
DTYPES: dict[int, str] = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 5: "<i2", 6: "|i1", 9: "<i8", 10: "|b1", 14: BFLOAT16, 17: "<u2", 19: "<f2",
    22: "<u4", 23: "<u8",
}  # fmt: skip
"""Code of a DataType to NumPy's name."""
_STRING = 7


def numpy_dtype(code: int) -> str:
    """NumPy's name of a DataType. Raises ValueError where it is none of numbers."""
    if code not in DTYPES:
        raise ValueError(f"it holds {'strings' if code == _STRING else f'type {code}'}, not numbers")
    return DTYPES[code]


def array_of(content: bytes | memoryview, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Raw little-endian elements as an array; bfloat16 as float32, which holds every one of its values.

    Raises:
        ValueError: Their number is not that of the shape.
    """
    if dtype == BFLOAT16:
        return from_bfloat16(np.frombuffer(content, "<u2")).reshape(shape)
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 values whose upper halves are `bits`."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def as_index(part: Any) -> tuple[slice, ...]:
    """A message Slice for NumPy; an extent without a length is all of the dimension."""
    return tuple(
        slice(extent.start, extent.start + extent.length if extent.HasField("length") else None)
        for extent in part.extent
    )
