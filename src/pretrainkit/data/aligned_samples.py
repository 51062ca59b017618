"""Data sets of aligned files, on a disk or in tar archives.

    ROOT/MODALITY/ANY/STEM.EXTENSION
    ROOT/[rgb,caption,tok_rgb]/shard-{00000..00099}.tar

In folders, the files of one sample share ANY/STEM; a missing file is an error. In tar archives, each modality is one
stream of shards, with the same samples in the same order. Shards are on a disk or at an address that fsspec opens
(s3://, gs://, https://). The headers of each shard are read once; afterwards samples are read by their offset.

This module also decodes single files: maps at their full bit depth, arrays, and standardized depth.
"""

import hashlib
import io
import math
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pretrainkit.data import tar
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import expected_form

CROP_SETTINGS = "crop_settings"
"""Folder of the crops from which tokens were computed."""
_LIST = re.compile(r"\[([^\[\]]+)\]")
Suffixes = Mapping[str, Sequence[str]]
"""File extensions of each modality's folder, in lower case."""
_NUMPY = b"\x93NUMPY"
BAD_ARRAYS = (
    *(ValueError, OSError, EOFError, SyntaxError, TokenError, TypeError, LookupError),
    *(MemoryError, OverflowError, RecursionError, NotImplementedError, BadZipFile, zlib.error),
)
"""Errors of `numpy.load`: it parses headers as literals of Python, and makes arrays of the size that they declare.
`zipfile` raises NotImplementedError for unknown compression."""
_NUM_HASHED = 8
"""Samples whose contents are hashed (up to twice as many). All would take long, and the names alone may be those of
other data."""
_FARTHEST = 10.0
"""Limit in standard deviations. It clips 0.5 % of the depth values of corridors (TartanAir)."""


class Samples(ABC):
    """Aligned files of a data set, by index."""

    path: str
    """Path of the data set, as written in the config."""
    keys: Sequence[str]
    """Name of each sample, unique."""
    folders: frozenset[str]
    """Names of the modalities' folders."""

    @abstractmethod
    def read(self, folder: str, index: int) -> bytes:
        """Return the content of a sample's file. Raises DataError if it cannot be read."""

    @abstractmethod
    def name(self, folder: str, index: int) -> str:
        """Return the name of a sample's file, for messages."""

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the names of all samples, and of the contents of a few. The path is not hashed, so data that moved
        are the same."""
        digest = hashlib.blake2b("\n".join([*sorted(self.folders), *self.keys]).encode(), digest_size=16)
        for index in range(0, len(self), max(1, len(self) // _NUM_HASHED)):
            for folder in sorted(self.folders):
                digest.update(self.read(folder, index))
        return digest.hexdigest()


def is_stream(path: str) -> bool:
    """True if the path is a pattern of tar files."""
    return path.endswith(".tar")


def open_samples(path: str, suffixes: Suffixes) -> Samples:
    """Open a data set. Raises DataError if a folder or archive is missing, empty or damaged, or the samples
    differ between modalities."""
    return TarSamples(path, suffixes) if is_stream(path) else FolderSamples(path, suffixes)


def folders_of(path: str) -> frozenset[str]:
    """Return the names of the folders of a data set, for tar files the names in brackets. Raises DataError if the data
    set or its folders do not exist."""
    if is_stream(path):
        match = _LIST.search(path)
        if match is None:
            raise DataError(
                f"{path} has no list of modalities in brackets\n  write FOLDER/[rgb,caption]/shard-{{00000..00009}}.tar"
            )
        return frozenset(name.strip() for name in match[1].split(","))
    try:
        return frozenset(entry.name for entry in os.scandir(path) if entry.is_dir())
    except OSError as error:
        raise DataError(
            f"the data set {path} cannot be read: {error.strerror or error}\n"
            "  use a folder with a folder for each modality, or tar files as in FOLDER/[rgb,caption]/{00..09}.tar"
        ) from error


def archives_of(path: str, folder: str) -> list[str]:
    """Return the tar files of one modality, in order."""
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
                f"the modalities of {path} have different samples ({len(everything)} in all)\n"
                + "\n".join([*problems, "  add or remove files, or name fewer modalities in data.train"])
            )
        self.keys = sorted(everything)

    def read(self, folder: str, index: int) -> bytes:
        path = self.name(folder, index)
        try:
            with open(path, "rb") as file:  # a Path would keep its parts in a table of Python that grows in jumps
                return file.read()
        except OSError as error:
            if os.path.islink(path):
                raise DataError(
                    f"{path} is a link to {os.path.realpath(path)}, which does not exist\n"
                    "  if the data was moved, link its new place (in a project: bash run.sh), or name it in data.train"
                ) from None
            raise DataError(
                f"{path} cannot be read: {error.strerror or error}\n  restore it, or remove its sample"
            ) from error

    def name(self, folder: str, index: int) -> str:
        return os.path.join(self.path, folder, self._files[folder][self.keys[index]])


def _list(root: Path, endings: Sequence[str]) -> dict[str, str]:
    """Return the relative path of each sample's file, by key."""
    paths: dict[str, str] = {}
    others = set[str]()
    for directory, names, files in os.walk(root, followlinks=True):
        names.sort()
        below = os.path.relpath(directory, root)
        prefix = "" if below == "." else f"{below}/"
        for name in sorted(files):
            stem = _stem(name, endings)
            if stem is None:
                others.add(os.path.splitext(name)[1])
                continue
            key = prefix + stem
            if key in paths:
                raise DataError(
                    f"{root} has two files for {key}: {paths[key]} and {prefix}{name}\n  remove one of them"
                )
            paths[key] = prefix + name
    if not paths:
        existing = f"its files end in {', '.join(sorted(others - {''}))}" if others - {""} else "it has no such files"
        raise DataError(
            f"{root} has no files that end in {', '.join(endings)}; {existing}\n"
            "  convert them, or name another folder of the modality"
        )
    return paths


def _stem(name: str, endings: Sequence[str]) -> str | None:
    """Return the name without its extension, the longest match of `endings`; None if no extension matches."""
    fitting = [len(ending) for ending in endings if name.lower().endswith(ending)]
    return name[: -max(fitting)] if fitting else None


class TarSamples(Samples):
    """Files in tar archives, in stored order."""

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
            raise DataError(
                f"{self.name(folder, index)} cannot be read: {error}\n  download the archive again"
            ) from error

    def name(self, folder: str, index: int) -> str:
        stream = self._streams[folder]
        return f"{stream.archives[stream.rows[index][0]]}, {stream.keys[index].partition('/')[2]}"


class _Stream:
    """The archives of one modality."""

    def __init__(self, path: str, folder: str, endings: Sequence[str]) -> None:
        self.folder, self.archives = folder, archives_of(path, folder)
        settings = f"fourm {' '.join(endings)}"
        absent = [path for path in self.archives if not tar.is_address(path) and not os.path.isfile(path)]
        if absent:
            raise DataError(f"{len(absent)} archives are missing, such as {absent[0]}\n  check data.train: {path}")
        tables = tar.cached_tables(self.archives, settings, lambda archive: _table(archive, endings))
        self.reader = tar.TarReader(self.archives)
        self.keys: list[str] = []
        self.rows: list[tuple[int, int, int]] = []
        """Archive number, offset and size in bytes of each sample."""
        for number, table in enumerate(tables):
            with expected_form(f"the index of {self.archives[number]}", "remove the .index files beside it"):
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
        "  every modality must have the same samples in the same order; create the shards again"
    )


def read_map(content: bytes, name: str) -> NDArray[Any]:
    """Return the values of a grey image at full bit depth (palette indices of a palette image), or a stored array,
    (H, W). A grey image may be stored as colours. Raises DataError if the file is damaged, has colours or another
    shape, or contains NaN."""
    if content[: len(_NUMPY)] == _NUMPY:
        array = read_array(content, name)
        if array.ndim != 2:
            raise DataError(
                f"{name} has the shape {array.shape}, not (H, W)\n  replace the file, or leave out its sample"
            )
        require_numbers(array, name)
        return array
    try:
        values = np.asarray(_open(content))
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise _broken_image(name, error) from error
    if values.ndim == 2:
        return values
    if values.shape[2] > 2 and (values[..., :1] != values[..., 1:3]).any():
        raise DataError(
            f"{name} has colours, but a map has one number per pixel\n"
            "  write the classes or depths themselves, as a grey image or .npy"
        )
    return values[..., 0]


def map_size(content: bytes, name: str) -> tuple[int, int]:
    """Return (height, width) of the map; of an image only the header is read. Raises DataError if the file is
    damaged, or is an array of another shape."""
    if content[: len(_NUMPY)] == _NUMPY:
        height, width = read_map(content, name).shape
        return height, width
    try:
        width, height = _open(content).size
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise _broken_image(name, error) from error
    return height, width


def require_same_view(name: str, size: tuple[int, int], first_name: str, first_size: tuple[int, int]) -> None:
    """Raise DataError if two files of a sample do not have the same shape at different scales, up to rounding to whole
    pixels. Sizes are (height, width)."""
    small, large = sorted((size, first_size))
    height, width = large[0] * small[1] / large[1], large[1] * small[0] / large[0]
    if abs(height - small[0]) >= 1 and abs(width - small[1]) >= 1:
        raise DataError(
            f"{name} has {size[1]} x {size[0]} pixels, but {first_name} has another shape, "
            f"{first_size[1]} x {first_size[0]}\n  all images and maps of a sample must show the same view: "
            "crop and turn them in the same way (photographs are turned by their EXIF orientation), or leave "
            "out the sample"
        )


def require_numbers(values: NDArray[Any], name: str, *, is_finite: bool = False) -> None:
    """Raise DataError if a value is NaN, or infinite if `is_finite`, because it would make the loss NaN."""
    if values.dtype.kind != "f":
        return
    is_wrong = ~np.isfinite(values) if is_finite else np.isnan(values)
    if num_wrong := int(is_wrong.sum()):
        kinds = "NaN or infinite values" if is_finite and not np.isnan(values[is_wrong]).all() else "NaN"
        advice = "finite numbers" if is_finite else "numbers there, such as the largest depth"
        raise DataError(
            f"{name} has {kinds} in {num_wrong:,} of {values.size:,} places\n  write {advice}, or leave its sample out"
        )


def _open(content: bytes) -> Any:
    from pretrainkit.images.pillow import open_with_pillow, require_pillow

    require_pillow()
    from PIL import UnidentifiedImageError

    try:
        return open_with_pillow(content)
    except UnidentifiedImageError as error:  # its text is only the address of a buffer
        raise ValueError("the image format is unknown" if content else "the file is empty") from error


def _broken_image(name: str, error: Exception) -> DataError:
    return DataError(f"image {name} is broken: {error}\n  replace the file or leave its sample out")


def read_array(content: bytes, name: str) -> NDArray[Any]:
    """Return the array of a file that `numpy.save` wrote. Raises DataError if the file is not such an array."""
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except BAD_ARRAYS as error:
        raise DataError(f"{name} cannot be read as an array: {error}\n  write it with numpy.save") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{name} contains several arrays\n  write one with numpy.save")
    return array


def standardised(depth_HW: NDArray[np.floating]) -> NDArray[np.float64]:
    """Standardize depth to mean 0 and deviation 1 of its middle 80 %, clipped to `_FARTHEST` deviations.

    The original does not clip. If the middle is flat, such as a wide ground with small objects, other values are
    thousands of deviations away and would dominate the loss.
    """
    values = np.sort(depth_HW, axis=None)
    edge = len(values) // 10
    middle = values[edge : len(values) - edge] if len(values) > 2 * edge else values
    mean = middle.mean(dtype=np.float64)
    values = (depth_HW - mean) / math.sqrt(middle.var(dtype=np.float64) + 1e-6)
    return values.clip(-_FARTHEST, _FARTHEST)
