"""Render a chunk of documents to rows: the task of one process."""

from __future__ import annotations

import hashlib
import string
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pretrainkit.corpus.readers import text_hash
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import file_sha256
from pretrainkit.files.work import record_finished
from pretrainkit.rendering.documents import RenderDocument
from pretrainkit.rendering.folder import load_renderer
from pretrainkit.rendering.freetype_engine import num_marks
from pretrainkit.rendering.packing import fill, fill_patches, original_blocks
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.rendering.row_files import PATCHES, PIXELS, Extra, RowFile, new_row_file, row_schema, to_png

Packing = Literal["exact", "original"]
_SHARE_NAME = "share.txt"
_SECONDS_BETWEEN_SHARES = 1.0


@dataclass(frozen=True, kw_only=True)
class RenderSettings:
    """Settings for rendering a corpus."""

    packing: Packing = "exact"
    """exact: fill rows with as many whole words as possible, lose nothing and make no empty row. original: join whole
    lines by the original's rule."""
    with_pixels: bool = True
    """Draw the rows. False: store only their text, to be drawn later."""
    extras: tuple[Extra, ...] = ()
    """Additional columns besides the picture and its number of patches."""
    held_out: float = 0.0
    """Share of the documents that belong to the split "valid", chosen by a hash of their text."""
    shard_characters: int = 8_000_000
    """Minimum number of characters per file. The default gives about 80 MB of pictures."""
    max_bad: int = 0
    """Maximum number of bad records that are skipped."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise DataError(f"--heldout is {self.held_out}\n  give a share of the documents: at least 0 and below 1")
        if self.shard_characters < 1:
            raise DataError(f"--shard-characters is {self.shard_characters}\n  give at least 1")

    @property
    def columns(self) -> tuple[Extra, ...]:
        """`extras`, and the text if there are no pictures."""
        return self.extras if self.with_pixels or "text" in self.extras else ("text", *self.extras)


@dataclass(frozen=True)
class ChunkTask:
    """Documents that are rendered to one file per split."""

    split: str
    """Split of the documents that are not held out."""
    index: int
    documents: tuple[RenderDocument, ...]
    renderer: Path
    """Folder of the renderer."""
    fingerprint: str
    """Fingerprint of the renderer."""
    settings: RenderSettings
    folder: Path | None
    """Folder for the files and their record. None: nothing is drawn or written."""

    @property
    def key(self) -> str:
        """Hash of the documents."""
        digest = hashlib.blake2b(digest_size=16)
        for document in self.documents:
            digest.update(repr((document.name, len(document.text))).encode())
            digest.update(document.text.encode())
        return digest.hexdigest()


def pieces(renderer: Renderer, text: str, packing: Packing) -> Iterator[str]:
    """Yield the texts of a document's rows."""
    if packing == "exact":
        return (fill if renderer.config.strategy == "continuous" else fill_patches)(renderer, text)
    return original_blocks(renderer, [line for line in map(str.strip, text.split("\n")) if line])


def render_chunk(task: ChunkTask) -> dict[str, Any]:
    """Write the rows of the documents, then the record. Return the record."""
    renderer, settings = loaded_renderer(task.renderer), task.settings
    missing = _missing(renderer, task.documents)
    record: dict[str, Any] = {
        "key": task.key,
        "index": task.index,
        "num_documents": len(task.documents),
        "missing": missing,
        "num_marks": num_marks(renderer.config, [document.text for document in task.documents]),
        "files": {},
    }
    files: dict[str, RowFile] = {}
    num_characters, noted = 0, time.monotonic()
    total_characters = sum(len(document.text) for document in task.documents)
    with ExitStack() as opened:
        if task.folder is not None:
            opened.callback((task.folder / _SHARE_NAME).unlink, missing_ok=True)
        for document in task.documents:
            is_held_out = text_hash(document.text) / 2**64 < settings.held_out  # equal texts get the same split
            split = "valid" if is_held_out else task.split
            entry = record["files"].setdefault(split, {"num_rows": 0, "num_patches": 0, "num_words": 0})
            if task.folder is not None and split not in files:
                schema = row_schema(settings.columns, with_pixels=settings.with_pixels)
                files[split] = opened.enter_context(new_row_file(task.folder / f"{split}.parquet", schema))
            for num_shown, row in _rows(renderer, document, task):
                num_characters += num_shown
                if task.folder is not None and time.monotonic() - noted >= _SECONDS_BETWEEN_SHARES:
                    noted = time.monotonic()
                    (task.folder / _SHARE_NAME).write_text(f"{num_characters / total_characters}", "utf-8")
                entry["num_rows"] += 1
                entry["num_patches"] += row[PATCHES]
                if split in files:
                    files[split].add(row)
            entry["num_words"] += len(document.text.split())
    if task.folder is None:
        return record
    for split, file in files.items():
        record["files"][split] |= {"num_bytes": file.path.stat().st_size, "sha256": file_sha256(file.path)}
    return record_finished(task.folder, record)


def share_done(folder: Path) -> float:
    """Return about which share of its documents a running task has drawn; `folder` is the task's folder."""
    try:
        return min(float((folder / _SHARE_NAME).read_text("utf-8")), 1.0)
    except (OSError, ValueError):  # it does not exist yet, or is being written
        return 0.0


def _rows(renderer: Renderer, document: RenderDocument, task: ChunkTask) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of characters and the columns of each row."""
    columns = task.settings.columns
    for piece in pieces(renderer, document.text, task.settings.packing):
        if task.settings.with_pixels and task.folder is not None:
            encoding = renderer(piece)
            row: dict[str, Any] = {PIXELS: to_png(encoding.pixel_values), PATCHES: encoding.num_text_patches}
        else:
            row = {PATCHES: renderer.num_text_patches(piece)}
        extras = {"text": piece, "document": document.name, "renderer": task.fingerprint}
        yield len(piece), row | {name: extras[name] for name in columns}


def _missing(renderer: Renderer, documents: Sequence[RenderDocument]) -> dict[str, int]:
    """Count the occurrences of each character that no font has. Characters are tested one by one, not in context: that
    is enough to notice text for which the fonts are not made."""
    distinct = sorted(set().union(*(document.text for document in documents)) - set(string.whitespace))
    missing = [character for character in distinct if renderer.missing(character)]
    return {character: sum(document.text.count(character) for document in documents) for character in missing}


@lru_cache(maxsize=2)
def loaded_renderer(folder: Path) -> Renderer:
    """Load the renderer, without warnings of missing characters: they are counted instead."""
    config = load_renderer(folder).config
    return Renderer(config.changed(on_missing="ignore") if config.on_missing == "warn" else config)
