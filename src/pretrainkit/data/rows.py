"""Source whose examples are rows of two-dimensional arrays, in memory or memory-mapped.

Dimensions: B examples, T tokens per row.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import DataError

_PROBED_ROWS = 64


class RowSource(BatchSource):
    """Rows of arrays (N, T), one array per component, all of the same dtype and T."""

    def __init__(self, arrays: Sequence[NDArray], *, name: str = "tokens") -> None:
        """Raise DataError if the arrays have different dtypes or row lengths.

        Args:
            arrays: One (N, T) per component. Worker processes get the path of a memory map instead of its content.
        """
        kinds = {(array.ndim, array.shape[1:], array.dtype.str) for array in arrays}
        if len(kinds) != 1 or arrays[0].ndim != 2:
            shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            raise DataError(f"all arrays must have rows of the same dtype and length, not {shapes or 'nothing'}")
        self._arrays = [np.asarray(array) for array in arrays]
        self._maps = [array if isinstance(array, np.memmap) else None for array in arrays]
        self._name = name

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(array) for array in self._arrays)

    @property
    def fingerprint(self) -> str:
        """Hash of shapes, dtypes and up to 64 evenly spaced rows of each array, which is fast for large files."""
        state = hashlib.blake2b(digest_size=16)
        for array in self._arrays:
            probed = np.linspace(0, len(array) - 1, min(_PROBED_ROWS, len(array))).astype(np.int64)
            state.update(f"{array.shape} {array.dtype.str};".encode())
            state.update(np.ascontiguousarray(array[probed]).tobytes())
        return state.hexdigest()

    def lengths(self, records: Records) -> NDArray[np.int64]:
        return np.full(len(records), self._arrays[0].shape[1], np.int64)

    def build(self, records: Records) -> dict[str, np.ndarray]:
        """Return the rows, (B, T), under the name of this source."""
        if len(self._arrays) == 1:
            return {self._name: self._arrays[0].take(records.index, axis=0)}
        rows = np.empty((len(records), self._arrays[0].shape[1]), self._arrays[0].dtype)
        for component, array in enumerate(self._arrays):
            own = np.flatnonzero(records.source == component)
            rows[own] = array[records.index[own]]
        return {self._name: rows}

    def __getstate__(self) -> dict[str, object]:
        stored = [
            array if file is None else (file.filename, array.dtype.str, file.offset, array.shape)
            for array, file in zip(self._arrays, self._maps, strict=True)
        ]
        return {"arrays": stored, "name": self._name}

    def __setstate__(self, state: dict) -> None:
        arrays = [
            np.memmap(item[0], item[1], "r", item[2], item[3]) if isinstance(item, tuple) else item
            for item in state["arrays"]
        ]
        self.__init__(arrays, name=state["name"])  # type: ignore[misc]
