"""Sets of image files in folders, in the layouts of ZeroVL and of img2dataset.

ZeroVL has SET/train_anno.csv with the columns image, image_id, caption and caption_id, and the images in SET/train; the
same for valid. img2dataset (https://github.com/rom1504/img2dataset) writes numbered shards `00000.tar` or folders
`00000/`, with `00000.parquet` and `00000_stats.json` beside them. Failed downloads are counted and left out.
"""

import csv as strict_csv
import json
import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from pretrainkit.errors import DataError, MissingSplitError
from pretrainkit.files.sources import delimiter_of, explained_table_errors
from pretrainkit.recipes.clip.config import ClipSourceConfig, set_name
from pretrainkit.recipes.clip.pairs import (
    BadImage,
    Pairs,
    Split,
    caption_columns,
    chosen_captions,
    chosen_column,
    split_names,
    texts_of,
)
from pretrainkit.recipes.clip.tar_pairs import IMAGE_ENDINGS, open_tars


class FolderPairs(Pairs):
    """Image files in a folder, named relative to it."""

    def __init__(
        self, source: ClipSourceConfig, images: Path, table: pa.Table, skipped: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(source, table, skipped)
        self.images = images

    def read_image(self, row: int) -> bytes:
        # A Path would keep its parts in a table of Python that grows in jumps.
        return read_file(os.path.join(self.images, self.image_names[row].as_py()))

    def lacks_image(self, row: int) -> bool:
        try:
            return not (self.images / self.image_names[row].as_py()).is_file()
        except OSError:  # not a valid file name
            return True

    def image_bytes(self, row: int) -> int:
        path = self.images / self.image_names[row].as_py()
        try:
            return path.stat().st_size
        except OSError as error:
            raise BadImage("missing image", f"{path}: {error.strerror}") from error


def _without_waiting(name: str, flags: int) -> int:
    """Open a file; a pipe without a writer would block. Windows has neither such pipes nor the flag."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def read_file(path: str | Path) -> bytes:
    """Return the content of a file. Raises BadImage if it cannot be read."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:  # a device has no end
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read()
        raise BadImage("missing image", f"{path}: it is a device or a pipe, not a file")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError) as error:
        raise BadImage("missing image", f"{path}: there is no such file") from error
    except OSError as error:  # no permission, a name that is too long, a failing disk
        raise BadImage("missing image", f"{path}: {error.strerror}") from error


def open_csv(source: ClipSourceConfig, split: Split) -> FolderPairs:
    """Open a split of a folder. Ids are required only for evaluation. Raises DataError if the annotation file is
    missing or unreadable, or columns or ids are missing."""
    folder, names = Path(source.path), split_names(source, split)
    name = next((name for name in names if (folder / f"{name}_anno.csv").is_file()), None)
    if name is None:
        raise MissingSplitError(
            f"data.{split}: there is no {folder / f'{names[0]}_anno.csv'}\n"
            "  a set needs this file beside the folder of images; for another split of the set, give split: NAME"
        )
    path = folder / f"{name}_anno.csv"
    table = _csv_table(path)
    where = str(path)
    present = table.column_names
    image = chosen_column(present, source.image_key, ("image", "filepath", "file_name"), "image", where)
    texts = chosen_captions(present, source, ("caption", "text", "title"), where)
    columns = {"image": table.column(image).combine_chunks()}
    columns |= {f"caption_{number}": table.column(text).combine_chunks() for number, text in enumerate(texts)}
    for column in ("image_id", "caption_id"):
        if (ids := _ids(table, column, path, is_needed=split == "valid")) is not None:
            columns[column] = ids
    if "image_id" in columns:
        _check_ids(columns["image"], columns["image_id"], path)
    return FolderPairs(source, folder / name, pa.table(columns))


def _csv_table(path: Path) -> pa.Table:
    try:
        with open(path, encoding="utf-8-sig") as file:
            delimiter = delimiter_of(file)
        options = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        with csv.open_csv(path, parse_options=options) as reader:
            names = reader.schema.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise pa.ArrowInvalid(f"it has several columns {', '.join(twice)}")
        as_text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string()), strings_can_be_null=False)
        table = csv.read_csv(path, parse_options=options, convert_options=as_text)
        if any(pc.any(pc.match_substring(column, "\n")).as_py() for column in table.columns):
            _check_quotes(path, delimiter)
        return table
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as a table: {str(error)[:300]}\n"
            "  it must be UTF-8, with a line of column names, and commas, semicolons or tabs between the columns; "
            "quote captions that contain the separator"
        ) from error


def _check_quotes(path: Path, delimiter: str) -> None:
    """Raise ArrowInvalid if a quotation mark within a value may have joined several rows into one, which Arrow's reader
    does not notice."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = strict_csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for _ in rows:
                pass
        except strict_csv.Error as error:
            raise pa.ArrowInvalid(f"line {rows.line_num}: {error}; a quotation mark in a value is doubled") from error


def _check_ids(images: pa.Array, ids: pa.Array, path: Path) -> None:
    """Raise DataError if an image has several ids, or several images have the same one. Images are identified by their
    ids: in evaluation, as negatives and in `data pack`."""
    pairs = pa.table({"image": images, "image_id": ids}).group_by(["image", "image_id"]).aggregate([])
    for key, other in (("image", "image_id"), ("image_id", "image")):
        ((value, count),) = Counter(pairs.column(key).to_pylist()).most_common(1) or [(None, 0)]
        if count > 1:
            others = pairs.filter(pc.equal(pairs.column(key), value)).column(other).to_pylist()
            raise DataError(
                f"{path}: {key} {value} has {count:,} different values of {other}: {others[0]}, {others[1]}\n"
                "  give all rows of an image the same image_id, and other images other ones"
            )


def _ids(table: pa.Table, column: str, path: Path, *, is_needed: bool) -> pa.Array | None:
    """Return int64 (N,) ids, or None if they are not needed and missing or invalid."""
    if column not in table.column_names:
        if not is_needed:
            return None
        raise DataError(
            f"{path} has no column {column}; it has {', '.join(table.column_names)}\n"
            "  evaluation needs image, image_id, caption and caption_id: rows of one image share its image_id"
        )
    try:
        return pc.cast(table.column(column).combine_chunks(), pa.int64())
    except pa.ArrowInvalid as error:
        if not is_needed:
            return None
        raise DataError(
            f"{path}: column {column} must hold whole numbers: {error}\n  evaluation identifies images and captions "
            "by them"
        ) from error


_USUAL = ("caption", "text", "alt")


def open_img2dataset(source: ClipSourceConfig, split: Split) -> Pairs:
    """Open all shards of an output folder with `output_format` webdataset or files. Raises DataError if there are no
    shards, or a table is unreadable."""
    path = Path(source.path)
    folder = next((path / name for name in split_names(source, split) if (path / name).is_dir()), path)
    if any(folder.glob("*.tar")):
        pairs = open_tars(source.model_copy(update={"path": str(folder)}), split)
        pairs.name, pairs.path = set_name(source), source.path
        pairs.skipped = {**pairs.skipped, **_failures(folder)}
        return pairs
    tables = [_shard(folder, path, source) for path in sorted(folder.glob("*.parquet"))]
    if not tables:
        raise MissingSplitError(
            f"data.{split}: {folder} has neither tars nor tables (*.parquet) of img2dataset\n"
            "  give an output folder with output_format webdataset or files"
        )
    return FolderPairs(source, folder, pa.concat_tables(tables), _failures(folder))


def _failures(folder: Path) -> dict[str, int]:
    """Count the downloads by status, except successes, from the tables or else the statistics. An unreadable file, for
    example of an interrupted download, counts as one download with status unknown."""
    counts: Counter[str] = Counter()
    tables = sorted(folder.glob("*.parquet"))
    for path in tables:
        try:
            statuses = _parquet_table(path, ["status"]).column("status")
            counts.update(map(str, texts_of(statuses, "status", str(path)).to_pylist()))
        except DataError:
            counts["unknown"] += 1
    for path in [] if tables else sorted(folder.glob("*_stats.json")):
        try:
            numbers = json.loads(path.read_bytes()).get("status_dict", {})
            counts.update({status: int(number) for status, number in numbers.items()})
        # Not JSON, or not what img2dataset writes.
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
            counts["unknown"] += 1
    return {f"status {status}": count for status, count in sorted(counts.items()) if status != "success"}


def _parquet_table(path: Path, columns: list[str], usual: Sequence[str] = ()) -> pa.Table:
    """Read `columns` and then the first existing of the `usual` columns. Raises DataError if the file is unreadable or
    lacks a column."""
    with explained_table_errors(path):
        present = parquet.read_schema(path).names
        if usual:
            columns = [*columns, next((name for name in usual if name in present), usual[0])]
        missing = [name for name in columns if name not in present]
        if missing:
            raise DataError(
                f"{path} has no column {missing[0]!r}; it has {', '.join(present)}\n"
                "  name the caption's column with caption_key, as in data.train='[{path: ..., caption_key: NAME}]'"
            )
        table = parquet.read_table(path, columns=columns)
        table.validate(full=True)  # a text may not be UTF-8
        return table


def _shard(folder: Path, path: Path, source: ClipSourceConfig) -> pa.Table:
    """Return the successful downloads of a shard with output_format files. Image names are relative to `folder`."""
    keys = [key.removeprefix("json:") for key in caption_columns(source, ())]
    table = _parquet_table(path, ["key", "status", *keys], () if keys else _USUAL)
    keys = table.column_names[2:]
    table = table.filter(pc.equal(texts_of(table.column("status"), "status", str(path)), "success"))
    names = [f"{path.stem}/{key}" for key in texts_of(table.column("key"), "key", str(path)).to_pylist()]
    ending = next((e for e in IMAGE_ENDINGS if names and os.path.isfile(folder / f"{names[0]}.{e}")), IMAGE_ENDINGS[0])
    captions = {f"caption_{n}": texts_of(table.column(key), key, str(path)) for n, key in enumerate(keys)}
    return pa.table({"image": pa.array([f"{name}.{ending}" for name in names], pa.string()), **captions})
