"""Rows from whatever a path names: folders of `pretrainkit render`, published sets, text."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from pretrainkit.data.line_index import cache_folder
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import fingerprint, verify
from pretrainkit.recipes.pixel.data_config import PixelDataConfig
from pretrainkit.recipes.pixel.rows import DrawnRows, ParquetTable, Rows, StoredRows, folder_renderer
from pretrainkit.rendering.documents import Documents, find_documents
from pretrainkit.rendering.identity import describe
from pretrainkit.rendering.named import open_renderer
from pretrainkit.rendering.prerender import RENDERER_FOLDER, RenderSettings, prerender
from pretrainkit.rendering.relayout import is_rendered, row_files
from pretrainkit.rendering.renderer import Renderer

_LARGE_GROUP = 128
_POORLY_FILLED = 0.5
_logger = logging.getLogger(__name__)


def open_rows(path: str, data: PixelDataConfig) -> Rows:
    """The rows that a path names; text is cut first, if that was not done before.

    Raises:
        DataError: There are none, or plain text and no renderer, or rows lie one folder deeper.
    """
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
    for path in ([data.renderer] if data.renderer else []) + [
        f"{source.path}/{RENDERER_FOLDER}" for source in data.train
    ]:
        if Path(path).is_dir():
            return Path(path)
    for source in data.train:
        if data.renderer and not is_rendered(Path(source.path)) and not row_files(source.path):
            return _place(source.path, data)[0] / RENDERER_FOLDER
    return None


def _rendered_rows(folder: Path) -> Rows:
    manifest = verify(folder, checksums=False)
    rendering = (manifest["rendering"] or {}).get("fingerprint")
    table = ParquetTable([folder / shard["name"] for shard in manifest["shards"]])
    if manifest["has_pixels"]:
        return StoredRows(table, manifest["fingerprint"], str(folder), rendering)
    opened = partial(folder_renderer, folder / RENDERER_FOLDER)
    return DrawnRows(table, manifest["fingerprint"], str(folder), opened, rendering)


def _published_rows(folder: Path, files: list[Path]) -> Rows:
    table = ParquetTable(files)
    if table.rows_per_group > _LARGE_GROUP:
        _logger.warning(
            "%s has %.0f rows in a group, all of which are read for one; `pretrainkit render %s --out FOLDER` writes "
            "it in smaller ones",
            *(folder, table.rows_per_group, folder),
        )
    rows = StoredRows(table, "", str(folder))
    numbers = hashlib.blake2b(rows.num_patches_N.tobytes(), digest_size=16).hexdigest()
    rows.fingerprint = fingerprint([[(path.name, path.stat().st_size) for path in files], numbers])
    return rows


def _cut(path: str, data: PixelDataConfig) -> Rows:
    """The pieces of plain text, from a folder that is made in the cache if it is not there."""
    out, documents, renderer = _place(path, data)
    with _alone(out):
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


_TEXT_ONLY = RenderSettings(with_pixels=False)


def _place(path: str, data: PixelDataConfig) -> tuple[Path, Documents, Renderer]:
    """Where the pieces of plain text belong, the text, and what draws it."""
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


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """One process after another: ranks ask for the same text."""
    lock_path = out.parent.with_suffix(".lock")
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_path, "w") as lock:
        try:
            import fcntl
        except ImportError:  # not a Unix: a second process that writes the same is then refused
            yield
            return
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Logged:
    """Progress for the log."""

    def stage(self, name: str, total: int, unit: str) -> None:
        _logger.info("%s: %.1f MB of text are cut into rows", name, total / 1e6)

    def advance(self, amount: Any) -> None: ...

    def note(self, message: str) -> None:
        _logger.info("%s", message)
