"""TensorFlow's checkpoints without TensorFlow: named arrays.

Version 2 ("tensor bundle"): `PREFIX.index`, a table of names to where each array lies, and `PREFIX.data-00000-of-00002`
with their elements. Version 1: tables `PREFIX`, or `PREFIX-00000-of-00002`, that hold slices of the arrays themselves.

Source: tensorflow/core/protobuf/{tensor_bundle,saved_tensor_slice}.proto, tensorflow/core/util/tensor_bundle.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import CheckpointError
from pretrainkit.formats.crc32c import crc32c, masked
from pretrainkit.formats.protobuf import Buffer, fields
from pretrainkit.formats.tensor_slice import TensorSlice, as_index, parse_key, parse_slice
from pretrainkit.formats.tensor_table import mapped, table_items
from pretrainkit.formats.tf_saved_slices import SavedArray, read_tables
from pretrainkit.formats.tf_types import BFLOAT16, array_of, numpy_dtype, parse_shape

_STATE_NAME = re.compile(r'model_checkpoint_path:\s*"([^"]+)"')
_BIG_ENDIAN = 1


@dataclass(frozen=True)
class Entry:
    """An array of a bundle, as its index has it."""

    dtype: int = 0
    """Code of a DataType."""
    shape: tuple[int, ...] = ()
    shard: int = 0
    """Number of its data file."""
    offset: int = 0
    """Of its first byte there."""
    num_bytes: int = 0
    crc: int = 0
    """Masked, of its bytes."""
    slices: tuple[TensorSlice, ...] = ()
    """Where the array is stored in parts."""


class TensorFlowCheckpoint(Mapping[str, NDArray[Any]]):
    """The arrays of a checkpoint by name, each read when it is asked for. bfloat16 comes as float32.

    Args:
        path: The prefix (`model.ckpt-1000000`), any of its files, or a folder with the file `checkpoint`, whose newest
            one is taken.

    Raises:
        CheckpointError: There is none, or its index is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.prefix = _prefix(path)
        index = self.prefix.with_name(self.prefix.name + ".index")
        self._shards: dict[str, Buffer] = {}
        self._bundle: dict[str, Entry] = {}
        self._slices: dict[str, SavedArray] = {}
        try:
            if index.is_file():
                self._bundle, self._num_shards = _read_index(mapped(index))
            else:
                self._slices = read_tables(_table_files(self.prefix))
        except (ValueError, OSError) as error:
            raise CheckpointError(
                f"checkpoint {self.prefix} cannot be read: {error}\n  copy its files again, all of them"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._bundle or self._slices)

    def __len__(self) -> int:
        return len(self._bundle or self._slices)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Raises KeyError, and CheckpointError where the data is missing or damaged."""
        try:
            if self._bundle:
                return self._from_bundle(name, self._bundle[name])
            return self._slices[name].array()
        except (ValueError, OSError) as error:
            raise CheckpointError(
                f"{name} of checkpoint {self.prefix} cannot be read: {error}\n  copy its files again, all of them"
            ) from error

    def shape(self, name: str) -> tuple[int, ...]:
        """Of an array, which is not read."""
        return self._bundle[name].shape if self._bundle else self._slices[name].shape

    def _from_bundle(self, name: str, entry: Entry) -> NDArray[Any]:
        if entry.slices:
            return self._from_parts(name, entry)
        shard = self._shard(entry.shard)
        content = shard[entry.offset : entry.offset + entry.num_bytes]
        if len(content) != entry.num_bytes:
            raise ValueError(f"{self._shard_name(entry.shard)} is cut off")
        if masked(crc32c(content)) != entry.crc:
            raise ValueError(f"its bytes in {self._shard_name(entry.shard)} have a wrong checksum")
        return array_of(content, numpy_dtype(entry.dtype), entry.shape)

    def _from_parts(self, name: str, entry: Entry) -> NDArray[Any]:
        """Parts lie under keys that hold the name and the slice; they are found in the order of the slices."""
        dtype = numpy_dtype(entry.dtype)
        whole = np.empty(entry.shape, "<f4" if dtype == BFLOAT16 else dtype)
        parts = {key: part for key, part in self._parts if key[0] == name}
        for one in entry.slices:
            whole[as_index(one)] = self._from_bundle(name, parts[name, one])
        return whole

    @property
    def _parts(self) -> list[tuple[tuple[str, Any], Entry]]:
        index = self.prefix.with_name(self.prefix.name + ".index")
        found = []
        for key, value in table_items(mapped(index)):
            if key.startswith(b"\x00"):
                name, one = parse_key(key)
                found.append(((name, one), _entry(value)))
        return found

    def _shard_name(self, shard: int) -> str:
        return f"{self.prefix.name}.data-{shard:05d}-of-{self._num_shards:05d}"

    def _shard(self, shard: int) -> Buffer:
        name = self._shard_name(shard)
        if name not in self._shards:
            self._shards[name] = mapped(self.prefix.with_name(name))
        return self._shards[name]


def _prefix(path: Path) -> Path:
    if path.is_dir():
        state = path / "checkpoint"
        found = _STATE_NAME.search(state.read_text("utf-8", errors="replace")) if state.is_file() else None
        if found:
            return path / Path(found[1]).name
        indexes = sorted(path.glob("*.index"))
        if len(indexes) == 1:
            return indexes[0].with_suffix("")
        raise CheckpointError(
            f"{path} holds {len(indexes)} checkpoints of TensorFlow and no file `checkpoint` that names one\n"
            "  give the prefix of one, such as model.ckpt-1000000"
        )
    name = re.sub(r"(\.index|\.meta|\.data-\d+-of-\d+|-\d{5}-of-\d{5})$", "", path.name)
    return path.with_name(name)


def _table_files(prefix: Path) -> list[Path]:
    if prefix.is_file():
        return [prefix]
    found = sorted(prefix.parent.glob(f"{prefix.name}-[0-9]*-of-[0-9]*")) if prefix.parent.is_dir() else []
    if not found:
        raise ValueError(f"there is neither {prefix.name}.index nor {prefix.name}")
    return found


def _read_index(data: Buffer) -> tuple[dict[str, Entry], int]:
    """(entries by name, number of data files)."""
    entries: dict[str, Entry] = {}
    num_shards = 1
    for key, value in table_items(data):
        if not key:
            for number, _, header in fields(value):
                if number == 1 and isinstance(header, int):
                    num_shards = header
                if number == 2 and header == _BIG_ENDIAN:
                    raise ValueError("it was written by a big-endian machine")
        elif not key.startswith(b"\x00"):
            entries[key.decode()] = _entry(value)
    return entries, num_shards


def _entry(message: Buffer) -> Entry:
    found: dict[str, Any] = {}
    names = {1: "dtype", 3: "shard", 4: "offset", 5: "num_bytes", 6: "crc"}
    slices = []
    for number, _, value in fields(message):
        if number in names:
            found[names[number]] = value
        elif number == 2 and not isinstance(value, int):
            found["shape"] = parse_shape(value)
        elif number == 7 and not isinstance(value, int):
            slices.append(parse_slice(value))
    return Entry(**found, slices=tuple(slices))
