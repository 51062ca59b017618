"""Version 1 of TensorFlow's checkpoints: tables whose values are slices of arrays."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.formats.tensor_table import mapped, table_items
from pretrainkit.formats.tf_messages import parse
from pretrainkit.formats.tf_types import BFLOAT16, array_of, as_index, numpy_dtype


@dataclass
class SavedArray:
    """An array of version 1 and the slices that were found of it."""

    shape: tuple[int, ...]
    dtype: int
    """Code of a DataType."""
    parts: list[memoryview] = field(default_factory=list)
    """A message SavedTensorSlices each, with one slice; parsed when the array is read."""

    def array(self) -> NDArray[Any]:
        """Put together; bfloat16 as float32. Raises ValueError where parts are missing."""
        if not self.parts:
            raise ValueError("none of its parts is there")
        saved = [parse("SavedTensorSlices", part).data for part in self.parts]
        arrays = [(as_index(one.slice), _elements(one.data, numpy_dtype(self.dtype))) for one in saved]
        whole = np.empty(self.shape, arrays[0][1].dtype)
        num_filled = 0
        for place, flat in arrays:
            target = whole[place]
            num_filled += target.size
            # A part with a single element has it for all of its places.
            whole[place] = np.broadcast_to(flat, target.size).reshape(target.shape)
        if num_filled != whole.size:
            raise ValueError(f"{num_filled} of {whole.size} elements are there")
        return whole


def read_tables(paths: list[Path]) -> dict[str, SavedArray]:
    """The arrays of some files.

    Raises:
        ValueError: They are no tables, or damaged.
    """
    saved: dict[str, SavedArray] = {}
    for path in paths:
        for _, value in table_items(mapped(path)):
            message = parse("SavedTensorSlices", value)
            for one in message.meta.tensor:  # in the table's first entry, whose key is empty
                saved.setdefault(one.name, SavedArray(tuple(dim.size for dim in one.shape.dim), one.type))
            if message.HasField("data"):
                if message.data.name not in saved:
                    raise ValueError(f"{message.data.name} is not in the list of {path.name}")
                saved[message.data.name].parts.append(value)
    return saved


def _elements(tensor: Any, dtype: str) -> NDArray[Any]:
    """The elements of a message Tensor, flat; fewer than the shape has where the last one stands for the rest."""
    if tensor.tensor_content:
        return array_of(tensor.tensor_content, dtype, (-1,))
    # Of the lists of numbers one is filled: which one depends on the type.
    flat = np.array(next((values for _, values in tensor.ListFields()), ()))
    if dtype in (BFLOAT16, "<f2"):  # stored as bits
        return array_of(flat.astype("<u2").tobytes(), dtype, (-1,))
    return flat.astype(dtype)
