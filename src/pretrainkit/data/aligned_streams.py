"""Data sets of aligned tar files: for each modality one stream of shards, with the same samples in the same order.

    ROOT/[rgb,caption,tok_rgb]/shard-{00000..00099}.tar

Shards lie on a disk or behind an address that fsspec opens (s3://, gs://, https://). Each is gone through once, header
by header; afterwards any sample is read by its offset.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pretrainkit.data.aligned_folders import Samples, split_suffix
from pretrainkit.data.tar import (
    RemoteTarReader,
    TarReader,
    cached_remote_table,
    cached_tables,
    expand_braces,
    is_address,
    members,
)
from pretrainkit.errors import DataError

_LIST = re.compile(r"\[([^\[\]]+)\]")


def is_stream(path: str) -> bool:
    """Whether a path names tar files rather than a folder."""
    return path.endswith(".tar")


def stream_folders(path: str) -> frozenset[str]:
    """Names between the brackets.

    Raises:
        DataError: There are none.
    """
    match = _LIST.search(path)
    if match is None:
        raise DataError(
            f"{path} does not say where its modalities are\n  write FOLDER/[rgb,caption]/shard-{{00000..00009}}.tar"
        )
    return frozenset(name.strip() for name in match[1].split(","))


def archives_of(path: str, folder: str) -> list[str]:
    """The tar files of one modality, in order."""
    return expand_braces(_LIST.sub(folder, path, count=1))


class TarSamples(Samples):
    """Files inside of archives."""

    def __init__(self, path: str, suffixes: Mapping[str, Sequence[str]]) -> None:
        """
        Args:
            path: Pattern of the archives.
            suffixes: Folder of each modality to extensions of its files.

        Raises:
            DataError: An archive is missing or broken, or samples differ between modalities.
        """
        self.path = path
        self._streams = {folder: _Stream(path, folder, endings) for folder, endings in suffixes.items()}
        first, *others = self._streams.values()
        for other in others:
            _check_equal(path, first, other)
        self._keys = first.keys

    @property
    def keys(self) -> Sequence[str]:
        return self._keys

    def has(self, folder: str) -> bool:
        return folder in self._streams

    def read(self, folder: str, index: int) -> bytes:
        return self._streams[folder].read(index)

    def name(self, folder: str, index: int) -> str:
        return self._streams[folder].name(index)


class _Stream:
    """The archives of one modality."""

    def __init__(self, path: str, folder: str, endings: Sequence[str]) -> None:
        self.folder = folder
        self._archives = archives_of(path, folder)
        settings = f"fourm {' '.join(endings)}"
        tables: list[pa.Table]
        self._reader: TarReader | RemoteTarReader
        if is_address(path):
            tables = [
                cached_remote_table(archive, settings, partial(_table, archive, endings)) for archive in self._archives
            ]
            self._reader = RemoteTarReader(self._archives)
        else:
            paths = [Path(archive) for archive in self._archives]
            absent = [str(one) for one in paths if not one.is_file()]
            if absent:
                raise DataError(f"{len(absent)} archives are missing, such as {absent[0]}\n  check data.train: {path}")
            tables = cached_tables(paths, settings, lambda one: _table(one, endings))
            self._reader = TarReader(paths)
        self.keys = [
            f"{number:05d}/{key}" for number, table in enumerate(tables) for key in table.column("key").to_pylist()
        ]
        self._rows = [
            (number, offset, size)
            for number, table in enumerate(tables)
            for offset, size in zip(
                table.column("offset").to_pylist(), table.column("num_bytes").to_pylist(), strict=True
            )
        ]

    def read(self, index: int) -> bytes:
        """One file."""
        try:
            return self._reader.read(*self._rows[index])
        except OSError as error:
            raise DataError(f"{self.name(index)} cannot be read: {error}\n  fetch the archive again") from error

    def name(self, index: int) -> str:
        """Of a file, for messages."""
        return f"{self._archives[self._rows[index][0]]}, {self.keys[index].partition('/')[2]}"


def _table(path: Path | str, endings: Sequence[str]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for member in members(path):
        parts = split_suffix(member.name, endings)
        if parts is not None:
            rows.append({"key": parts[0].removeprefix("./"), "offset": member.offset, "num_bytes": member.num_bytes})
    schema = pa.schema([("key", pa.string()), ("offset", pa.int64()), ("num_bytes", pa.int64())])
    return pa.Table.from_pylist(rows, schema=schema)


def _check_equal(path: str, first: _Stream, other: _Stream) -> None:
    if first.keys == other.keys:
        return
    place = next(
        (n for n, (a, b) in enumerate(zip(first.keys, other.keys, strict=False)) if a != b),
        min(len(first.keys), len(other.keys)),
    )
    shown = [keys[place] if place < len(keys) else "nothing" for keys in (first.keys, other.keys)]
    raise DataError(
        f"the archives of {path} differ: {first.folder} has {len(first.keys)} samples, {other.folder} "
        f"{len(other.keys)}; the first difference is sample {place}, {shown[0]} and {shown[1]}\n"
        "  every modality must have the same samples in the same order; make the shards anew"
    )
