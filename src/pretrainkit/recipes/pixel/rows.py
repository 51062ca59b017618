"""Rows of rendered text in parquet files, by index: pictures that are stored, or text that is drawn when it is asked
for.

Dimensions: N rows, R rows that are asked for, P pixels of a patch's side, U patches of a row up to and with its end
patch, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

import io
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError, DataError, MissingPackageError
from pretrainkit.recipes.pixel.looks import OWN, Look, dressed
from pretrainkit.rendering.folder import load_renderer
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.rendering.row_files import PATCHES, PIXELS

_OPEN_FILES = 256
_KEPT_GROUPS = 4


class ParquetTable:
    """Random access to the rows of files, by groups of rows. Threads may share it; it is pickled as its paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """`paths`: at least one.

        Raises:
            DataError: One cannot be read.
        """
        self.paths = tuple(paths)
        self._lock = threading.Lock()
        self._files: OrderedDict[int, Any] = OrderedDict()
        self._groups: OrderedDict[tuple[int, str], Any] = OrderedDict()

    def __getstate__(self) -> Any:
        return self.paths

    def __setstate__(self, paths: Any) -> None:
        self.__init__(paths)  # type: ignore[misc]

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Of each group of rows: its file, its number there, and the rows up to its end."""
        files, numbers, sizes = [], [], []
        for index in range(len(self.paths)):
            metadata = self._file(index).metadata
            for number in range(metadata.num_row_groups):
                files.append(index)
                numbers.append(number)
                sizes.append(metadata.row_group(number).num_rows)
        return np.array(files, np.int64), np.array(numbers, np.int64), np.cumsum(sizes, dtype=np.int64)

    def __len__(self) -> int:
        ends = self._places[2]
        return int(ends[-1]) if len(ends) else 0

    @property
    def rows_per_group(self) -> float:
        """On average."""
        return len(self) / max(1, len(self._places[2]))

    def column(self, name: str) -> NDArray[Any]:
        """(N,) all values of a column of numbers."""
        import pyarrow.parquet

        return np.concatenate(
            [pyarrow.parquet.read_table(path, columns=[name])[name].to_numpy() for path in self.paths]
        )

    def values(self, name: str, rows_R: NDArray[np.int64]) -> list[Any]:
        """The values of a column in rows; each group of rows is read once."""
        files, numbers, ends = self._places
        group_R = np.searchsorted(ends, rows_R, side="right")
        found: list[Any] = [None] * len(rows_R)
        for group in np.unique(group_R).tolist():
            begin = int(ends[group - 1]) if group else 0
            values = self._group(group, int(files[group]), int(numbers[group]), name)
            for place in np.flatnonzero(group_R == group).tolist():
                found[place] = values[int(rows_R[place]) - begin].as_py()
        return found

    def _group(self, group: int, file: int, number: int, name: str) -> Any:
        with self._lock:
            values = self._groups.pop((group, name), None)
            if values is None:
                values = self._file(file).read_row_group(number, columns=[name])[name].combine_chunks()
            self._groups[group, name] = values
            while len(self._groups) > _KEPT_GROUPS:
                self._groups.popitem(last=False)
            return values

    def _file(self, index: int) -> Any:
        import pyarrow
        import pyarrow.parquet

        opened = self._files.pop(index, None)
        if opened is None:
            try:
                opened = pyarrow.parquet.ParquetFile(self.paths[index], memory_map=True)
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(
                    f"{self.paths[index]}: not a parquet file, or damaged: {error}\n  fetch or make it again"
                ) from error
        self._files[index] = opened
        while len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)
        return opened


class Rows(ABC):
    """Rendered rows, some of which may be left out."""

    def __init__(self, table: ParquetTable, fingerprint: str, name: str, rendering: str | None = None) -> None:
        """
        Args:
            table: Has a column `num_patches`.
            fingerprint: Of the rows.
            name: For messages.
            rendering: Fingerprint of what draws, or drew, them; None: unknown.
        """
        self.table, self.fingerprint, self.name, self.rendering = table, fingerprint, name, rendering
        self.num_patches_N = table.column(PATCHES).astype(np.int32)
        self.kept_N = np.arange(len(self.num_patches_N), dtype=np.int64)
        self.remark = ""
        """What whoever trains on them should know."""

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Leave out all rows but `chosen`, (N,)."""
        self.kept_N, self.num_patches_N = self.kept_N[chosen], self.num_patches_N[chosen]

    def __len__(self) -> int:
        return len(self.kept_N)

    def num_text_patches(self, rows_R: NDArray[np.int64], looks: Sequence[Look] | None = None) -> NDArray[np.int32]:
        """(R,): patches before the end patch of each row; `looks`: how it is drawn, None as its renderer says."""
        return self.num_patches_N[rows_R]

    def strips(self, rows_R: NDArray[np.int64], looks: Sequence[Look] | None = None) -> list[NDArray[np.uint8]]:
        """uint8 (P, U * P) or (P, U * P, C) of each row: up to and with its end patch."""
        return self._strips(self.kept_N[rows_R], self.num_patches_N[rows_R], looks)

    def check(self, look: Look) -> None:
        """That rows can be drawn so. Raises ConfigError or DataError where they cannot."""
        raise ConfigError(
            f"{self.name} has pictures, whose font data.augment cannot change\n"
            "  name plain text or rows of pretrainkit render --text-only, or leave out data.augment.fonts and .sizes"
        )

    @abstractmethod
    def _strips(
        self, rows_R: NDArray[np.int64], num_patches_R: NDArray[np.int32], looks: Sequence[Look] | None
    ) -> list[NDArray[np.uint8]]:
        """Of rows of the table."""

    @abstractmethod
    def describe(self) -> str:
        """What is done for a row, for people."""


class StoredRows(Rows):
    """Pictures as PNG, as `pretrainkit render` and the published sets have them."""

    def describe(self) -> str:
        return "pictures are read"

    def _strips(
        self, rows_R: NDArray[np.int64], num_patches_R: NDArray[np.int32], looks: Sequence[Look] | None
    ) -> list[NDArray[np.uint8]]:
        stored = self.table.values(PIXELS, rows_R)
        return [
            self._strip(int(row), picture, num_patches)
            for row, picture, num_patches in zip(rows_R, stored, num_patches_R.tolist(), strict=True)
        ]

    def _strip(self, row: int, picture: Any, num_patches: int) -> NDArray[np.uint8]:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise MissingPackageError("pillow", "vision", f"reading the pictures of {self.name}") from error
        try:
            with Image.open(io.BytesIO(picture["bytes"])) as image:
                pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("L"))
        except (TypeError, KeyError, OSError, UnidentifiedImageError) as error:
            raise DataError(f"{self.name}: row {row} holds no picture: {error}\n  fetch or make it again") from error
        return pixels[:, : (num_patches + 1) * pixels.shape[0]]


class DrawnRows(Rows):
    """Text, drawn by a renderer."""

    def __init__(
        self,
        table: ParquetTable,
        fingerprint: str,
        name: str,
        open_renderer: Callable[[], Renderer],
        rendering: str | None = None,
    ) -> None:
        """`open_renderer`: picklable; called for every batch, so it should keep what it opens."""
        super().__init__(table, fingerprint, name, rendering)
        self._open_renderer = open_renderer

    def describe(self) -> str:
        return "text is drawn on the way"

    def check(self, look: Look) -> None:
        dressed(self._open_renderer(), look)

    def num_text_patches(self, rows_R: NDArray[np.int64], looks: Sequence[Look] | None = None) -> NDArray[np.int32]:
        found = self.num_patches_N[rows_R]
        places = [place for place, look in enumerate(looks or ()) if look != OWN]
        if looks is None or not places:
            return found
        renderer, texts = self._open_renderer(), self.table.values("text", self.kept_N[rows_R[places]])
        found[places] = [
            dressed(renderer, looks[place]).num_text_patches(text) for place, text in zip(places, texts, strict=True)
        ]
        return found

    def _strips(
        self, rows_R: NDArray[np.int64], num_patches_R: NDArray[np.int32], looks: Sequence[Look] | None
    ) -> list[NDArray[np.uint8]]:
        renderer = self._open_renderer()
        texts = self.table.values("text", rows_R)
        drawn = [dressed(renderer, look) for look in looks] if looks else [renderer] * len(texts)
        return [own.columns(text).swapaxes(0, 1) for own, text in zip(drawn, texts, strict=True)]


@lru_cache(maxsize=4)
def folder_renderer(folder: Path) -> Renderer:
    """The renderer of a folder, once in each process."""
    return load_renderer(folder)
