"""Rendered rows in other files: in small groups, which random access needs, or in the layout of the published sets.

A file that is there is kept, so that the same command after a crash goes on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file, file_sha256, fingerprint, made_by, read_manifest, write_manifest
from pretrainkit.rendering.folder import load_renderer, save_renderer
from pretrainkit.rendering.prerender import KIND, RENDERER_FOLDER
from pretrainkit.rendering.row_files import PATCHES, PIXELS, ROWS_PER_GROUP, RowFile
from pretrainkit.workers.processes import Progress, Quiet, run_tasks

CHUNK_ROWS = 100_000
"""Rows that are numbered together in published names."""
SHARD_BYTES = 500 << 20
"""A chunk of so many bytes has two files."""
DATA_FOLDER = "data"


def row_files(folder: str | Path, split: str = "train") -> list[Path]:
    """Files with rows: of `pretrainkit render`, or in the layout of the published sets, where the totals in names are
    not to be trusted. Empty where there are none.

    Args:
        folder: Itself, or with them in `data`.
        split: Whose files, where names tell.
    """
    folder = Path(folder)
    if is_rendered(folder):
        return [folder / shard["name"] for shard in read_manifest(folder)["shards"]]
    for place in (folder, folder / DATA_FOLDER):
        files = sorted(place.glob("*.parquet"))
        files = [path for path in files if path.name.startswith(f"{split}-")] or files
        if files:
            return files if {PIXELS, PATCHES} <= set(opened_parquet(files[0]).schema_arrow.names) else []
    return []


def is_rendered(folder: Path) -> bool:
    """Whether `pretrainkit render` made a folder."""
    try:
        return bool(json.loads((folder / "manifest.json").read_bytes()).get("kind") == KIND)
    except (OSError, ValueError, AttributeError):  # no manifest, or somebody else's
        return False


def regroup(
    folder: str | Path, out: str | Path, *, workers: int = 1, progress: Progress | None = None
) -> dict[str, Any]:
    """Writes the rows of a folder to `out`, a file for each, in groups that are read fast at random.

    Returns:
        The manifest.

    Raises:
        DataError: There are no rows.
    """
    files, out, progress = found_files(folder), Path(out), progress or Quiet()
    tasks = [
        _Regrouping(path, out / f"part-{index:05d}-of-{len(files):05d}.parquet") for index, path in enumerate(files)
    ]
    progress.stage("regrouping", len(tasks), "file")
    shards = []
    for shard in run_tasks(_regrouped, tasks, workers):
        shards.append(shard)
        progress.advance(1)
    shards.sort(key=lambda shard: str(shard["name"]))
    num_rows, num_patches = (sum(shard[name] for shard in shards) for name in ("num_rows", "num_patches"))
    source = Path(folder)
    old = read_manifest(source) if is_rendered(source) else {"rendering": None}
    names = opened_parquet(files[0]).schema_arrow.names
    manifest = old | {
        "kind": KIND,
        "made_by": made_by(),
        "columns": names,
        "has_pixels": PIXELS in names,
        "num_rows": num_rows,
        "num_patches": num_patches,
        "num_bytes": sum(shard["num_bytes"] for shard in shards),
        "fingerprint": fingerprint([shard["sha256"] for shard in shards]),
        "shards": shards,
    }
    for place in (source / RENDERER_FOLDER, source):
        if (place / "text_renderer_config.json").is_file():
            save_renderer(load_renderer(place), out / RENDERER_FOLDER)
            break
    write_manifest(out, manifest)
    return manifest


def publish(
    folder: str | Path,
    out: str | Path,
    *,
    split: str = "train",
    chunk_rows: int = CHUNK_ROWS,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> list[Path]:
    """Writes the rows of a folder to `out/data` under the names of the published sets, and `dataset_infos.json`.

    Rows are numbered in chunks; file names count on through all chunks, but give the number of files in their chunk as
    the total, `data/train-00004-of-00003.parquet`.

    Args:
        folder: With rows.
        out: Folder to be made, completed, or given another split.
        split: In the names.
        chunk_rows: Rows of a chunk.
        shard_bytes: A chunk has a file more than it has whole multiples of so many bytes in memory.
        progress: Who wants to see how far it is.

    Returns:
        The files.

    Raises:
        DataError: There are no rows.
    """
    files, out, progress = found_files(folder), Path(out), progress or Quiet()
    sizes = [opened_parquet(path).metadata.num_rows for path in files]
    num_rows = sum(sizes)
    progress.stage(f"laying out {split}", num_rows, "row")
    written: list[Path] = []
    for begin in range(0, num_rows, chunk_rows):
        size = min(chunk_rows, num_rows - begin)
        num_bytes = sum(batch.nbytes for batch in row_batches(files, sizes, begin, size))
        num_files = num_bytes // shard_bytes + 1
        cuts = [begin + size * part // num_files for part in range(num_files + 1)]
        for first, last in itertools.pairwise(cuts):
            path = out / DATA_FOLDER / f"{split}-{len(written):05d}-of-{num_files:05d}.parquet"
            if not path.is_file() or opened_parquet(path).metadata.num_rows != last - first:
                _copy(row_batches(files, sizes, first, last - first), path)
            written.append(path)
            progress.advance(last - first)
    _write_infos(out, split, num_rows, written)
    return written


@dataclass(frozen=True)
class _Regrouping:
    source: Path
    target: Path


def _regrouped(task: _Regrouping) -> dict[str, Any]:
    """Of one file, what the manifest says."""
    source = opened_parquet(task.source)
    if not task.target.is_file() or opened_parquet(task.target).metadata.num_rows != source.metadata.num_rows:
        _copy(source.iter_batches(ROWS_PER_GROUP), task.target)
    made = opened_parquet(task.target)
    num_patches = int(np.sum(made.read([PATCHES])[PATCHES].to_numpy(), dtype=np.int64))
    return {
        "name": task.target.name,
        "num_rows": made.metadata.num_rows,
        "num_patches": num_patches,
        "num_bytes": task.target.stat().st_size,
        "sha256": file_sha256(task.target),
    }


def _copy(batches: Iterator[Any], path: Path) -> None:
    first = next(batches)
    with RowFile(path, first.schema) as file:
        file.add_batch(first)
        for batch in batches:
            file.add_batch(batch)


def row_batches(files: Sequence[Path], sizes: Sequence[int], begin: int, size: int) -> Iterator[Any]:
    """Rows `begin` to `begin + size` of all files, in record batches of at most a group."""
    end, first = begin + size, 0
    for path, num_rows in zip(files, sizes, strict=True):
        if first < end and first + num_rows > begin:
            place = first
            for batch in opened_parquet(path).iter_batches(ROWS_PER_GROUP):
                low, high = max(begin - place, 0), min(end - place, len(batch))
                if low < high:
                    yield batch.slice(low, high - low)
                place += len(batch)
                if place >= end:
                    break
        first += num_rows


def _write_infos(out: Path, split: str, num_rows: int, files: Sequence[Path]) -> None:
    """Running totals of all splits, as `datasets` keeps them."""
    path = out / "dataset_infos.json"
    infos: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {"default": {"splits": {}}}
    own = infos["default"]
    own["splits"][split] = {
        "name": split,
        "num_bytes": sum(file.stat().st_size for file in files),
        "num_examples": num_rows,
    }
    own["download_size"] = own["dataset_size"] = sum(entry["num_bytes"] for entry in own["splits"].values())
    schema = opened_parquet(files[0]).schema_arrow
    own["features"] = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    with atomic_file(path) as target:
        target.write((json.dumps(infos, indent=2) + "\n").encode())


def found_files(folder: str | Path) -> list[Path]:
    """`row_files`, of which there must be some."""
    files = row_files(folder)
    if not files:
        raise DataError(f"{folder} has no parquet files with rendered rows\n  make some with pretrainkit render")
    return files


def opened_parquet(path: Path) -> Any:
    """A parquet file for reading.

    Raises:
        DataError: It is none.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a parquet file, or damaged: {error}\n  fetch or make it again") from error
