"""Data sets of aligned files, on a disk or in tar archives.

    ROOT/MODALITY/ANY/STEM.EXTENSION
    ROOT/[rgb,caption,tok_rgb]/shard-{00000..00099}.tar

In folders what belongs together has the same ANY/STEM; where a file is missing, that is said, never papered over by the
order of the others. Of tar archives each modality is one stream of shards, with the same samples in the same order.
Shards lie on a disk or behind an address that fsspec opens (s3://, gs://, https://). Each is gone through once, header
by header; afterwards any sample is read by its offset.

Below are the values of single files: maps with all their bits, arrays, depth without its scale.
"""

import hashlib
import io
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pretrainkit.data import tar
from pretrainkit.errors import DataError

CROP_SETTINGS = "crop_settings"
"""Folder of the parts that tokens were made of."""
_LIST = re.compile(r"\[([^\[\]]+)\]")
Suffixes = Mapping[str, Sequence[str]]
"""Folder of each modality to extensions of its files, in lower case."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_NUMPY = b"\x93NUMPY"
_FARTHEST = 10.0
"""Deviations; of the depth of corridors (TartanAir) 0.5 % lies beyond."""


class Samples(ABC):
    """Aligned files of a data set, by index."""

    path: str
    """As the config names it."""
    keys: Sequence[str]
    """Name of each sample, unique."""
    folders: frozenset[str]
    """Names of the modalities' folders."""

    @abstractmethod
    def read(self, folder: str, index: int) -> bytes:
        """The file of a sample. Raises DataError where it cannot be read."""

    @abstractmethod
    def name(self, folder: str, index: int) -> str:
        """Of that file, for messages."""

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def fingerprint(self) -> str:
        """Of names, not of contents."""
        return hashlib.blake2b("\n".join([self.path, *self.keys]).encode(), digest_size=16).hexdigest()


def is_stream(path: str) -> bool:
    """Whether a path names tar files rather than a folder."""
    return path.endswith(".tar")


def open_samples(path: str, suffixes: Suffixes) -> Samples:
    """The files of a data set. Raises DataError where a folder or archive is missing, empty or broken, or samples
    differ between modalities."""
    return TarSamples(path, suffixes) if is_stream(path) else FolderSamples(path, suffixes)


def folders_of(path: str) -> frozenset[str]:
    """Names of the folders of a data set; of tar files those between the brackets. Raises DataError where there are
    none, or there is no such data set."""
    if is_stream(path):
        match = _LIST.search(path)
        if match is None:
            raise DataError(
                f"{path} does not say where its modalities are\n  write FOLDER/[rgb,caption]/shard-{{00000..00009}}.tar"
            )
        return frozenset(name.strip() for name in match[1].split(","))
    try:
        return frozenset(entry.name for entry in os.scandir(path) if entry.is_dir())
    except OSError as error:
        raise DataError(
            f"the data set {path} cannot be read: {error.strerror or error}\n"
            "  give a folder with a folder for each modality, or tar files as in FOLDER/[rgb,caption]/{00..09}.tar"
        ) from error


def archives_of(path: str, folder: str) -> list[str]:
    """The tar files of one modality, in order."""
    return tar.expand_braces(_LIST.sub(folder, path, count=1))


class FolderSamples(Samples):
    """Files on a disk, sorted by name."""

    def __init__(self, path: str, suffixes: Suffixes) -> None:
        self.path, self.folders = path, frozenset(suffixes)
        self._files = {folder: _list(Path(path, folder), endings) for folder, endings in suffixes.items()}
        everything = frozenset[str]().union(*self._files.values())
        problems = [
            f"  {folder} lacks {len(missing)}, such as {min(missing)}"
            for folder, files in self._files.items()
            if (missing := everything - files.keys())
        ]
        if problems:
            raise DataError(
                f"the modalities of {path} have different samples; of {len(everything)}\n"
                + "\n".join([*problems, "  add or remove files, or name fewer modalities in data.train"])
            )
        self.keys = sorted(everything)

    def read(self, folder: str, index: int) -> bytes:
        path = self.name(folder, index)
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror or error}\n  restore it, or remove its sample"
            ) from error

    def name(self, folder: str, index: int) -> str:
        return os.path.join(self.path, folder, self._files[folder][self.keys[index]])


def _list(root: Path, endings: Sequence[str]) -> dict[str, str]:
    """Key to path below the folder."""
    found: dict[str, str] = {}
    for directory, names, files in os.walk(root, followlinks=True):
        names.sort()
        below = os.path.relpath(directory, root)
        prefix = "" if below == "." else f"{below}/"
        for name in sorted(files):
            stem = _stem(name, endings)
            if stem is None:
                continue
            key = prefix + stem
            if key in found:
                raise DataError(
                    f"{root} has two files for {key}: {found[key]} and {prefix}{name}\n  remove one of them"
                )
            found[key] = prefix + name
    if not found:
        raise DataError(f"{root} has no files that end in {', '.join(endings)}\n  check data.train")
    return found


def _stem(name: str, endings: Sequence[str]) -> str | None:
    """A file's name before its extension, the longest of `endings` that fits; None: none does."""
    fitting = [len(ending) for ending in endings if name.lower().endswith(ending)]
    return name[: -max(fitting)] if fitting else None


class TarSamples(Samples):
    """Files inside of archives, as stored."""

    def __init__(self, path: str, suffixes: Suffixes) -> None:
        self.path, self.folders = path, frozenset(suffixes)
        self._streams = {folder: _Stream(path, folder, endings) for folder, endings in suffixes.items()}
        first, *others = self._streams.values()
        for other in others:
            _check_equal(path, first, other)
        self.keys = first.keys

    def read(self, folder: str, index: int) -> bytes:
        stream = self._streams[folder]
        try:
            return stream.reader.read(*stream.rows[index])
        except OSError as error:
            raise DataError(f"{self.name(folder, index)} cannot be read: {error}\n  fetch the archive again") from error

    def name(self, folder: str, index: int) -> str:
        stream = self._streams[folder]
        return f"{stream.archives[stream.rows[index][0]]}, {stream.keys[index].partition('/')[2]}"


class _Stream:
    """The archives of one modality."""

    def __init__(self, path: str, folder: str, endings: Sequence[str]) -> None:
        self.folder, self.archives = folder, archives_of(path, folder)
        settings = f"fourm {' '.join(endings)}"
        absent = [one for one in self.archives if not tar.is_address(one) and not os.path.isfile(one)]
        if absent:
            raise DataError(f"{len(absent)} archives are missing, such as {absent[0]}\n  check data.train: {path}")
        tables = tar.cached_tables(self.archives, settings, lambda one: _table(one, endings))
        self.reader = tar.TarReader(self.archives)
        self.keys: list[str] = []
        self.rows: list[tuple[int, int, int]] = []
        """Of each sample: number of the archive, offset, bytes."""
        for number, table in enumerate(tables):
            keys, offsets, sizes = (table.column(name).to_pylist() for name in ("key", "offset", "num_bytes"))
            self.keys += [f"{number:05d}/{key}" for key in keys]
            self.rows += [(number, offset, size) for offset, size in zip(offsets, sizes, strict=True)]


def _table(path: str, endings: Sequence[str]) -> pa.Table:
    rows = [
        {"key": stem.removeprefix("./"), "offset": member.offset, "num_bytes": member.num_bytes}
        for member in tar.members(path)
        if (stem := _stem(member.name, endings)) is not None
    ]
    schema = pa.schema([("key", pa.string()), ("offset", pa.int64()), ("num_bytes", pa.int64())])
    return pa.Table.from_pylist(rows, schema=schema)


def _check_equal(path: str, first: _Stream, other: _Stream) -> None:
    if first.keys == other.keys:
        return
    pairs = enumerate(zip_longest(first.keys, other.keys, fillvalue="nothing"))
    place, shown = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    raise DataError(
        f"the archives of {path} differ: {first.folder} has {len(first.keys)} samples, {other.folder} "
        f"{len(other.keys)}; the first difference is sample {place}, {shown[0]} and {shown[1]}\n"
        "  every modality must have the same samples in the same order; make the shards anew"
    )


def read_map(content: bytes, name: str) -> NDArray[Any]:
    """(H, W) the first channel of an image with all its bits (of a palette image the numbers), or a stored array.
    Raises DataError where it is broken, an array of another shape, or has values that are not numbers."""
    if content[: len(_NUMPY)] == _NUMPY:
        found = read_array(content, name)
        if found.ndim != 2:
            raise DataError(f"{name} holds {found.shape}, not a map (H, W)\n  replace the file or leave its sample out")
        require_numbers(found, name)
        return found
    try:
        values = np.asarray(_open(content))
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise _broken(name, error) from error
    return values if values.ndim == 2 else values[..., 0]


def map_size(content: bytes, name: str) -> tuple[int, int]:
    """(height, width) of what `read_map` gives; of an image by its header alone. Raises DataError where it is broken,
    or an array of another shape."""
    if content[: len(_NUMPY)] == _NUMPY:
        height, width = read_map(content, name).shape
        return height, width
    try:
        width, height = _open(content).size
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise _broken(name, error) from error
    return height, width


def require_numbers(values: NDArray[Any], name: str) -> None:
    """Refuse NaN, which would turn a whole part, and then a loss, into NaN. Raises DataError where there is one."""
    if values.dtype.kind == "f" and (num_nan := int(np.isnan(values).sum())):
        raise DataError(
            f"{name} has NaN in {num_nan:,} of {values.size:,} places\n"
            "  write numbers there, such as the largest depth, or leave its sample out"
        )


def _open(content: bytes) -> Any:
    from pretrainkit.images.pillow import require_pillow

    require_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:  # its own text is the address of a buffer
        raise ValueError("of no known image format" if content else "the file is empty") from error


def _broken(name: str, error: Exception) -> DataError:
    return DataError(f"image {name} is broken: {error}\n  replace the file or leave its sample out")


def read_array(content: bytes, name: str) -> NDArray[Any]:
    """One array that `numpy.save` wrote. Raises DataError where it is none."""
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{name} cannot be read as an array: {error}\n  write it with numpy.save") from error
    if not isinstance(found, np.ndarray):
        raise DataError(f"{name} holds several arrays\n  write one with numpy.save")
    return found


def standardised(depth_HW: NDArray[np.floating]) -> NDArray[np.float64]:
    """Depth without its scale and offset: mean 0 and deviation 1 of the middle 80 %, at most `_FARTHEST` from 0.

    The original has no such limit. Where the middle is flat, as of small things on a wide ground, all else is then
    thousands of deviations away, and a loss sees nothing but that.
    """
    values = np.sort(depth_HW, axis=None)
    edge = len(values) // 10
    middle = values[edge : len(values) - edge] if len(values) > 2 * edge else values
    mean = middle.mean(dtype=np.float64)
    found = (depth_HW - mean) / math.sqrt(middle.var(dtype=np.float64) + 1e-6)
    return found.clip(-_FARTHEST, _FARTHEST)
