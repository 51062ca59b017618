"""Upload rendered rows as a data set to the Hugging Face hub.

Rows can be uploaded while others are rendered, so that the disk only needs space for the files of a few commits. A
commit contains finished files and their records, which identify their input. After an interruption, only files that are
not on the hub are rendered; no row is duplicated or lost. The card is uploaded last.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.cards import CARD, data_card
from pretrainkit.files.hub import Hub, StoredFile, about_commit
from pretrainkit.files.manifest import read_manifest
from pretrainkit.rendering.documents import Documents
from pretrainkit.rendering.folder import save_renderer
from pretrainkit.rendering.prerender import RENDERER_FOLDER, Rendering, RenderJob, files_of, make_manifest
from pretrainkit.rendering.relayout import DATA_FOLDER, is_rendered, row_files
from pretrainkit.rendering.render_chunk import ChunkTask, RenderSettings
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.workers.processes import Progress

FILES_PER_COMMIT = 8
_SPLITS = ("train", "valid")
RECORDS_FOLDER = "records"
_PLAN_NAME = f"{RECORDS_FOLDER}/plan.json"


def published_rows(folder: Path, name: str, license: str | None = None) -> dict[str, Path | bytes]:
    """Return the files of a data set by their path on the hub, with the card last. The result is empty if `folder` has
    no rows.

    Args:
        folder: Output of `pretrainkit render`: a split, a folder of splits, or a data set in the published layout.
        name: Name of the data set on the hub.
        license: Identifier of the licence, for the card.
    """
    files_by_path: dict[str, Path | bytes] = {}
    folders = {"train": folder} if is_rendered(folder) else {split: folder / split for split in _SPLITS}
    manifests = {split: read_manifest(path) for split, path in folders.items() if is_rendered(path)}
    for split in manifests:
        for index, path in enumerate(files := row_files(folders[split])):
            files_by_path[f"{DATA_FOLDER}/{split}-{index:05d}-of-{len(files):05d}.parquet"] = path
        files_by_path |= renderer_files(folders[split] / RENDERER_FOLDER)
    splits = list(manifests)
    if not splits and row_files(folder):
        data = sorted((folder / DATA_FOLDER).glob("*.parquet"))
        splits = sorted({path.name.split("-")[0] for path in data})
        files_by_path = {f"{DATA_FOLDER}/{path.name}": path for path in data}
        infos = folder / "dataset_infos.json"
        files_by_path |= {infos.name: infos} if infos.is_file() else {}
    return files_by_path | {CARD: card(name, splits, manifests, license).encode()} if files_by_path else {}


def renderer_files(folder: Path) -> dict[str, Path | bytes]:
    """Return the files of a renderer's folder by their path on the hub."""
    return {f"renderer/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*")) if path.is_file()}


def card(
    name: str, splits: Sequence[str], manifests: Mapping[str, Mapping[str, Any]], license: str | None = None
) -> str:
    """Return the data set card of rendered rows. With manifests, it describes how the rows were made."""
    about = "Text rendered to rows of pixels, as parquet files, with the settings of the renderer in `renderer`."
    for manifest in list(manifests.values())[:1]:
        rendering = manifest.get("rendering") or {}
        about += (
            f"\n\nRows of {manifest.get('max_seq_length')} patches of {manifest.get('pixels_per_patch')} pixels, "
            f"drawn by {rendering.get('engine')}, fingerprint `{rendering.get('fingerprint')}`."
        )
    files = [{"split": split, "path": f"{DATA_FOLDER}/{split}-*"} for split in splits]
    header = {"configs": [{"config_name": "default", "data_files": files}]}
    use = "pretrainkit train PRESET data.train=data"
    return data_card(name, manifests, about=about, use=use, license=license, header=header)


def push_rows(
    documents: Mapping[str, Documents],
    renderer: Renderer,
    hub: Hub,
    settings: RenderSettings | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    files_per_commit: int = FILES_PER_COMMIT,
    license: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Render documents to a data set on the hub: `data/SPLIT-NUMBER.parquet`, `renderer/`, `records/`, and the card.
    Files that an earlier attempt uploaded are kept.

    Args:
        files_per_commit: Number of rendered files that are uploaded together, and are kept on disk until then.
        license: Identifier of the licence, for the card.

    Returns:
        The manifest of each split.

    Raises:
        DataError: The input is invalid, or the data set has other rows.
        RunError: The hub refuses a request.
    """
    rendering, records = Rendering(documents, renderer, settings, progress), {}
    existing = hub.files()
    if _PLAN_NAME in existing:
        is_same = json.loads(hub.read(_PLAN_NAME))["plan"] == rendering.key
    else:
        is_same = not any(path.startswith(f"{DATA_FOLDER}/") for path in existing)
    if not is_same:
        raise DataError(
            "the data set on the hub has rows of other documents, another renderer or other settings\n"
            "  name another data set with --push, or finish this one with the command that started it"
        )
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        save_renderer(renderer, work / RENDERER_FOLDER)
        if _PLAN_NAME not in existing:
            plan_file = {_PLAN_NAME: json.dumps({"plan": rendering.key}).encode()}
            hub.add(renderer_files(work / RENDERER_FOLDER) | plan_file, "Begin rendering")
        for split in documents:
            job = _PushedJob(rendering, split, work, hub=hub, existing=existing, files_per_commit=files_per_commit)
            records[split] = job.run(workers)
            job.send()
    about, manifests = rendering.about(records), {}
    for split in rendering.splits:
        shards = [{"name": _name(split, index), **entry} for _, index, entry in files_of(records, split)]
        manifests[split] = make_manifest(about, split, records, shards)
    written = {
        f"{RECORDS_FOLDER}/{split}.json": json.dumps(manifest, indent=2) for split, manifest in manifests.items()
    }
    written[CARD] = card(hub.name, rendering.splits, manifests, license)
    hub.add({path: text.encode() for path, text in written.items()}, "Finish rendering")
    return manifests


class _PushedJob(RenderJob):
    """All tasks of the documents of a split. Finished files are uploaded to the hub."""

    def __init__(self, *arguments: Any, hub: Hub, existing: Mapping[str, StoredFile], files_per_commit: int) -> None:
        super().__init__(*arguments)
        self._hub, self._existing, self._files_per_commit = hub, existing, files_per_commit
        self._waiting: list[dict[str, Any]] = []

    def done(self, record: dict[str, Any]) -> None:
        self._waiting.append(record)
        if len(self._waiting) >= self._files_per_commit:
            self.send()

    def send(self) -> None:
        """Upload the files that are waiting in one commit, and delete them from the disk."""
        files: dict[str, Path | bytes] = {}
        for record in self._waiting:
            for split, entry in record["files"].items():
                if entry["num_rows"]:
                    path = self._folder_of(record["index"]) / f"{split}.parquet"
                    files[f"{DATA_FOLDER}/{_name(split, record['index'])}"] = path
            files[_record_name(self.split, record["index"])] = json.dumps(record).encode()
        if not files:
            return
        self._hub.add(files, about_commit(files))
        for record in self._waiting:
            shutil.rmtree(self._folder_of(record["index"]))
        self._waiting = []

    def finished(self, task: ChunkTask) -> dict[str, Any] | None:
        """Return the record of a task from the hub, if its files are there, too."""
        name = _record_name(self.split, task.index)
        if name not in self._existing:
            return None
        record: dict[str, Any] = json.loads(self._hub.read(name))
        is_whole = all(
            (stored := self._existing.get(f"{DATA_FOLDER}/{_name(split, task.index)}"))
            and stored.num_bytes == entry["num_bytes"]
            for split, entry in record["files"].items()
            if entry["num_rows"]
        )
        return record if is_whole and record["key"] == task.key else None


def _name(split: str, index: int) -> str:
    return f"{split}-{index:05d}.parquet"


def _record_name(split: str, index: int) -> str:
    return f"{RECORDS_FOLDER}/{split}-{index:05d}.json"
