"""Documents to folders of rendered rows, in several processes; the same bytes on any number of them.

Documents are taken in their order until there are `shard_characters` of them; these are one task and one file for each
split. A finished task leaves a record, so that the same command after a crash renders only what is missing: what it
reads again is compared with the record. Files get their last names, and the folder its manifest, at the end.
"""

from __future__ import annotations

import os
import shutil
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
from pretrainkit.rendering.identity import describe
from pretrainkit.rendering.render_chunk import ChunkTask, RenderSettings, render_chunk, share_done
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.workers.processes import Progress, Quiet, num_processes, run_tasks

KIND = "rendered text"
RENDERER_FOLDER = "renderer"
_SECONDS_BETWEEN_NOTES = 10
_SECONDS_BETWEEN_LOOKS = 1.0
_MOST_MISSING = 100
_WORK_PER_BYTE = 32
"""Rendering a byte of text is so many times the work of encoding one."""


@dataclass(frozen=True)
class DryRun:
    """Numbers of a rendering that was not done."""

    num_documents: int
    num_rows: int
    num_patches: int
    fill_rate: float
    """Share of the patches before the last of each row that hold text."""


def prerender(
    documents: Mapping[str, Documents],
    renderer: Renderer,
    out: str | Path,
    settings: RenderSettings | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Render documents, by split, to `out/SPLIT`, in all cores unless `workers` says how many; return the manifest of
    each split. `out` is a folder to be made, or to be completed after a crash; each split gets a copy of the renderer.
    Raises DataError where input cannot be used, or `out` holds something else."""
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
        shutil.rmtree(work)
    return manifests


class Rendering:
    """A rendering: documents, renderer and settings."""

    def __init__(
        self,
        documents: Mapping[str, Documents],
        renderer: Renderer,
        settings: RenderSettings | None,
        progress: Progress | None,
        *,
        is_dry: bool = False,
    ) -> None:
        """Nothing is drawn if it `is_dry`. Raises DataError as `_holding_out_one`."""
        self.documents, self.renderer, self.progress, self.is_dry = documents, renderer, progress or Quiet(), is_dry
        settings = settings or RenderSettings()
        self.settings = settings if is_dry else self._holding_out_one(settings)
        self.skips = Skips(self.settings.max_bad)
        self.splits = ["train", "valid"] if self.settings.held_out else list(documents)
        self.description: dict[str, Any] = {"fingerprint": ""} if is_dry else describe(renderer)
        self.plan: dict[str, Any] = {
            "rendering": self.description["fingerprint"],
            "max_seq_length": renderer.config.max_seq_length,
            "settings": asdict(self.settings),
            "input": {split: found.identity for split, found in documents.items()},
        }
        """JSON of all that the rows depend on."""
        self.key = fingerprint(self.plan)

    def _holding_out_one(self, settings: RenderSettings) -> RenderSettings:
        """Return settings with a larger share where that asked for would hold out none of several documents. Reads them
        up to the first that is held out. Raises DataError where there is held-out data already, or one document."""
        if not settings.held_out:
            return settings
        if set(self.documents) != {"train"}:
            raise DataError(
                "there is held-out data already\n  leave out --heldout, or give the training documents alone"
            )
        num_documents, lowest = 0, 1.0
        for document in self.documents["train"].read(Skips(settings.max_bad)):
            place = text_hash(document.text) / 2**64
            if place < settings.held_out:
                return settings
            num_documents, lowest = num_documents + 1, min(lowest, place)
        if not num_documents:
            return settings
        share = share_above(lowest)
        if num_documents == 1 or not share:
            raise DataError(
                f"the only document would not be held out with --heldout {settings.held_out}\n"
                "  give more documents, or --heldout 0 for no held-out data"
            )
        self.progress.note(
            f"none of the {num_documents} documents would be held out with --heldout {settings.held_out}: used "
            f"instead, as it holds out at least one: --heldout {share}"
        )
        return replace(settings, held_out=share)

    def about(self, records: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """Entries that the manifests of all splits share; notes what was skipped and what no font has."""
        for warning in self.skips.warnings:
            self.progress.note(f"warning: {warning}")
        missing = _missing([record for found in records.values() for record in found], self.progress)
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
    """Cuts everything without drawing it. `work`: a folder for the renderer."""
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
    """All tasks of the documents of a split; `work` has the renderer, and a folder for each task."""

    def __init__(self, rendering: Rendering, split: str, work: Path) -> None:
        self.split, self.work, self._rendering = split, work, rendering
        self.documents, self.progress = rendering.documents[split], rendering.progress
        self.kept: list[dict[str, Any]] = []
        self._num_read = 0
        self._read_by_task: dict[int, int] = {}
        self._shown_by_task: dict[int, int] = {}
        self._lock = threading.Lock()

    def run(self, workers: int | None) -> list[dict[str, Any]]:
        """Records in the order of the documents."""
        num_bytes = self.documents.num_bytes
        processes = num_processes(workers, 1 << 30, num_bytes * _WORK_PER_BYTE or 1 << 40, 1 << 40)
        self.progress.stage(f"rendering {self.split}", num_bytes, "B")
        records, begun, noted, num_patches = [], time.monotonic(), time.monotonic(), 0

        def note_speed() -> None:
            rate = num_patches / max(time.monotonic() - begun, 1e-9)
            self.progress.note(f"{num_patches:,} text patches, {rate:,.0f} a second")

        with self._watched():
            for record in run_tasks(render_chunk, self._left(), processes):
                records.append(record)
                self.done(record)
                with self._lock:
                    num_read = self._read_by_task.pop(record["index"])
                    self.progress.advance(num_read - self._shown_by_task.pop(record["index"], 0))
                num_patches += sum(entry["num_patches"] for entry in record["files"].values())
                if time.monotonic() - noted >= _SECONDS_BETWEEN_NOTES:
                    noted = time.monotonic()
                    note_speed()
        if records:
            note_speed()
        if self.kept:
            self.progress.note(f"{self.split}: {len(self.kept)} of {len(self.kept) + len(records)} files were there")
        return sorted([*records, *self.kept], key=lambda record: record["index"])

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Shows meanwhile how far the tasks are that run: one large document is one task, and takes minutes."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_SECONDS_BETWEEN_LOOKS):
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
        """Take note of a file that was rendered now."""

    def found(self, task: ChunkTask) -> dict[str, Any] | None:
        return None if task.folder is None else finished_task(task.folder, task.key)

    def _left(self) -> Iterator[ChunkTask]:
        """The tasks without a record."""
        for index, documents in enumerate(self._chunks()):
            rendering, folder = self._rendering, None if self._rendering.is_dry else self._folder_of(index)
            drawn = (self.work / RENDERER_FOLDER, rendering.description["fingerprint"])
            task = ChunkTask(self.split, index, documents, *drawn, rendering.settings, folder)
            record = self.found(task)
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
    """Give the files of a split their names; return the manifest."""
    found, shards = files_of(records, split), []
    (out / split).mkdir(parents=True, exist_ok=True)
    for index, (origin, number, entry) in enumerate(found):
        path = work / f"{origin}-{number:05d}" / f"{split}.parquet"
        target = out / split / f"part-{index:05d}-of-{len(found):05d}.parquet"
        if path.exists():
            os.replace(path, target)  # else an earlier attempt has come as far as this
        if not target.is_file() or target.stat().st_size != entry["num_bytes"]:
            raise DataError(f"{target} was changed or removed\n  remove {work} and run the command again")
        shards.append({"name": target.name, **entry})
    return make_manifest(about, split, records, shards)


def files_of(records: Mapping[str, Sequence[Mapping[str, Any]]], split: str) -> list[tuple[str, int, dict[str, Any]]]:
    """The files of a split that have rows, in order: of which documents, their number, and what is recorded of each.
    Raises DataError where there are none."""
    found = [
        (origin, record["index"], record["files"][split])
        for origin, all_records in records.items()
        for record in all_records
        if record["files"].get(split, {}).get("num_rows")
    ]
    if not found:
        raise DataError(
            f"{split}: no document with any text\n  give other files or more of them, or name the key of the text"
        )
    return found


def make_manifest(
    about: Mapping[str, Any],
    split: str,
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    shards: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The manifest of a split, whose files are `shards`."""
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
    """The manifests of a finished output, if it is the one that is asked for."""
    splits = rendering.splits
    if (out / ".work").is_dir():
        return None
    if all((out / split).is_dir() and manifest_path(out / split).is_file() for split in splits):
        if any(read_manifest(out / split).get("plan") != rendering.key for split in splits):
            raise DataError(
                f"{out} holds rows of other documents, another renderer or other settings\n"
                "  name another --out, or remove the folder"
            )
        manifests = {split: verify(out / split, checksums=False) for split in splits}
        rendering.progress.note(f"{out} is complete already")
        return manifests
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file\n  name another --out")
    if out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out} is not empty and holds no unfinished rows\n  name another --out")
    return None


def _missing(records: Sequence[Mapping[str, Any]], progress: Progress) -> Counter[str]:
    """Characters that no font has, of which there is a note."""
    found = sum((Counter(record["missing"]) for record in records), Counter[str]())
    missing = Counter(dict(sorted(found.items())))
    if missing:
        most = missing.most_common(3)
        shown = ", ".join(f"{character!r} U+{ord(character):04X} ({number:,})" for character, number in most)
        progress.note(
            f"warning: {missing.total():,} characters of {len(missing):,} kinds are drawn as boxes, as no font has "
            f"them: {shown}\n  add fonts to the renderer's fallback_fonts"
        )
    return missing


def _fill_rate(num_patches: int, num_rows: int, canvas: int) -> float:
    return num_patches / max(1, num_rows * (canvas - 1))
