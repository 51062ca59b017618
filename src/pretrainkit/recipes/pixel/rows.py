"""Random access to rows of rendered text in parquet files: stored pictures, or text that is drawn on demand. A path is
a folder of `pretrainkit render`, a published data set, or text.

Dimensions: N rows, R requested rows, P pixels per side of a patch, U patches of a row up to and including its end
patch, C = 3 colours (absent in greyscale).
"""

from __future__ import annotations

import hashlib
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
from pretrainkit.files.manifest import expected_form, fingerprint, verify
from pretrainkit.files.sources import explained_table_errors, open_parquet
from pretrainkit.images.pillow import open_with_pillow, require_pillow
from pretrainkit.recipes.pixel.augment import UNCHANGED, FontChoice, renderer_with
from pretrainkit.recipes.pixel.config import PixelDataConfig
from pretrainkit.rendering.documents import Documents, find_documents
from pretrainkit.rendering.folder import load_renderer, open_renderer
from pretrainkit.rendering.identity import describe
from pretrainkit.rendering.prerender import RENDERER_FOLDER, RenderSettings, prerender
from pretrainkit.rendering.relayout import is_rendered, row_files
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.rendering.row_files import PATCHES, PIXELS
from pretrainkit.workers.processes import Quiet

TEXT = "text"
_OPEN_FILES = 256
_KEPT_GROUPS = 4
_LARGE_GROUP = 128
_POORLY_FILLED = 0.5
_TEXT_ONLY = RenderSettings(with_pixels=False)
_logger = logging.getLogger(__name__)


class ParquetTable:
    """Random access to the rows of files, by row groups. Threads may share it; it is pickled as its paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """`paths`: one or more files. A file that cannot be read raises DataError when it is first opened."""
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
        """Index of the file, number in the file, and end in rows of the table of each row group."""
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
        """Average number of rows per row group."""
        return len(self) / max(1, len(self._places[2]))

    def has(self, name: str) -> bool:
        """Return True if the files have this column."""
        return name in self._file(0).schema_arrow.names

    def column(self, name: str) -> NDArray[Any]:
        """Return all values of a column of whole numbers, int32 (N,)."""
        values = []
        for index, path in enumerate(self.paths):
            file = self._file(index)
            if name not in file.schema_arrow.names:
                raise DataError(f"{path} has no column {name!r}\n  create it again with pretrainkit render")
            with explained_table_errors(path):
                column = file.read(columns=[name])[name].cast("int32")
                if column.null_count or len(column) != file.metadata.num_rows:
                    raise ValueError(f"its column {name!r} lacks numbers")
                values.append(column.to_numpy())
        return np.concatenate(values)

    def values(self, name: str, rows_R: NDArray[np.int64]) -> list[Any]:
        """Return the texts, or the bytes of the pictures, in some rows. Each row group is read once."""
        files, numbers, ends = self._places
        group_R = np.searchsorted(ends, rows_R, side="right")
        values_R: list[Any] = [None] * len(rows_R)
        for group in np.unique(group_R).tolist():
            begin = int(ends[group - 1]) if group else 0
            with self._lock:  # two threads that miss the same group read it once
                values_of_group = self._group(int(files[group]), int(numbers[group]), name)
            for index in np.flatnonzero(group_R == group).tolist():
                values_R[index] = values_of_group[int(rows_R[index]) - begin].as_py()
        return values_R

    def _read_group(self, file: int, number: int, name: str) -> Any:
        import pyarrow.compute as pc

        with explained_table_errors(self.paths[file]):
            values = self._file(file).read_row_group(number, columns=[name])[name].combine_chunks()
            values.validate(full=True)
            values = values.cast("string") if name == TEXT else pc.struct_field(values, "bytes").cast("binary")
            if len(values) != self._file(file).metadata.row_group(number).num_rows:
                raise ValueError(f"row group {number} has {len(values)} values of {name!r}")
            return values


class Rows(ABC):
    """Rendered rows, some of which may be left out."""

    way: ClassVar[str]
    """Description, for logs, of how pixels are obtained."""

    def __init__(self, table: ParquetTable, fingerprint: str, folder: Path, rendering: str | None = None) -> None:
        """Open the rows of a table.

        Args:
            table: Table with a column `num_patches`, of files in `folder`.
            rendering: Fingerprint of the renderer that draws, or drew, the rows; None: unknown.
        """
        self.table, self.fingerprint, self.name, self.rendering = table, fingerprint, str(folder), rendering
        self.folder = folder
        self.num_patches_N = table.column(PATCHES)
        self.kept_N = np.arange(len(self.num_patches_N), dtype=np.int64)
        self.remark = ""
        """Warning to print before training on these rows."""

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Leave out all rows where `chosen` (N,) is False."""
        self.kept_N, self.num_patches_N = self.kept_N[chosen], self.num_patches_N[chosen]

    def __len__(self) -> int:
        return len(self.kept_N)

    def num_text_patches(
        self, rows_R: NDArray[np.int64], choices: Sequence[FontChoice] | None = None
    ) -> NDArray[np.int32]:
        """Return the number of patches before the end patch of each row, int32 (R,). `choices`: fonts and sizes."""
        return self.num_patches_N[rows_R]

    def check(self, choice: FontChoice) -> None:
        """Raise ConfigError or DataError if rows cannot be drawn with this font and size."""
        raise ConfigError(
            f"{self.name} has pictures, and data.augment cannot change their font\n"
            "  name plain text or rows of pretrainkit render --text-only, or leave out data.augment.fonts and .sizes"
        )

    def stored(self, index: int) -> tuple[str, bytes]:
        """Return the text of a row, "" if only its picture is stored, and bytes that are the same for copies of it."""
        row = self.kept_N[[index]]
        if self.table.has(TEXT) and (text := self.table.values(TEXT, row)[0]):
            return text, text.encode()
        with expected_form(f"row {row[0]} of {self.name}", "download or create it again"):
            return "", bytes(self.table.values(PIXELS, row)[0])

    @abstractmethod
    def strips(self, rows_R: NDArray[np.int64], choices: Sequence[FontChoice] | None = None) -> list[NDArray[np.uint8]]:
        """Return the pixels of each row up to and including its end patch, uint8 (P, U * P) or (P, U * P, C)."""


class StoredRows(Rows):
    """Rows stored as PNG pictures by `pretrainkit render` or in a published data set."""

    way = "pictures are read"

    def strips(self, rows_R: NDArray[np.int64], choices: Sequence[FontChoice] | None = None) -> list[NDArray[np.uint8]]:
        rows = self.kept_N[rows_R]
        stored = self.table.values(PIXELS, rows)
        return list(map(self._strip, rows.tolist(), stored, self.num_patches_N[rows_R].tolist()))

    def _strip(self, row: int, picture: bytes | None, num_patches: int) -> NDArray[np.uint8]:
        require_pillow(f"reading the pictures of {self.name}")
        try:
            with open_with_pillow(picture or b"") as image:
                pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("L"))
        except Exception as error:  # decoders of damaged files raise nearly anything
            raise DataError(
                f"{self.name}: row {row} has no valid picture: {error}\n  download or create it again"
            ) from error
        return pixels[:, : (num_patches + 1) * pixels.shape[0]]


class DrawnRows(Rows):
    """Rows stored as text, drawn on demand by the renderer in their folder."""

    way = "text is drawn during training"

    def check(self, choice: FontChoice) -> None:
        renderer_with(_renderer_of(self.folder), choice)

    def num_text_patches(
        self, rows_R: NDArray[np.int64], choices: Sequence[FontChoice] | None = None
    ) -> NDArray[np.int32]:
        num_patches_R = self.num_patches_N[rows_R]
        changed = {index: choice for index, choice in enumerate(choices or ()) if choice != UNCHANGED}
        if indices := list(changed):
            renderer, texts = _renderer_of(self.folder), self._texts(rows_R[indices])
            counts = (
                renderer_with(renderer, choice).num_text_patches(text) for choice, text in zip(changed.values(), texts)
            )
            num_patches_R[indices] = list(counts)
        return num_patches_R

    def _texts(self, rows_R: NDArray[np.int64]) -> list[str]:
        texts = self.table.values(TEXT, self.kept_N[rows_R])
        if None in texts:
            raise DataError(f"{self.name}: row {rows_R[texts.index(None)]} has no text\n  download or create it again")
        return texts

    def strips(self, rows_R: NDArray[np.int64], choices: Sequence[FontChoice] | None = None) -> list[NDArray[np.uint8]]:
        default = _renderer_of(self.folder)
        texts = self._texts(rows_R)
        renderers = [renderer_with(default, choice) for choice in choices] if choices else [default] * len(texts)
        return [renderer.columns(text).swapaxes(0, 1) for renderer, text in zip(renderers, texts, strict=True)]


@lru_cache(maxsize=4)
def _renderer_of(folder: Path) -> Renderer:
    """Return the renderer of a folder with rows, opened once per process."""
    return load_renderer(folder / RENDERER_FOLDER)


def open_rows(path: str, data: PixelDataConfig) -> Rows:
    """Open the rows of a path. Text is first divided into rows, unless they are in the cache. Raises DataError if there
    are no rows, if there is plain text but no renderer, or if the rows are in subfolders."""
    folder = Path(path)
    if is_rendered(folder):
        return _rendered_rows(folder)
    files = row_files(folder)
    if files:
        return _published_rows(folder, files)
    if splits := [f"{path}/{split}" for split in ("train", "valid") if is_rendered(folder / split)]:
        raise DataError(f"{path} contains folders of rendered rows\n  name {' or '.join(splits)}")
    return _cut(path, data)


def renderer_folder(data: PixelDataConfig) -> Path | None:
    """Return the folder of the renderer that drew, or will draw, the training data; None if it is unknown."""
    given_paths = [data.renderer] if data.renderer else []
    for path in map(Path, [*given_paths, *(f"{source.path}/{RENDERER_FOLDER}" for source in data.train)]):
        if path.is_dir():
            return path
    for source in data.train:
        if data.renderer and not is_rendered(Path(source.path)) and not row_files(source.path):
            return _cache_entry(source.path, data)[0] / RENDERER_FOLDER
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
            "%s has %.0f rows per row group, and reading one row reads its whole group\n"
            "  write smaller groups: pretrainkit render %s --out FOLDER",
            *(folder, table.rows_per_group, folder),
        )
    rows = StoredRows(table, "", folder)
    digest = hashlib.blake2b(rows.num_patches_N.tobytes(), digest_size=16).hexdigest()
    rows.fingerprint = fingerprint([[(path.name, path.stat().st_size) for path in files], digest])
    return rows


def _cut(path: str, data: PixelDataConfig) -> Rows:
    """Divide plain text into rows, in a folder of the cache, unless that was done before. Return the rows."""
    out, documents, renderer = _cache_entry(path, data)
    lock = out.parent.with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):  # all ranks need the same text: one process creates it, the others wait
        manifest = prerender({"train": documents}, renderer, out.parent, _TEXT_ONLY, progress=_Logged())["train"]
    rows = _rendered_rows(out)
    if manifest["fill_rate"] < _POORLY_FILLED:
        shorter = max(1, int(data.max_patches * manifest["fill_rate"]))
        rows.remark = (
            f"the rows of {path} are only {100 * manifest['fill_rate']:.0f} % full because documents are short (in "
            f"plain text, each paragraph is a document)\n  for books: pretrainkit render {quote(path)} --format book "
            f"--renderer {quote(str(data.renderer))} --max-patches {data.max_patches} --out FOLDER, and then "
            f"data.train=FOLDER/train; for other text, shorten the rows, such as data.max_patches={shorter}"
        )
    return rows


def _cache_entry(path: str, data: PixelDataConfig) -> tuple[Path, Documents, Renderer]:
    """Return the cache folder for the rows of plain text, the documents, and their renderer."""
    renderer_path = data.renderer or next(
        (str(folder) for source in data.train if (folder := Path(source.path) / RENDERER_FOLDER).is_dir()), None
    )
    if not Path(path).exists() and "://" not in path:
        raise DataError(f"{path} does not exist\n  name text files, or a folder written by: pretrainkit render")
    if renderer_path is None:
        raise DataError(
            f"{path} has no rendered rows and is read as plain text, but no renderer is given\n"
            "  name a renderer or a font: data.renderer=FONT.ttf; or render it with pretrainkit render"
        )
    documents = find_documents([path])
    if len(documents) > 1:
        raise DataError(f"{path} contains training and held-out data\n  name {path}/train or {path}/valid")
    renderer = open_renderer(renderer_path, data.max_patches)
    key = fingerprint([documents["train"].identity, describe(renderer)["fingerprint"], data.max_patches])
    return cache_folder() / "rendered" / key / "train", documents["train"], renderer


class _Logged(Quiet):
    """Writes progress to the log."""

    def stage(self, name: str, total: int, unit: str) -> None:
        _logger.info("%s: dividing %.1f MB of text into rows", name, total / 1e6)

    def note(self, message: str) -> None:
        _logger.info("%s", message)
