"""Rows of rendered text in parquet files, by index: pictures that are stored, or text that is drawn when it is asked
for. A path names a folder of `pretrainkit render`, a published set, or text.

Dimensions: N rows, R rows that are asked for, P pixels of a patch's side, U patches of a row up to and with its end
patch, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

import hashlib
import io
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from pretrainkit.data.line_index import cache_folder
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.files.manifest import fingerprint, verify
from pretrainkit.images.pillow import require_pillow
from pretrainkit.recipes.pixel.config import PixelDataConfig
from pretrainkit.recipes.pixel.looks import OWN, Look, dressed
from pretrainkit.rendering.documents import Documents, find_documents
from pretrainkit.rendering.folder import load_renderer, open_renderer
from pretrainkit.rendering.identity import describe
from pretrainkit.rendering.prerender import RENDERER_FOLDER, RenderSettings, prerender
from pretrainkit.rendering.relayout import is_rendered, open_parquet, row_files
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.rendering.row_files import PATCHES, PIXELS
from pretrainkit.workers.processes import Quiet

_OPEN_FILES = 256
_KEPT_GROUPS = 4
_LARGE_GROUP = 128
_POORLY_FILLED = 0.5
_TEXT_ONLY = RenderSettings(with_pixels=False)
_logger = logging.getLogger(__name__)


class ParquetTable:
    """Random access to the rows of files, by groups of rows. Threads may share it; it is pickled as its paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """`paths`: at least one. What cannot be read raises DataError when it is opened."""
        self.paths = tuple(paths)
        self._lock = threading.Lock()
        self._file = lru_cache(_OPEN_FILES)(lambda index: open_parquet(self.paths[index]))
        self._group = lru_cache(_KEPT_GROUPS)(self._read_group)

    def __getstate__(self) -> Any:
        return self.paths

    def __setstate__(self, paths: Any) -> None:
        self.__init__(paths)  # type: ignore[misc]

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Files, numbers within them and ends (in rows of the table) of all groups of rows."""
        groups = [
            (index, number, metadata.row_group(number).num_rows)
            for index in range(len(self.paths))
            for metadata in [self._file(index).metadata]
            for number in range(metadata.num_row_groups)
        ]
        files, numbers, sizes = np.array(groups, np.int64).reshape(-1, 3).T
        return files, numbers, np.cumsum(sizes)

    def __len__(self) -> int:
        ends = self._places[2]
        return int(ends[-1]) if len(ends) else 0

    @property
    def rows_per_group(self) -> float:
        """On average."""
        return len(self) / max(1, len(self._places[2]))

    def column(self, name: str) -> NDArray[Any]:
        """(N,) all values of a column of numbers."""
        files = map(self._file, range(len(self.paths)))
        return np.concatenate([file.read(columns=[name])[name].to_numpy() for file in files])

    def values(self, name: str, rows_R: NDArray[np.int64]) -> list[Any]:
        """The values of a column in rows; each group of rows is read once."""
        files, numbers, ends = self._places
        group_R = np.searchsorted(ends, rows_R, side="right")
        found: list[Any] = [None] * len(rows_R)
        for group in np.unique(group_R).tolist():
            begin = int(ends[group - 1]) if group else 0
            with self._lock:  # two threads that miss the same group read it once
                values = self._group(int(files[group]), int(numbers[group]), name)
            for place in np.flatnonzero(group_R == group).tolist():
                found[place] = values[int(rows_R[place]) - begin].as_py()
        return found

    def _read_group(self, file: int, number: int, name: str) -> Any:
        return self._file(file).read_row_group(number, columns=[name])[name].combine_chunks()


class Rows(ABC):
    """Rendered rows, some of which may be left out."""

    way: ClassVar[str]
    """What is done for a row, for people."""

    def __init__(self, table: ParquetTable, fingerprint: str, folder: Path, rendering: str | None = None) -> None:
        """`table`, of files in `folder`, has a column `num_patches`; `rendering` is the fingerprint of what draws, or
        drew, the rows; None: unknown."""
        self.table, self.fingerprint, self.name, self.rendering = table, fingerprint, str(folder), rendering
        self.folder = folder
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

    def check(self, look: Look) -> None:
        """Raises ConfigError or DataError where rows cannot be drawn so."""
        raise ConfigError(
            f"{self.name} has pictures, whose font data.augment cannot change\n"
            "  name plain text or rows of pretrainkit render --text-only, or leave out data.augment.fonts and .sizes"
        )

    @abstractmethod
    def strips(self, rows_R: NDArray[np.int64], looks: Sequence[Look] | None = None) -> list[NDArray[np.uint8]]:
        """uint8 (P, U * P) or (P, U * P, C) of each row: up to and with its end patch."""


class StoredRows(Rows):
    """Pictures as PNG, as `pretrainkit render` and the published sets have them."""

    way = "pictures are read"

    def strips(self, rows_R: NDArray[np.int64], looks: Sequence[Look] | None = None) -> list[NDArray[np.uint8]]:
        rows = self.kept_N[rows_R]
        stored = self.table.values(PIXELS, rows)
        return list(map(self._strip, rows.tolist(), stored, self.num_patches_N[rows_R].tolist()))

    def _strip(self, row: int, picture: Any, num_patches: int) -> NDArray[np.uint8]:
        require_pillow(f"reading the pictures of {self.name}")
        from PIL import Image

        try:
            with Image.open(io.BytesIO(picture["bytes"])) as image:
                pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("L"))
        except (TypeError, KeyError, OSError) as error:
            raise DataError(f"{self.name}: row {row} holds no picture: {error}\n  fetch or make it again") from error
        return pixels[:, : (num_patches + 1) * pixels.shape[0]]


class DrawnRows(Rows):
    """Text, drawn by the renderer beside it."""

    way = "text is drawn on the way"

    def check(self, look: Look) -> None:
        dressed(_renderer_of(self.folder), look)

    def num_text_patches(self, rows_R: NDArray[np.int64], looks: Sequence[Look] | None = None) -> NDArray[np.int32]:
        found = self.num_patches_N[rows_R]
        changed = {place: look for place, look in enumerate(looks or ()) if look != OWN}
        if places := list(changed):
            renderer, texts = _renderer_of(self.folder), self.table.values("text", self.kept_N[rows_R[places]])
            counts = (dressed(renderer, look).num_text_patches(text) for look, text in zip(changed.values(), texts))
            found[places] = list(counts)
        return found

    def strips(self, rows_R: NDArray[np.int64], looks: Sequence[Look] | None = None) -> list[NDArray[np.uint8]]:
        renderer = _renderer_of(self.folder)
        texts = self.table.values("text", self.kept_N[rows_R])
        drawn = [dressed(renderer, look) for look in looks] if looks else [renderer] * len(texts)
        return [own.columns(text).swapaxes(0, 1) for own, text in zip(drawn, texts, strict=True)]


@lru_cache(maxsize=4)
def _renderer_of(folder: Path) -> Renderer:
    """The renderer of a folder with rows, opened once in each process."""
    return load_renderer(folder / RENDERER_FOLDER)


def open_rows(path: str, data: PixelDataConfig) -> Rows:
    """Open the rows that a path names; text is cut first, if that was not done before. Raises DataError where there are
    none, or plain text and no renderer, or rows are one folder deeper."""
    folder = Path(path)
    if is_rendered(folder):
        return _rendered_rows(folder)
    files = row_files(folder)
    if files:
        return _published_rows(folder, files)
    if splits := [f"{path}/{split}" for split in ("train", "valid") if is_rendered(folder / split)]:
        raise DataError(f"{path} holds folders of rendered rows\n  name {' or '.join(splits)}")
    return _cut(path, data)


def renderer_folder(data: PixelDataConfig) -> Path | None:
    """The folder of the renderer that the training data were, or are, drawn by; None: nobody knows."""
    named = [data.renderer] if data.renderer else []
    for path in map(Path, [*named, *(f"{source.path}/{RENDERER_FOLDER}" for source in data.train)]):
        if path.is_dir():
            return path
    for source in data.train:
        if data.renderer and not is_rendered(Path(source.path)) and not row_files(source.path):
            return _place(source.path, data)[0] / RENDERER_FOLDER
    return None


def _rendered_rows(folder: Path) -> Rows:
    manifest = verify(folder, checksums=False)
    rendering = (manifest["rendering"] or {}).get("fingerprint")
    table = ParquetTable([folder / shard["name"] for shard in manifest["shards"]])
    kind = StoredRows if manifest["has_pixels"] else DrawnRows
    return kind(table, manifest["fingerprint"], folder, rendering)


def _published_rows(folder: Path, files: list[Path]) -> Rows:
    table = ParquetTable(files)
    if table.rows_per_group > _LARGE_GROUP:
        _logger.warning(
            "%s has %.0f rows in a group, all of which are read for one\n"
            "  write it in smaller ones: pretrainkit render %s --out FOLDER",
            *(folder, table.rows_per_group, folder),
        )
    rows = StoredRows(table, "", folder)
    numbers = hashlib.blake2b(rows.num_patches_N.tobytes(), digest_size=16).hexdigest()
    rows.fingerprint = fingerprint([[(path.name, path.stat().st_size) for path in files], numbers])
    return rows


def _cut(path: str, data: PixelDataConfig) -> Rows:
    """The pieces of plain text, from a folder that is made in the cache if it is not there."""
    out, documents, renderer = _place(path, data)
    lock = out.parent.with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):  # one process after another: ranks ask for the same text
        made = prerender({"train": documents}, renderer, out.parent, _TEXT_ONLY, progress=_Logged())["train"]
    rows = _rendered_rows(out)
    if made["fill_rate"] < _POORLY_FILLED:
        shorter = max(1, int(data.max_patches * made["fill_rate"]))
        rows.remark = (
            f"the rows of {path} are {100 * made['fill_rate']:.0f} % full, as documents are short (in plain text each "
            f"paragraph is a document)\n  of books: pretrainkit render {quote(path)} --format book --renderer "
            f"{quote(str(data.renderer))} --max-patches {data.max_patches} --out FOLDER, and then "
            f"data.train=FOLDER/train; else shorten the rows, such as data.max_patches={shorter}"
        )
    return rows


def _place(path: str, data: PixelDataConfig) -> tuple[Path, Documents, Renderer]:
    """Return the place for the pieces of plain text, the text, and its renderer."""
    named = data.renderer or next(
        (str(found) for source in data.train if (found := Path(source.path) / RENDERER_FOLDER).is_dir()), None
    )
    if not Path(path).exists() and "://" not in path:
        raise DataError(f"{path} does not exist\n  name a folder of pretrainkit render, or text")
    if named is None:
        raise DataError(
            f"{path} is plain text, and nothing says how to draw it\n"
            "  name a renderer or a font: data.renderer=FONT.ttf; or render it with pretrainkit render"
        )
    documents = find_documents([path])
    if len(documents) > 1:
        raise DataError(f"{path} holds training and held-out data\n  name {path}/train or {path}/valid")
    renderer = open_renderer(named, data.max_patches)
    key = fingerprint([documents["train"].identity, describe(renderer)["fingerprint"], data.max_patches])
    return cache_folder() / "rendered" / key / "train", documents["train"], renderer


class _Logged(Quiet):
    """Progress for the log."""

    def stage(self, name: str, total: int, unit: str) -> None:
        _logger.info("%s: %.1f MB of text are cut into rows", name, total / 1e6)

    def note(self, message: str) -> None:
        _logger.info("%s", message)
