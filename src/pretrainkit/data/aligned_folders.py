"""Data sets of aligned files: a folder for each modality, and in each one file for each sample.

    ROOT/MODALITY/ANY/STEM.EXTENSION

What belongs together has the same ANY/STEM; where a file is missing, that is said, never papered over by the order of
the others. Tar archives are read by `aligned_streams.py`; both are `Samples`.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pretrainkit.errors import DataError

CROP_SETTINGS = "crop_settings"
"""Folder of the parts that tokens were made of."""


class Samples(ABC):
    """Aligned files of a data set, by index."""

    path: str
    """As the config names it."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[str]:
        """Name of each sample, unique."""

    @abstractmethod
    def has(self, folder: str) -> bool:
        """Whether there is a folder of that name."""

    @abstractmethod
    def read(self, folder: str, index: int) -> bytes:
        """The file of a sample.

        Raises:
            DataError: It cannot be read.
        """

    @abstractmethod
    def name(self, folder: str, index: int) -> str:
        """Of that file, for messages."""

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def fingerprint(self) -> str:
        """Of names, not of contents."""
        return hashlib.blake2b("\n".join([self.path, *self.keys]).encode(), digest_size=16).hexdigest()


class FolderSamples(Samples):
    """Files on a disk."""

    def __init__(self, path: str, suffixes: Mapping[str, Sequence[str]]) -> None:
        """
        Args:
            path: Of the data set.
            suffixes: Folder of each modality to extensions of its files.

        Raises:
            DataError: A folder is missing or empty, or a sample lacks a file.
        """
        self.path, root = path, Path(path)
        self._files = {folder: _list(root, folder, endings) for folder, endings in suffixes.items()}
        self._keys = aligned_keys(path, {folder: list(files) for folder, files in self._files.items()})

    @property
    def keys(self) -> Sequence[str]:
        return self._keys

    def has(self, folder: str) -> bool:
        return folder in self._files

    def read(self, folder: str, index: int) -> bytes:
        path = self.name(folder, index)
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror or error}\n  restore it, or remove its sample"
            ) from error

    def name(self, folder: str, index: int) -> str:
        return os.path.join(self.path, folder, self._files[folder][self._keys[index]])


def folders_of(path: str) -> frozenset[str]:
    """Names of the folders of a data set.

    Raises:
        DataError: There is no such data set.
    """
    try:
        return frozenset(entry.name for entry in os.scandir(path) if entry.is_dir())
    except OSError as error:
        raise DataError(
            f"the data set {path} cannot be read: {error.strerror or error}\n"
            "  give a folder with a folder for each modality, or tar files as in FOLDER/[rgb,caption]/{00..09}.tar"
        ) from error


def aligned_keys(path: str, keys: Mapping[str, Iterable[str]]) -> list[str]:
    """The samples of a data set, sorted.

    Raises:
        DataError: Folders have different samples.
    """
    sets = {folder: frozenset(found) for folder, found in keys.items()}
    everything = frozenset().union(*sets.values())
    problems = [
        f"  {folder} lacks {len(everything - found)}, such as {min(everything - found)}"
        for folder, found in sets.items()
        if found != everything
    ]
    if problems:
        raise DataError(
            "\n".join(
                [
                    f"the modalities of {path} have different samples; of {len(everything)}",
                    *problems,
                    "  add or remove files, or name fewer modalities in data.train",
                ]
            )
        )
    return sorted(everything)


def split_suffix(name: str, endings: Sequence[str]) -> tuple[str, str] | None:
    """A file's name before and from its extension, if that is one of `endings`."""
    lower = name.lower()
    fitting = [ending for ending in endings if lower.endswith(ending)]
    if not fitting:
        return None
    longest = max(fitting, key=len)
    return name[: -len(longest)], name[-len(longest) :]


def _list(root: Path, folder: str, endings: Sequence[str]) -> dict[str, str]:
    """Key to path below the folder."""
    found: dict[str, str] = {}
    for directory, names, files in os.walk(root / folder, followlinks=True):
        names.sort()
        below = os.path.relpath(directory, root / folder)
        for name in sorted(files):
            parts = split_suffix(name, endings)
            if parts is None:
                continue
            prefix = "" if below == "." else f"{below}/"
            key = prefix + parts[0]
            if key in found:
                raise DataError(
                    f"{root / folder} has two files for {key}: {found[key]} and {prefix}{name}\n  remove one of them"
                )
            found[key] = prefix + name
    if not found:
        raise DataError(f"{root / folder} has no files that end in {', '.join(endings)}\n  check data.train")
    return found
