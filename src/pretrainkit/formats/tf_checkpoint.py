"""Read the named arrays of TensorFlow's checkpoints without TensorFlow.

Version 2 ("tensor bundle"): `PREFIX.index` is a table of names and places of the arrays; `PREFIX.data-00000-of-00002`
has their elements. Version 1: tables `PREFIX`, or `PREFIX-00000-of-00002`, contain slices of the arrays.

Source: tensorflow/core/protobuf/{tensor_bundle,saved_tensor_slice}.proto, tensorflow/core/util/tensor_bundle.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import CheckpointError
from pretrainkit.formats.crc32c import crc32c, masked
from pretrainkit.formats.tensor_table import mapped, table_items
from pretrainkit.formats.tf_messages import BFLOAT16, array_of, as_index, numpy_dtype, parse


@dataclass
class SavedArray:
    """An array of version 1 with its slices in the files."""

    shape: tuple[int, ...]
    dtype: int
    """Code of a DataType."""
    parts: list[memoryview] = field(default_factory=list)
    """Messages SavedTensorSlices with one slice each; parsed when the array is read."""

    def array(self) -> NDArray[Any]:
        """Assemble the array; bfloat16 becomes float32. Raises ValueError if parts are missing."""
        if not self.parts:
            raise ValueError("all of its parts are missing")
        saved = [parse("SavedTensorSlices", part).data for part in self.parts]
        arrays = [(as_index(part.slice), _elements(part.data, numpy_dtype(self.dtype))) for part in saved]
        whole = np.empty(self.shape, arrays[0][1].dtype)
        num_filled = 0
        for place, flat in arrays:
            target = whole[place]
            num_filled += target.size
            # A part with a single element has this value everywhere.
            whole[place] = np.broadcast_to(flat, target.size).reshape(target.shape)
        if num_filled != whole.size:
            raise ValueError(f"only {num_filled} of {whole.size} elements exist")
        return whole


def read_tables(paths: list[Path]) -> dict[str, SavedArray]:
    """Return the arrays of the tables in these files. Raises ValueError if they are not tables, or are damaged."""
    saved: dict[str, SavedArray] = {}
    for path in paths:
        for _, value in table_items(mapped(path)):
            message = parse("SavedTensorSlices", value)
            for meta in message.meta.tensor:  # in the table's first entry, whose key is empty
                saved.setdefault(meta.name, SavedArray(_shape(meta), meta.type))
            if message.HasField("data"):
                if message.data.name not in saved:
                    raise ValueError(f"{message.data.name} is not in the list of {path.name}")
                saved[message.data.name].parts.append(value)
    return saved


def _elements(tensor: Any, dtype: str) -> NDArray[Any]:
    """Return the flat elements of a message Tensor. A single element may mean that all elements have its value."""
    if tensor.tensor_content:
        return array_of(tensor.tensor_content, dtype, (-1,))
    # Only one of the lists of numbers is filled, depending on the type.
    flat = np.array(next((values for _, values in tensor.ListFields()), ()))
    if dtype in (BFLOAT16, "<f2"):  # stored as bits
        return array_of(flat.astype("<u2").tobytes(), dtype, (-1,))
    return flat.astype(dtype)


_STATE_NAME = re.compile(r'model_checkpoint_path:\s*"([^"]+)"')
_BIG_ENDIAN = 1
_SLICE = b"\x00"
"""First byte of the keys of parts of arrays."""


class TensorFlowCheckpoint(Mapping[str, NDArray[Any]]):
    """The arrays of a checkpoint by name, each read when it is accessed. bfloat16 is converted to float32.

    `path` is the prefix (`model.ckpt-1000000`), any of its files, or a folder with the file `checkpoint`, which names
    the newest checkpoint. Raises CheckpointError if there is none, or its index is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.prefix = _prefix(path)
        index = self.prefix.with_name(self.prefix.name + ".index")
        self._shards: dict[int, memoryview] = {}
        self._readers: dict[str, Callable[[], NDArray[Any]]] = {}
        try:
            if index.is_file():
                values = dict(table_items(mapped(index)))
                header = parse("BundleHeader", values.pop(b"", b""))
                if header.endianness == _BIG_ENDIAN:
                    raise ValueError("it was written by a big-endian machine, which is not supported")
                self._num_shards = header.num_shards or 1
                self._entries = {key: parse("BundleEntry", value) for key, value in values.items()}
                for key, entry in self._entries.items():
                    if not key.startswith(_SLICE):
                        self._readers[key.decode()] = partial(self._from_bundle, key.decode(), entry)
            else:
                self._readers = {name: saved.array for name, saved in read_tables(_table_files(self.prefix)).items()}
        except (ValueError, OSError, LookupError, struct.error) as error:
            raise _unreadable(f"checkpoint {self.prefix}", error) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Read an array. Raises KeyError if there is none, and CheckpointError if its data is missing or damaged."""
        reader = self._readers[name]
        try:
            return reader()
        except (ValueError, OSError, TypeError, LookupError, MemoryError, OverflowError) as error:
            raise _unreadable(f"{name} of checkpoint {self.prefix}", error) from error

    def _from_bundle(self, name: str, entry: Any) -> NDArray[Any]:
        dtype, shape = numpy_dtype(entry.dtype), _shape(entry)
        if entry.slices:
            # A key consists of 0, the name, its end, and the extents in an order-preserving code. The table is sorted,
            # so its parts are in the order of their extents. Source: tensorflow/core/lib/strings/ordered_code.cc.
            beginning = _SLICE + name.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x01"
            own = [part for key, part in self._entries.items() if key.startswith(beginning)]
            if len(own) != len(entry.slices):
                raise ValueError("a part of it is missing")
            whole = np.empty(shape, "<f4" if dtype == BFLOAT16 else dtype)
            for part, own_entry in zip(sorted(entry.slices, key=_extents), own, strict=True):
                whole[as_index(part)] = self._from_bundle(name, own_entry)
            return whole
        content = self._shard(entry.shard_id)[entry.offset : entry.offset + entry.size]
        if len(content) != entry.size:
            raise ValueError(f"{self._shard_name(entry.shard_id)} is truncated")
        if masked(crc32c(content)) != entry.crc32c:
            raise ValueError(f"its bytes in {self._shard_name(entry.shard_id)} have a wrong checksum")
        return array_of(content, dtype, shape)

    def _shard_name(self, shard: int) -> str:
        return f"{self.prefix.name}.data-{shard:05d}-of-{self._num_shards:05d}"

    def _shard(self, shard: int) -> memoryview:
        if shard not in self._shards:
            self._shards[shard] = mapped(self.prefix.with_name(self._shard_name(shard)))
        return self._shards[shard]


def _unreadable(subject: str, error: Exception) -> CheckpointError:
    return CheckpointError(f"{subject} cannot be read: {error}\n  copy all of its files again")


def _prefix(path: Path) -> Path:
    if path.is_dir():
        state = path / "checkpoint"
        match = _STATE_NAME.search(state.read_text("utf-8", errors="replace")) if state.is_file() else None
        if match:
            return path / Path(match[1]).name
        indexes = sorted(path.glob("*.index"))
        if len(indexes) == 1:
            return indexes[0].with_suffix("")
        raise CheckpointError(
            f"{path} contains {len(indexes)} TensorFlow checkpoints and no file `checkpoint` that names one\n"
            "  give the prefix of one, such as model.ckpt-1000000"
        )
    name = re.sub(r"(\.index|\.meta|\.data-\d+-of-\d+|-\d{5}-of-\d{5})$", "", path.name)
    return path.with_name(name)


def _table_files(prefix: Path) -> list[Path]:
    if prefix.is_file():
        return [prefix]
    files = sorted(prefix.parent.glob(f"{prefix.name}-[0-9]*-of-[0-9]*")) if prefix.parent.is_dir() else []
    if not files:
        raise ValueError(f"there is neither {prefix.name}.index nor {prefix.name}")
    return files


def _shape(entry: Any) -> tuple[int, ...]:
    return tuple(dim.size for dim in entry.shape.dim)


def _extents(part: Any) -> list[tuple[int, int]]:
    """Return begin and length of a part of an array along each dimension; the length -1 means the whole dimension."""
    return [(extent.start, extent.length if extent.HasField("length") else -1) for extent in part.extent]
