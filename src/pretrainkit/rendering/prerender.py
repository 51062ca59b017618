"""Render documents to folders of rows, in several processes. The bytes do not depend on the number of processes.

Consecutive documents with `shard_characters` characters in total form a task, which writes one file per split. A
finished task leaves a record of its documents' hash, so that the same command after a crash renders only what is
missing. At the end, files get their final names, and the folder gets its manifest.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pretrainkit.corpus.readers import text_hash
from pretrainkit.corpus.shards import share_above
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import (
    explained_write_errors,
    fingerprint,
    made_by,
    manifest_path,
    read_manifest,
    verify,
    write_manifest,
)
from pretrainkit.files.skips import Skips
from pretrainkit.files.work import finished_task, work_folder
from pretrainkit.rendering.documents import Documents, RenderDocument
from pretrainkit.rendering.folder import save_renderer
from pretrainkit.rendering.freetype_engine import MARKS_ADVICE
from pretrainkit.rendering.identity import describe
from pretrainkit.rendering.render_chunk import (
    ChunkTask,
    RenderSettings,
    loaded_renderer,
    render_chunk,
    share_done,
)
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.workers.processes import Progress, Quiet, num_processes, run_tasks

KIND = "rendered text"
RENDERER_FOLDER = "renderer"
_SECONDS_BETWEEN_NOTES = 10
_CHECK_SECONDS = 1.0
_MOST_MISSING = 100
_WORK_PER_BYTE = 32
"""Work of rendering a byte of text, relative to tokenizing one."""


@dataclass(frozen=True)
class DryRun:
    """Estimates of a dry run, which writes nothing."""

    num_documents: int
    num_rows: int
    num_patches: int
    fill_rate: float
    """Share of the patches with text, not counting the last patch of each row."""


def prerender(
    documents: Mapping[str, Documents],
    renderer: Renderer,
    out: str | Path,
    settings: RenderSettings | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Render documents by split to `out/SPLIT`, with a copy of the renderer in each.

    Args:
        out: A new folder, or one to be completed after a crash.
        workers: Number of processes; None: one per core, fewer for little text.

    Returns:
        The manifest of each split.

    Raises:
        DataError: The input is invalid, or `out` contains something else.
    """
    out, rendering = Path(out), Rendering(documents, renderer, settings, progress)
    with explained_write_errors(out):
        done = _finished(out, rendering)
        if done is not None:
            return done
    with work_folder(out / ".work", rendering.plan, out) as work:
        save_renderer(renderer, work / RENDERER_FOLDER)
        records = {split: RenderJob(rendering, split, work).run(workers) for split in documents}
        about = rendering.about(records)
        manifests = {split: _finish(out, work, split, records, about) for split in rendering.splits}
        for split, manifest in manifests.items():
            save_renderer(renderer, out / split / RENDERER_FOLDER)
            write_manifest(out / split, manifest)
        loaded_renderer.cache_clear()  # a network file system keeps a folder with an open font
    return manifests


class Rendering:
    """Everything that determines the rendered rows: documents, renderer and settings."""

    def __init__(
        self,
        documents: Mapping[str, Documents],
        renderer: Renderer,
        settings: RenderSettings | None,
        progress: Progress | None,
        *,
        is_dry: bool = False,
    ) -> None:
        """With `is_dry`, nothing is drawn. Raises DataError as `_holding_out_any` does."""
        self.documents, self.renderer, self.progress, self.is_dry = documents, renderer, progress or Quiet(), is_dry
        settings = settings or RenderSettings()
        self.settings = settings if is_dry else self._holding_out_any(settings)
        self.skips = Skips(self.settings.max_bad)
        self.splits = ["train", "valid"] if self.settings.held_out else list(documents)
        self.description: dict[str, Any] = {"fingerprint": ""} if is_dry else describe(renderer)
        self.plan: dict[str, Any] = {
            "rendering": self.description["fingerprint"],
            "max_seq_length": renderer.config.max_seq_length,
            "settings": asdict(self.settings),
            "input": {split: documents_of_split.identity for split, documents_of_split in documents.items()},
        }
        """JSON value of everything that the rows depend on."""
        self.key = fingerprint(self.plan)

    def _holding_out_any(self, settings: RenderSettings) -> RenderSettings:
        """Return the settings, with a larger held-out share if the given one would hold out none of the documents.

        Reads documents up to the first one that is held out. Raises DataError if there is held-out data already, or
        only one document, which is not held out."""
        if not settings.held_out:
            return settings
        if set(self.documents) != {"train"}:
            raise DataError(
                "the input has held-out data already\n  leave out --heldout, or give only the training documents"
            )
        num_documents, lowest = 0, 1.0
        for document in self.documents["train"].read(Skips(settings.max_bad)):
            position = text_hash(document.text) / 2**64
            if position < settings.held_out:
                return settings
            num_documents, lowest = num_documents + 1, min(lowest, position)
        if not num_documents:
            return settings
        share = share_above(lowest)
        if num_documents == 1 or not share:
            raise DataError(
                f"the only document would not be held out with --heldout {settings.held_out}\n"
                "  give more documents, or --heldout 0 for no held-out data"
            )
        self.progress.note(
            f"none of the {num_documents} documents would be held out with --heldout {settings.held_out}; using "
            f"--heldout {share} instead, which holds out at least one"
        )
        return replace(settings, held_out=share)

    def about(self, records: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """Return the manifest entries that all splits share. Reports skipped input and characters that no font has."""
        for warning in self.skips.warnings:
            self.progress.note(f"warning: {warning}")
        missing = _missing(
            [record for records_of_split in records.values() for record in records_of_split], self.progress
        )
        config, settings = self.renderer.config, self.settings
        return {
            "kind": KIND,
            "plan": self.key,
            "made_by": made_by(),
            "packing": settings.packing,
            "columns": [*(["pixel_values"] if settings.with_pixels else []), "num_patches", *settings.columns],
            "has_pixels": settings.with_pixels,
            "rendering": self.description,
            "max_seq_length": config.max_seq_length,
            "pixels_per_patch": config.pixels_per_patch,
            "rgb": config.rgb,
            "input": fingerprint(self.plan["input"]),
            "skipped": self.skips.for_manifest(),
            "missing": {f"U+{ord(character):04X}": number for character, number in missing.most_common(_MOST_MISSING)},
        }


def dry_run(
    documents: Mapping[str, Documents],
    renderer: Renderer,
    settings: RenderSettings,
    work: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> DryRun:
    """Divide the documents into rows without drawing them. `work`: a folder to which the renderer is saved."""
    save_renderer(renderer, work / RENDERER_FOLDER)
    rendering = Rendering(documents, renderer, settings, progress, is_dry=True)
    records = [record for split in documents for record in RenderJob(rendering, split, work).run(workers)]
    entries = [entry for record in records for entry in record["files"].values()]
    num_rows, num_patches = (sum(entry[name] for entry in entries) for name in ("num_rows", "num_patches"))
    _missing(records, rendering.progress)
    num_documents = sum(record["num_documents"] for record in records)
    fill_rate = _fill_rate(num_patches, num_rows, renderer.config.max_seq_length)
    return DryRun(num_documents, num_rows, num_patches, fill_rate)


class RenderJob:
    """All tasks of the documents of a split. The folder `work` has the renderer and a folder for each task."""

    def __init__(self, rendering: Rendering, split: str, work: Path) -> None:
        self.split, self.work, self._rendering = split, work, rendering
        self.documents, self.progress = rendering.documents[split], rendering.progress
        self.kept: list[dict[str, Any]] = []
        self._num_read = 0
        self._read_by_task: dict[int, int] = {}
        self._shown_by_task: dict[int, int] = {}
        self._lock = threading.Lock()

    def run(self, workers: int | None) -> list[dict[str, Any]]:
        """Run the tasks that are not finished, and return all records in the order of the documents."""
        num_bytes = self.documents.num_bytes
        processes = num_processes(workers, 1 << 30, num_bytes * _WORK_PER_BYTE or 1 << 40, 1 << 40)
        self.progress.stage(f"rendering {self.split}", num_bytes, "B")
        records, start_time, noted, num_patches, num_noted = [], time.monotonic(), time.monotonic(), 0, 0

        def note_speed() -> None:
            rate = num_patches / max(time.monotonic() - start_time, 1e-9)
            self.progress.note(f"{num_patches:,} text patches, {rate:,.0f} per second")

        with self._watched():
            for record in run_tasks(render_chunk, self._remaining_tasks(), processes):
                records.append(record)
                self.done(record)
                with self._lock:
                    num_read = self._read_by_task.pop(record["index"])
                    self.progress.advance(num_read - self._shown_by_task.pop(record["index"], 0))
                num_patches += sum(entry["num_patches"] for entry in record["files"].values())
                if time.monotonic() - noted >= _SECONDS_BETWEEN_NOTES:
                    noted, num_noted = time.monotonic(), num_patches
                    note_speed()
        if num_patches > num_noted:
            note_speed()
        if self.kept:
            num_files = len(self.kept) + len(records)
            self.progress.note(f"{self.split}: {len(self.kept)} of {num_files} files were rendered before")
        return sorted([*records, *self.kept], key=lambda record: record["index"])

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Show the progress inside of running tasks: a large document is one task, which takes minutes."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_CHECK_SECONDS):
                with self._lock:
                    for index, num_read in self._read_by_task.items():
                        num_done = int(num_read * share_done(self._folder_of(index)))
                        if (more := num_done - self._shown_by_task.get(index, 0)) > 0:
                            self._shown_by_task[index] = num_done
                            self.progress.advance(more)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            stop.set()
            watching.join()

    def _folder_of(self, index: int) -> Path:
        return self.work / f"{self.split}-{index:05d}"

    def done(self, record: dict[str, Any]) -> None:
        """Handle the record of a task that was just finished. Subclasses override it; here it does nothing."""

    def finished(self, task: ChunkTask) -> dict[str, Any] | None:
        """Return the record of a task that an earlier attempt finished, or None."""
        return None if task.folder is None else finished_task(task.folder, task.key)

    def _remaining_tasks(self) -> Iterator[ChunkTask]:
        """Yield the tasks without a record."""
        for index, documents in enumerate(self._chunks()):
            rendering, folder = self._rendering, None if self._rendering.is_dry else self._folder_of(index)
            drawn = (self.work / RENDERER_FOLDER, rendering.description["fingerprint"])
            task = ChunkTask(self.split, index, documents, *drawn, rendering.settings, folder)
            record = self.finished(task)
            num_read, self._num_read = self._num_read, 0
            if record is None:
                with self._lock:
                    self._read_by_task[index] = num_read
                yield task
            else:
                self.kept.append(record)
                self.progress.advance(num_read)

    def _chunks(self) -> Iterator[tuple[RenderDocument, ...]]:
        def count(num_bytes: int) -> None:
            self._num_read += num_bytes

        chunk, size = list[RenderDocument](), 0
        for document in self.documents.read(self._rendering.skips, count):
            chunk.append(document)
            size += len(document.text)
            if size >= self._rendering.settings.shard_characters:
                yield tuple(chunk)
                chunk, size = [], 0
        if chunk:
            yield tuple(chunk)


def _finish(
    out: Path,
    work: Path,
    split: str,
    records: Mapping[str, list[dict[str, Any]]],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Move the files of a split to their final names, and return the manifest."""
    files, shards = files_of(records, split), []
    (out / split).mkdir(parents=True, exist_ok=True)
    for index, (origin, number, entry) in enumerate(files):
        path = work / f"{origin}-{number:05d}" / f"{split}.parquet"
        target = out / split / f"part-{index:05d}-of-{len(files):05d}.parquet"
        if path.exists():
            os.replace(path, target)  # otherwise an earlier attempt has moved it
        if not target.is_file() or target.stat().st_size != entry["num_bytes"]:
            raise DataError(f"{target} was changed or removed\n  remove {work} and run the command again")
        shards.append({"name": target.name, **entry})
    return make_manifest(about, split, records, shards)


def files_of(records: Mapping[str, Sequence[Mapping[str, Any]]], split: str) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the files of a split that have rows, in order: the split of their documents, the task's index, and the
    file's entry in the record. Raises DataError if there are none."""
    files = [
        (origin, record["index"], record["files"][split])
        for origin, all_records in records.items()
        for record in all_records
        if record["files"].get(split, {}).get("num_rows")
    ]
    if not files:
        raise DataError(
            f"{split}: no document has any text\n  give other files or more files, or name the key of the text"
        )
    return files


def make_manifest(
    about: Mapping[str, Any],
    split: str,
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    shards: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the manifest of a split whose files are `shards`."""
    counts = ("num_rows", "num_patches", "num_words", "num_bytes")
    totals = {name: sum(entry[name] for entry in shards) for name in counts}
    return {
        **about,
        "num_documents": sum(record["num_documents"] for record in records.get(split, [])),
        **totals,
        "fill_rate": _fill_rate(totals["num_patches"], totals["num_rows"], about["max_seq_length"]),
        "fingerprint": fingerprint([about["rendering"]["fingerprint"], [shard["sha256"] for shard in shards]]),
        "shards": shards,
    }


def _finished(out: Path, rendering: Rendering) -> dict[str, dict[str, Any]] | None:
    """Return the manifests of a finished output folder, or None if it is not finished. Raises DataError if `out`
    contains anything else."""
    splits = rendering.splits
    if (out / ".work").is_dir():
        return None
    if all((out / split).is_dir() and manifest_path(out / split).is_file() for split in splits):
        if any(read_manifest(out / split).get("plan") != rendering.key for split in splits):
            raise DataError(
                f"{out} has rows of other documents, another renderer or other settings\n"
                "  name another --out, or remove the folder"
            )
        manifests = {split: verify(out / split, checksums=False) for split in splits}
        rendering.progress.note(f"{out} is complete already")
        return manifests
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file\n  name another --out")
    if out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out} is not empty and has no unfinished rows\n  name another --out")
    return None


def _missing(records: Sequence[Mapping[str, Any]], progress: Progress) -> Counter[str]:
    """Count the characters that no font has, and report them and combining marks."""
    counts = sum((Counter(record["missing"]) for record in records), Counter[str]())
    missing = Counter(dict(sorted(counts.items())))
    if missing:
        most_frequent = missing.most_common(3)
        shown = ", ".join(f"{character!r} U+{ord(character):04X} ({number:,})" for character, number in most_frequent)
        progress.note(
            f"warning: {missing.total():,} characters, {len(missing):,} different ones, are drawn as boxes because no "
            f"font has them: {shown}\n  add fonts to the renderer's fallback_fonts"
        )
    if num_marks := sum(record.get("num_marks", 0) for record in records):
        progress.note(f"warning: the text has {num_marks:,} combining marks, {MARKS_ADVICE}")
    return missing


def _fill_rate(num_patches: int, num_rows: int, canvas: int) -> float:
    return num_patches / max(1, num_rows * (canvas - 1))
