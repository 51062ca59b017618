"""OCDBT, the key-value store of TensorStore in which Orbax keeps the arrays of a checkpoint: values by key in a folder.

`manifest.ocdbt` says where the root of the newest version lies: a node of a B+tree, in one of the data files. A leaf
has values, or where they lie. Numbers are varints unless said otherwise.

Source: https://github.com/google/tensorstore/blob/master/tensorstore/kvstore/ocdbt/index.rst; the byte for the kind of
manifest, which that page leaves out, is in format/config_codec.h.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pretrainkit.errors import CheckpointError
from pretrainkit.formats.crc32c import crc32c
from pretrainkit.formats.protobuf import Buffer, varint

MANIFEST = "manifest.ocdbt"
_MANIFEST_MAGIC, _NODE_MAGIC = 0x0CDB3A2A, 0x0CDB20DE
_HEADER = struct.Struct(">I")
_LENGTH = struct.Struct("<Q")
_PLAIN, _ZSTD = 0, 1
_SINGLE_MANIFEST = 0
_CRC_BYTES = 4


@dataclass(frozen=True)
class _Place:
    """Bytes in a data file."""

    path: str
    """From the folder."""
    base: str
    """What the paths in a node that lies there begin with."""
    offset: int
    size: int


class OcdbtStore(Mapping[str, bytes]):
    """The newest version of a store.

    Args:
        folder: With `manifest.ocdbt` in it.

    Raises:
        CheckpointError: It is no store, or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._values: dict[str, _Place | bytes] = {}
        try:
            root, height = self._root()
            if root is not None:
                self._values = dict(self._items(root, height, b""))
        except (ValueError, OSError, IndexError, struct.error) as error:
            raise CheckpointError(f"{folder} cannot be read: {error}\n  copy the whole folder again") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: str) -> bytes:
        found = self._values[key]
        return found if isinstance(found, bytes) else self._content(found)

    def _content(self, place: _Place) -> bytes:
        path = self.folder / place.path
        if self.folder.resolve() not in path.resolve().parents:
            raise ValueError(f"it names {place.path}, which lies outside")
        with open(path, "rb") as file:
            file.seek(place.offset)
            content = file.read(place.size)
        if len(content) != place.size:
            raise ValueError(f"{place.path} is cut off")
        return content

    def _root(self) -> tuple[_Place | None, int]:
        """Where the newest version's root lies, and its height; None where it has no keys."""
        reader = _body((self.folder / MANIFEST).read_bytes(), _MANIFEST_MAGIC, MANIFEST)
        reader.take(16)  # the id of the store
        if reader.byte() != _SINGLE_MANIFEST:
            raise ValueError("its manifest is in several files, which are not read")
        reader.numbers(2)
        reader.byte()
        if reader.number() == _ZSTD:
            reader.take(4)
        files = reader.files("")
        num = reader.number()
        reader.numbers(num)  # generations, ascending
        heights = reader.take(num)
        ids, offsets, sizes, num_keys = (reader.numbers(num) for _ in range(4))
        if not num or not num_keys[-1]:
            return None, 0
        path, base = files[ids[-1]]
        return _Place(path, base, offsets[-1], sizes[-1]), heights[-1]

    def _items(self, place: _Place, height: int, prefix: bytes) -> Iterator[tuple[str, _Place | bytes]]:
        reader = _body(self._content(place), _NODE_MAGIC, place.path)
        if reader.byte() != height:
            raise ValueError(f"a node in {place.path} has another height than its parent says")
        files = reader.files(place.base)
        num = reader.number()
        shared = [0, *reader.numbers(num - 1)]
        own = reader.numbers(num)
        if height:
            common = reader.numbers(num)
            keys = reader.keys(shared, own)
            ids, offsets, sizes = (reader.numbers(num) for _ in range(3))
            for entry in range(num):
                path, base = files[ids[entry]]
                child = _Place(path, base, offsets[entry], sizes[entry])
                yield from self._items(child, height - 1, prefix + keys[entry][: common[entry]])
            return
        keys = reader.keys(shared, own)
        sizes, kinds = reader.numbers(num), reader.numbers(num)
        far = [entry for entry in range(num) if kinds[entry]]
        ids, offsets = reader.numbers(len(far)), reader.numbers(len(far))
        places: dict[int, _Place] = {}
        for entry, file, offset in zip(far, ids, offsets, strict=True):
            path, base = files[file]
            places[entry] = _Place(path, base, offset, sizes[entry])
        for entry, key in enumerate(keys):
            value = places[entry] if entry in places else bytes(reader.take(sizes[entry]))
            yield (prefix + key).decode(), value


def _body(data: bytes, magic: int, name: str) -> "_Reader":
    """What is between a header (magic, length, version, compression) and its CRC."""
    (found,) = _HEADER.unpack_from(data)
    (size,) = _LENGTH.unpack_from(data, 4)
    if found != magic or size != len(data):
        raise ValueError(f"{name} has no header of OCDBT, or is cut off")
    if crc32c(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
        raise ValueError(f"{name} has a wrong checksum")
    reader = _Reader(memoryview(data)[12:-_CRC_BYTES])
    version, compression = reader.numbers(2)
    if version or compression not in (_PLAIN, _ZSTD):
        raise ValueError(f"{name} is of version {version} with compression {compression}, which are not known")
    rest = reader.data[reader.place :]
    if compression == _ZSTD:
        import zstandard

        try:
            rest = memoryview(zstandard.ZstdDecompressor().decompressobj().decompress(rest))
        except zstandard.ZstdError as error:
            raise ValueError(f"{name} cannot be decompressed: {error}") from error
    return _Reader(rest)


class _Reader:
    def __init__(self, data: Buffer) -> None:
        self.data, self.place = data, 0

    def take(self, num_bytes: int) -> Buffer:
        taken = self.data[self.place : self.place + num_bytes]
        if len(taken) != num_bytes:
            raise ValueError("a node is cut off")
        self.place += num_bytes
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        found, self.place = varint(self.data, self.place)
        return found

    def numbers(self, num: int) -> list[int]:
        return [self.number() for _ in range(num)]

    def keys(self, shared: list[int], own: list[int]) -> list[bytes]:
        """Each is the beginning of the one before and bytes of its own."""
        found, last = [], b""
        for num_shared, num_own in zip(shared, own, strict=True):
            last = last[:num_shared] + bytes(self.take(num_own))
            found.append(last)
        return found

    def files(self, base: str) -> list[tuple[str, str]]:
        """(path, what the paths in its nodes begin with) of each file of a table."""
        num = self.number()
        shared = [0, *self.numbers(num - 1)] if num else []
        own, base_sizes = self.numbers(num), self.numbers(num)
        paths = self.keys(shared, own)
        return [
            (base + path.decode(), base + path[:size].decode()) for path, size in zip(paths, base_sizes, strict=True)
        ]
