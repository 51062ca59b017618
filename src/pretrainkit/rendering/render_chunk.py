"""Some documents to rows: the work of one process."""

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
from pretrainkit.rendering.packing import fill, fill_patches, original_blocks
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.rendering.row_files import PATCHES, PIXELS, Extra, RowFile, new_row_file, row_schema, to_png

Packing = Literal["exact", "original"]
_SHARE_NAME = "share.txt"
_SECONDS_BETWEEN_SHARES = 1.0


@dataclass(frozen=True, kw_only=True)
class RenderSettings:
    """How to render a corpus."""

    packing: Packing = "exact"
    """exact: rows are as full as whole words allow, nothing is lost and no row is empty. original: whole lines are
    joined by the original's rule."""
    with_pixels: bool = True
    """Or text alone, to be drawn later."""
    extras: tuple[Extra, ...] = ()
    """Columns besides the pictures and their numbers of patches."""
    held_out: float = 0.0
    """Share of the documents that go to "valid", by a hash of their text."""
    shard_characters: int = 8_000_000
    """Text of one file, at least; of pictures about 80 MB."""
    max_bad: int = 0
    """Pieces of bad input that may be skipped."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise DataError(f"--heldout is {self.held_out}\n  give a share of the documents: at least 0 and below 1")
        if self.shard_characters < 1:
            raise DataError(f"--shard-characters is {self.shard_characters}\n  give at least 1")

    @property
    def columns(self) -> tuple[Extra, ...]:
        """`extras`, and the text where nothing else is there to draw it from."""
        return self.extras if self.with_pixels or "text" in self.extras else ("text", *self.extras)


@dataclass(frozen=True)
class ChunkTask:
    """Documents that become one file for each split."""

    split: str
    """Of documents that are not held out."""
    index: int
    documents: tuple[RenderDocument, ...]
    renderer: Path
    """Its folder."""
    fingerprint: str
    """Of the renderer."""
    settings: RenderSettings
    folder: Path | None
    """For the files and the record of what they are; None: nothing is drawn or written."""

    @property
    def key(self) -> str:
        """Changes with the documents."""
        digest = hashlib.blake2b(digest_size=16)
        for document in self.documents:
            digest.update(repr((document.name, len(document.text))).encode())
            digest.update(document.text.encode())
        return digest.hexdigest()


def pieces(renderer: Renderer, text: str, packing: Packing) -> Iterator[str]:
    """The texts of a document's rows."""
    if packing == "exact":
        return (fill if renderer.config.strategy == "continuous" else fill_patches)(renderer, text)
    return original_blocks(renderer, [line for line in map(str.strip, text.split("\n")) if line])


def render_chunk(task: ChunkTask) -> dict[str, Any]:
    """Writes the rows of the documents and then the record, which is returned."""
    renderer, settings = _renderer(task.renderer), task.settings
    missing = _missing(renderer, task.documents)
    record: dict[str, Any] = {
        "key": task.key,
        "index": task.index,
        "num_documents": len(task.documents),
        "missing": missing,
        "files": {},
    }
    files: dict[str, RowFile] = {}
    num_characters, noted = 0, time.monotonic()
    of_all = sum(len(document.text) for document in task.documents)
    with ExitStack() as opened:
        if task.folder is not None:
            opened.callback((task.folder / _SHARE_NAME).unlink, missing_ok=True)
        for document in task.documents:
            is_held_out = text_hash(document.text) / 2**64 < settings.held_out  # the same for copies
            split = "valid" if is_held_out else task.split
            entry = record["files"].setdefault(split, {"num_rows": 0, "num_patches": 0, "num_words": 0})
            if task.folder is not None and split not in files:
                schema = row_schema(settings.columns, with_pixels=settings.with_pixels)
                files[split] = opened.enter_context(new_row_file(task.folder / f"{split}.parquet", schema))
            for num_shown, row in _rows(renderer, document, task):
                num_characters += num_shown
                if task.folder is not None and time.monotonic() - noted >= _SECONDS_BETWEEN_SHARES:
                    noted = time.monotonic()
                    (task.folder / _SHARE_NAME).write_text(f"{num_characters / of_all}", "utf-8")
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
    """About how much of its documents the task of a folder has drawn, while it runs."""
    try:
        return min(float((folder / _SHARE_NAME).read_text("utf-8")), 1.0)
    except (OSError, ValueError):  # not there yet, or being written
        return 0.0


def _rows(renderer: Renderer, document: RenderDocument, task: ChunkTask) -> Iterator[tuple[int, dict[str, Any]]]:
    """Characters and columns of each row."""
    columns = task.settings.columns
    for piece in pieces(renderer, document.text, task.settings.packing):
        if task.settings.with_pixels and task.folder is not None:
            encoding = renderer(piece)
            row: dict[str, Any] = {PIXELS: to_png(encoding.pixel_values), PATCHES: encoding.num_text_patches}
        else:
            row = {PATCHES: renderer.num_text_patches(piece)}
        given = {"text": piece, "document": document.name, "renderer": task.fingerprint}
        yield len(piece), row | {name: given[name] for name in columns}


def _missing(renderer: Renderer, documents: Sequence[RenderDocument]) -> dict[str, int]:
    """How often each character occurs that no font has. Tried one by one, which is enough for what is meant: to
    notice text that the fonts are not made for."""
    kinds = sorted(set().union(*(document.text for document in documents)) - set(string.whitespace))
    found = [character for character in kinds if renderer.missing(character)]
    return {character: sum(document.text.count(character) for document in documents) for character in found}


@lru_cache(maxsize=2)
def _renderer(folder: Path) -> Renderer:
    """What is missing is counted, not warned about in every process."""
    config = load_renderer(folder).config
    return Renderer(config.changed(on_missing="ignore") if config.on_missing == "warn" else config)
