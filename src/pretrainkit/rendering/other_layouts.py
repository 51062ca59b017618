"""Rendered rows for other programs: the folder that `datasets` saves to disk, and tars of WebDataset."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrainkit.files.manifest import atomic_file, file_sha256, fingerprint
from pretrainkit.rendering.relayout import found_files, opened_parquet, row_batches
from pretrainkit.rendering.row_files import PATCHES, PIXELS
from pretrainkit.workers.processes import Progress, Quiet

ROWS_PER_FILE = 50_000
"""Of pictures about 550 MB."""


def to_arrow(
    folder: str | Path,
    out: str | Path,
    *,
    split: str = "train",
    rows_per_file: int = ROWS_PER_FILE,
    progress: Progress | None = None,
) -> list[Path]:
    """Writes the rows of a folder as `datasets.load_from_disk` reads them: Arrow streams, which are memory-mapped.

    Args:
        folder: With rows, of `pretrainkit render` or as the published sets.
        out: Folder to be made.
        split: What the set says it is.
        rows_per_file: At most.
        progress: Who wants to see how far it is.

    Returns:
        The files with rows.

    Raises:
        DataError: There are no rows, or `out` cannot be written.
    """
    import pyarrow

    out, files = Path(out), found_files(folder)
    schema = opened_parquet(files[0]).schema_arrow
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
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    for name, content in (("dataset_info.json", {"features": features}), ("state.json", state)):
        with atomic_file(out / name) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())
    return written


def to_webdataset(
    folder: str | Path,
    out: str | Path,
    *,
    split: str = "train",
    rows_per_file: int = ROWS_PER_FILE,
    progress: Progress | None = None,
) -> list[Path]:
    """Writes the rows of a folder as tars: of each row NUMBER.png and NUMBER.json with everything else of it; of rows
    without pictures the JSON alone.

    Args:
        folder, out, rows_per_file, progress: As for `to_arrow`.
        split: In the names of the files, `train-00000.tar`.

    Returns:
        The files.

    Raises:
        DataError: As for `to_arrow`.
    """
    out, written, row = Path(out), [], 0
    for number, _, batches in _parts(found_files(folder), rows_per_file, progress or Quiet()):
        path = out / f"{split}-{number:05d}.tar"
        with atomic_file(path) as file, tarfile.open(fileobj=file, mode="w") as tar:
            for batch in batches:
                for values in batch.to_pylist():
                    _add(tar, f"{row:09d}", values)
                    row += 1
        written.append(path)
    return written


def _parts(files: list[Path], rows_per_file: int, progress: Progress) -> Iterator[tuple[int, int, Iterator[Any]]]:
    """Number of each new file, how many there will be, and its record batches."""
    sizes = [opened_parquet(path).metadata.num_rows for path in files]
    num_rows = sum(sizes)
    total = -(-num_rows // rows_per_file)
    progress.stage("laying out", num_rows, "row")
    for number in range(total):
        begin = number * rows_per_file
        size = min(rows_per_file, num_rows - begin)
        yield number, total, row_batches(files, sizes, begin, size)
        progress.advance(size)


def _add(tar: tarfile.TarFile, key: str, values: dict[str, Any]) -> None:
    """No time and no owner, so that the same rows are the same bytes."""
    picture = values.pop(PIXELS, None)
    assert PATCHES in values
    parts = {"json": json.dumps(values, ensure_ascii=False).encode()}
    if picture is not None:
        parts = {"png": picture["bytes"], **parts}
    for ending, content in parts.items():
        member = tarfile.TarInfo(f"{key}.{ending}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
