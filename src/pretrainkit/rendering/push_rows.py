"""Documents to rows on the hub while they are rendered: a disk holds the files of a few commits at a time.

A commit has some finished files with their records, which say what they were made of, so that the same command after a
crash renders only what the hub has not: no row is there twice and none is missing. The card, which makes a data set of
the files, comes last.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.rendering.documents import Documents
from pretrainkit.rendering.folder import save_renderer
from pretrainkit.rendering.hub import CARD_NAME, FILES_PER_COMMIT, Hub, Stored, card, renderer_files
from pretrainkit.rendering.prerender import (
    RENDERER_FOLDER,
    Rendering,
    RenderJob,
    RenderSettings,
    files_of,
    make_manifest,
)
from pretrainkit.rendering.relayout import DATA_FOLDER
from pretrainkit.rendering.render_chunk import ChunkTask
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.workers.processes import Progress

RECORDS_FOLDER = "records"
_PLAN_NAME = f"{RECORDS_FOLDER}/plan.json"


def push_rows(
    documents: Mapping[str, Documents],
    renderer: Renderer,
    hub: Hub,
    settings: RenderSettings | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    files_per_commit: int = FILES_PER_COMMIT,
) -> dict[str, dict[str, Any]]:
    """Renders documents to a data set of the hub: `data/SPLIT-NUMBER.parquet`, `renderer/`, `records/`, and the card;
    returns the manifest of each split. What an earlier attempt has brought there is kept. As many rendered files as
    `files_per_commit` are sent together, and held until then. Else as `prerender`.

    Raises:
        DataError: Input cannot be used, or the data set holds other rows.
        RunError: The hub refused.
    """
    rendering, records = Rendering(documents, renderer, settings, progress), {}
    there = hub.files()
    if _PLAN_NAME in there:
        is_same = json.loads(hub.read(_PLAN_NAME))["plan"] == rendering.key
    else:
        is_same = not any(path.startswith(f"{DATA_FOLDER}/") for path in there)
    if not is_same:
        raise DataError(
            "the data set on the hub holds rows of other documents, another renderer or other settings\n"
            "  name another one by --push, or finish it with the command that began it"
        )
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        save_renderer(renderer, work / RENDERER_FOLDER)
        if _PLAN_NAME not in there:
            begin = {_PLAN_NAME: json.dumps({"plan": rendering.key}).encode()}
            hub.add(renderer_files(work / RENDERER_FOLDER) | begin, "Begin rendering")
        for split in documents:
            job = _PushedJob(rendering, split, work, hub=hub, there=there, files_per_commit=files_per_commit)
            records[split] = job.run(workers)
            job.send()
    about, manifests = rendering.about(records), {}
    for split in rendering.splits:
        shards = [{"name": _name(split, index), **entry} for _, index, entry in files_of(records, split)]
        manifests[split] = make_manifest(about, split, records, shards)
    last: dict[str, Path | bytes] = {
        f"{RECORDS_FOLDER}/{split}.json": json.dumps(manifest, indent=2).encode()
        for split, manifest in manifests.items()
    }
    hub.add(last | {CARD_NAME: card(rendering.splits, manifests[rendering.splits[0]]).encode()}, "Finish rendering")
    return manifests


class _PushedJob(RenderJob):
    """All tasks of the documents of a split; finished files go to the hub."""

    def __init__(self, *given: Any, hub: Hub, there: Mapping[str, Stored], files_per_commit: int) -> None:
        super().__init__(*given)
        self._hub, self._there, self._files_per_commit = hub, there, files_per_commit
        self._waiting: list[dict[str, Any]] = []

    def done(self, record: dict[str, Any]) -> None:
        self._waiting.append(record)
        if len(self._waiting) >= self._files_per_commit:
            self.send()

    def send(self) -> None:
        """Commits what is waiting, and takes it from the disk."""
        files: dict[str, Path | bytes] = {}
        for record in self._waiting:
            for split, entry in record["files"].items():
                if entry["num_rows"]:
                    files[f"{DATA_FOLDER}/{_name(split, record['index'])}"] = (
                        self._folder_of(record["index"]) / f"{split}.parquet"
                    )
            files[_record_name(self.split, record["index"])] = json.dumps(record).encode()
        if not files:
            return
        self._hub.add(files, f"Add {next(iter(files))}" + (" ..." if len(files) > 1 else ""))
        for record in self._waiting:
            shutil.rmtree(self._folder_of(record["index"]))
        self._waiting = []

    def found(self, task: ChunkTask) -> dict[str, Any] | None:
        """From the hub, if its files are there too."""
        name = _record_name(self.split, task.index)
        if name not in self._there:
            return None
        record: dict[str, Any] = json.loads(self._hub.read(name))
        is_whole = all(
            (stored := self._there.get(f"{DATA_FOLDER}/{_name(split, task.index)}"))
            and stored.num_bytes == entry["num_bytes"]
            for split, entry in record["files"].items()
            if entry["num_rows"]
        )
        return record if is_whole and record["key"] == task.key else None


def _name(split: str, index: int) -> str:
    return f"{split}-{index:05d}.parquet"


def _record_name(split: str, index: int) -> str:
    return f"{RECORDS_FOLDER}/{split}-{index:05d}.json"
