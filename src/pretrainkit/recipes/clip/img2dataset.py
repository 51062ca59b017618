"""Sets as img2dataset leaves them (https://github.com/rom1504/img2dataset): numbered shards `00000.tar` or folders
`00000/` with `00000.parquet` and `00000_stats.json` beside them. What failed to download is counted and left out."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from pretrainkit.errors import DataError
from pretrainkit.recipes.clip.config import ClipSourceConfig, set_name
from pretrainkit.recipes.clip.csv_pairs import FolderPairs
from pretrainkit.recipes.clip.pairs import Pairs, Split, caption_columns, split_names
from pretrainkit.recipes.clip.tar_pairs import IMAGE_ENDINGS, open_tars

_USUAL = ("caption", "text", "alt")


def open_img2dataset(source: ClipSourceConfig, split: Split) -> Pairs:
    """All shards of an output folder, of `output_format` webdataset or files.

    Raises:
        DataError: There are no shards, or a table of them cannot be read.
    """
    path = Path(source.path)
    folder = next((path / name for name in split_names(source, split) if (path / name).is_dir()), path)
    if any(folder.glob("*.tar")):
        pairs = open_tars(source.model_copy(update={"path": str(folder)}), split)
        pairs.name, pairs.path = set_name(source), source.path
        pairs.skipped = {**pairs.skipped, **_failures(folder)}
        return pairs
    tables = [_shard(folder, path, source) for path in sorted(folder.glob("*.parquet"))]
    if not tables:
        raise DataError(
            f"data.{split}: {folder} has neither tars nor tables (*.parquet) of img2dataset\n"
            "  give its output folder, made with output_format webdataset or files"
        )
    return FolderPairs(source, folder, pa.concat_tables(tables), _failures(folder))


def _failures(folder: Path) -> dict[str, int]:
    """How many downloads of which status other than success there were, from the tables or the statistics. Those of a
    shard whose download was interrupted are missing or torn, and not counted."""
    counts: Counter[str] = Counter()
    tables = sorted(folder.glob("*.parquet"))
    for path in tables:
        try:
            counts.update(_read(path, ["status"]).column("status").to_pylist())
        except DataError:
            counts["unknown"] += 1
    for path in [] if tables else sorted(folder.glob("*_stats.json")):
        try:
            counts.update(json.loads(path.read_bytes()).get("status_dict", {}))
        except ValueError:
            counts["unknown"] += 1
    return {f"status {status}": count for status, count in sorted(counts.items()) if status != "success"}


def _read(path: Path, columns: list[str]) -> pa.Table:
    try:
        present = parquet.read_schema(path).names
        missing = [name for name in columns if name not in present]
        if missing:
            raise DataError(
                f"{path} has no column {missing[0]!r}; it has {', '.join(present)}\n"
                "  name the caption's column with caption_key, as in data.train='[{path: ..., caption_key: NAME}]'"
            )
        return parquet.read_table(path, columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}\n  fetch or make that shard again") from error


def _shard(folder: Path, path: Path, source: ClipSourceConfig) -> pa.Table:
    """The successes of one shard of the form `files`, image names relative to `folder`."""
    keys = [key.removeprefix("json:") for key in caption_columns(source, ())]
    if not keys:
        present = parquet.read_schema(path).names
        keys = [next((name for name in _USUAL if name in present), _USUAL[0])]
    table = _read(path, ["key", "status", *keys])
    table = table.filter(pa.compute.equal(table.column("status"), "success"))
    names = [f"{path.stem}/{key}" for key in table.column("key").to_pylist()]
    ending = next((e for e in IMAGE_ENDINGS if names and (folder / f"{names[0]}.{e}").is_file()), IMAGE_ENDINGS[0])
    captions = {f"caption_{n}": table.column(key).cast(pa.large_string()) for n, key in enumerate(keys)}
    return pa.table({"image": pa.array([f"{name}.{ending}" for name in names], pa.string()), **captions})
