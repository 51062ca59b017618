"""Copy rendered rows to other layouts: parquet with small row groups for random access, the layout of the published
data sets, the format of `datasets.save_to_disk`, and tar files of WebDataset.

In the parquet layouts, existing files are kept, so that the same command continues after a crash.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file, file_sha256, fingerprint, made_by, read_manifest, write_manifest
from pretrainkit.files.sources import open_parquet
from pretrainkit.rendering.folder import load_renderer, save_renderer
from pretrainkit.rendering.prerender import KIND, RENDERER_FOLDER
from pretrainkit.rendering.row_files import PATCHES, PIXELS, ROWS_PER_GROUP, new_row_file
from pretrainkit.workers.processes import Progress, Quiet, run_tasks

CHUNK_ROWS = 100_000
"""Number of rows in a chunk of the published layout."""
SHARD_BYTES = 500 << 20
"""A chunk has one file, and another one for each full multiple of this size."""
DATA_FOLDER = "data"
ROWS_PER_FILE = 50_000
"""Number of rows per Arrow or tar file, about 550 MB of pictures."""


def row_files(folder: str | Path, split: str = "train") -> list[Path]:
    """Return the files with rows in a folder: the output of `pretrainkit render`, or the layout of the published data
    sets, in the folder or in its subfolder `data`. The totals in published file names are unreliable and ignored.

    `split` selects files whose names begin with it, if there are any. The result is empty if there are no rows."""
    folder = Path(folder)
    if is_rendered(folder):
        return [folder / shard["name"] for shard in read_manifest(folder)["shards"]]
    for subfolder in (folder, folder / DATA_FOLDER):
        files = sorted(subfolder.glob("*.parquet"))
        files = [path for path in files if path.name.startswith(f"{split}-")] or files
        if files:
            return files if {PIXELS, PATCHES} <= set(open_parquet(files[0]).schema_arrow.names) else []
    return []


def is_rendered(folder: Path) -> bool:
    """Return True if the folder is the output of `pretrainkit render`."""
    try:
        return bool(json.loads((folder / "manifest.json").read_bytes()).get("kind") == KIND)
    except (OSError, ValueError, AttributeError):  # no manifest, or that of another program
        return False


def regroup(
    folder: str | Path, out: str | Path, *, workers: int = 1, progress: Progress | None = None
) -> dict[str, Any]:
    """Copy each file of a folder to `out` with small row groups for fast random access. Return the manifest. Raises
    DataError if there are no rows."""
    files, out, progress = required_row_files(folder), Path(out), progress or Quiet()
    tasks = [(path, out / f"part-{index:05d}-of-{len(files):05d}.parquet") for index, path in enumerate(files)]
    progress.stage("regrouping", len(tasks), "file")
    shards = []
    for shard in run_tasks(_regrouped, tasks, workers):
        shards.append(shard)
        progress.advance(1)
    shards.sort(key=lambda shard: str(shard["name"]))
    source = Path(folder)
    previous = read_manifest(source) if is_rendered(source) else {"rendering": None}
    names = open_parquet(files[0]).schema_arrow.names
    manifest = previous | {
        "kind": KIND,
        "made_by": made_by(),
        "columns": names,
        "has_pixels": PIXELS in names,
        **{name: sum(shard[name] for shard in shards) for name in ("num_rows", "num_patches", "num_bytes")},
        "fingerprint": fingerprint([shard["sha256"] for shard in shards]),
        "shards": shards,
    }
    for subfolder in (source / RENDERER_FOLDER, source):
        if (subfolder / "text_renderer_config.json").is_file():
            save_renderer(load_renderer(subfolder), out / RENDERER_FOLDER)
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
    """Write the rows of a folder to `out/data` with the names of the published data sets, and `dataset_infos.json`.

    As in the published sets, rows are divided into chunks of `chunk_rows`. A chunk has one file, and another one for
    each full multiple of `shard_bytes` in memory. File numbers count through all chunks, but the total in a name is the
    number of files of its chunk, as in `data/train-00004-of-00003.parquet`.

    `out` is a new folder, or one to be completed or to get another split. Returns the files. Raises DataError if there
    are no rows."""
    files, out, progress = required_row_files(folder), Path(out), progress or Quiet()
    sizes = [open_parquet(path).metadata.num_rows for path in files]
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
            if not path.is_file() or open_parquet(path).metadata.num_rows != last - first:
                _copy(row_batches(files, sizes, first, last - first), path)
            written.append(path)
            progress.advance(last - first)
    # Totals over all splits so far, in the format of `datasets`.
    path = out / "dataset_infos.json"
    infos: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {"default": {"splits": {}}}
    default_info, num_bytes = infos["default"], sum(file.stat().st_size for file in written)
    default_info["splits"][split] = {"name": split, "num_bytes": num_bytes, "num_examples": num_rows}
    default_info["download_size"] = default_info["dataset_size"] = sum(
        entry["num_bytes"] for entry in default_info["splits"].values()
    )
    default_info["features"] = _features(written[0])
    _write_json(path, infos)
    return written


def to_arrow(
    folder: str | Path,
    out: str | Path,
    *,
    split: str = "train",
    rows_per_file: int = ROWS_PER_FILE,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the rows of a folder in the format of `datasets.load_from_disk`: Arrow streams, which are memory-mapped.
    `split` is the data set's split name. Returns the files with rows. Raises DataError if there are no rows or `out`
    cannot be written."""
    import pyarrow

    out, files = Path(out), required_row_files(folder)
    schema = open_parquet(files[0]).schema_arrow
    written: list[Path] = []
    for number, total, batches in _parts(files, rows_per_file, progress or Quiet()):
        path = out / f"data-{number:05d}-of-{total:05d}.arrow"
        with atomic_file(path) as file, pyarrow.ipc.new_stream(file, schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        written.append(path)
    state: dict[str, Any] = {
        "_data_files": [{"filename": path.name} for path in written],
        "_fingerprint": fingerprint([file_sha256(path) for path in written])[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    _write_json(out / "dataset_info.json", {"features": _features(files[0])})
    _write_json(out / "state.json", state)
    return written


def to_webdataset(
    folder: str | Path,
    out: str | Path,
    *,
    split: str = "train",
    rows_per_file: int = ROWS_PER_FILE,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the rows of a folder as tar files of WebDataset. Each row has NUMBER.png, and NUMBER.json with all other
    columns; rows without pictures have only the JSON. `split` is part of the file names, such as `train-00000.tar`.
    Return value and errors are those of `to_arrow`."""
    out, written, row = Path(out), [], 0
    for number, _, batches in _parts(required_row_files(folder), rows_per_file, progress or Quiet()):
        path = out / f"{split}-{number:05d}.tar"
        with atomic_file(path) as file, tarfile.open(fileobj=file, mode="w") as tar:
            for values in (values for batch in batches for values in batch.to_pylist()):
                picture = values.pop(PIXELS, None)
                parts = {} if picture is None else {"png": picture["bytes"]}
                parts["json"] = json.dumps(values, ensure_ascii=False).encode()
                for ending, content in parts.items():
                    # No time and no owner, so that equal rows give equal bytes.
                    member = tarfile.TarInfo(f"{row:09d}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                row += 1
        written.append(path)
    return written


def _regrouped(task: tuple[Path, Path]) -> dict[str, Any]:
    """Copy a file with small row groups, and return its entry in the manifest."""
    origin, target = task
    source = open_parquet(origin)
    if not target.is_file() or open_parquet(target).metadata.num_rows != source.metadata.num_rows:
        _copy(source.iter_batches(ROWS_PER_GROUP), target)
    written = open_parquet(target)
    num_patches = int(np.sum(written.read([PATCHES])[PATCHES].to_numpy(), dtype=np.int64))
    return {
        "name": target.name,
        "num_rows": written.metadata.num_rows,
        "num_patches": num_patches,
        "num_bytes": target.stat().st_size,
        "sha256": file_sha256(target),
    }


def _copy(batches: Iterator[Any], path: Path) -> None:
    first = next(batches)
    with new_row_file(path, first.schema) as file:
        file.add_batch(first)
        for batch in batches:
            file.add_batch(batch)


def row_batches(files: Sequence[Path], sizes: Sequence[int], begin: int, size: int) -> Iterator[Any]:
    """Yield rows `begin` to `begin + size` of all files as record batches of at most ROWS_PER_GROUP rows."""
    end, first = begin + size, 0
    for path, num_rows in zip(files, sizes, strict=True):
        if first < end and first + num_rows > begin:
            row = first
            for batch in open_parquet(path).iter_batches(ROWS_PER_GROUP):
                low, high = max(begin - row, 0), min(end - row, len(batch))
                if low < high:
                    yield batch.slice(low, high - low)
                row += len(batch)
                if row >= end:
                    break
        first += num_rows


def _parts(files: list[Path], rows_per_file: int, progress: Progress) -> Iterator[tuple[int, int, Iterator[Any]]]:
    """Yield number, total number and record batches of each new file."""
    sizes = [open_parquet(path).metadata.num_rows for path in files]
    num_rows = sum(sizes)
    total = -(-num_rows // rows_per_file)
    progress.stage("laying out", num_rows, "row")
    for number in range(total):
        begin = number * rows_per_file
        size = min(rows_per_file, num_rows - begin)
        yield number, total, row_batches(files, sizes, begin, size)
        progress.advance(size)


def _features(file: Path) -> Any:
    return json.loads(open_parquet(file).schema_arrow.metadata[b"huggingface"])["info"]["features"]


def _write_json(path: Path, content: Any) -> None:
    with atomic_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def required_row_files(folder: str | Path) -> list[Path]:
    """Return `row_files(folder)`. Raises DataError if there are none."""
    files = row_files(folder)
    if not files:
        raise DataError(f"{folder} has no parquet files with rendered rows\n  create them with pretrainkit render")
    return files
