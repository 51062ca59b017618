"""Sets in the layout of webdataset: tars in which neighbouring files with the same name but different extensions are a
sample, such as `000012.jpg`, `000012.txt` and `000012.json`. https://github.com/webdataset/webdataset

Archives are on a disk, or at addresses that fsspec opens (s3://, gs://, https://, hf://). Each is read once from start
to end; its captions and offsets are stored in an index (`data/tar.py`). Images are read by offset.
"""

import glob
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pretrainkit.data.tar import (
    Member,
    TarReader,
    cached_tables,
    expand_braces,
    is_address,
    members_of,
    opened_archive,
)
from pretrainkit.errors import DataError, MissingSplitError
from pretrainkit.files.manifest import expected_form
from pretrainkit.files.sources import check_shards, explained_read_errors, utf8_text
from pretrainkit.images.decode import IMAGE_SUFFIXES
from pretrainkit.recipes.clip.config import ClipSourceConfig
from pretrainkit.recipes.clip.pairs import BadImage, Pairs, Split, caption_columns, split_names, whole_numbers

_log = logging.getLogger(__name__)

IMAGE_ENDINGS = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
USUAL_CAPTIONS = ("json:caption", "json:text", "txt", "caption", "text")
"""Keys of captions: `json:KEY` is a value inside the sample's .json, others are extensions."""
_SKIPPED = b"skipped"
_TORN = b"torn"
_BREAKS_OFF = b"breaks off"


class TarPairs(Pairs):
    """Pairs whose images are inside archives."""

    def __init__(self, source: ClipSourceConfig, archives: Sequence[str], tables: Sequence[pa.Table]) -> None:
        """Create the pairs of `archives` (paths or addresses) with the `tables` that `index_archive` returns for
        each."""
        skipped: Counter[str] = Counter()
        for table in tables:
            skipped.update(_noted(table, _SKIPPED, {}))
        torn = [
            f"{_base(file)}: {reason}" for file, table in zip(archives, tables) for reason in _noted(table, _TORN, [])
        ]
        if torn:
            skipped[f"file that cannot be read completely, such as {torn[0]}"] = len(torn)
        rows = [table.replace_schema_metadata(None) for table in tables]
        self.archives = tuple(archives)
        self._reader = TarReader(archives)
        self._ends = np.cumsum([table.num_rows for table in rows])
        whole = pa.concat_tables(rows)
        whole.select(["offset", "num_bytes"])  # raises KeyError for a damaged index
        for column in ("image_id", "caption_id"):
            if whole.column(column).null_count:
                whole = whole.drop_columns(column)
        super().__init__(source, whole, skipped)
        self.torn = tuple(torn)
        self.num_lost = _num_lost(tables)

    def read_image(self, row: int) -> bytes:
        archive = int(np.searchsorted(self._ends, row, side="right"))
        offset, num_bytes = (self.table.column(name)[row].as_py() for name in ("offset", "num_bytes"))
        try:
            return self._reader.read(archive, offset, num_bytes)
        except OSError as error:
            raise BadImage("missing image", f"{self.archives[archive]}: {error.strerror or error}") from error

    def image_bytes(self, row: int) -> int:
        return self.table.column("num_bytes")[row].as_py()

    def describe(self, row: int) -> str:
        archive = self.archives[int(np.searchsorted(self._ends, row, side="right"))]
        return f"set {self.name}, row {row} ({self.image_names[row].as_py()} in {_base(archive)})"

    def _image_numbers(self) -> NDArray[np.int64]:
        """Number images by archive and offset."""
        starts = np.concatenate([[0], self._ends[:-1]])
        archive = np.repeat(np.arange(len(self._ends)), np.diff(self._ends, prepend=0))
        offsets = whole_numbers(self.table.column("offset"))
        is_new = np.ones(len(self), np.bool_)  # the pairs of an image are neighbours with the same offset
        is_new[1:] = (np.diff(offsets) != 0) | (np.diff(archive) != 0)
        is_new[starts[starts < len(self)]] = True
        return np.cumsum(is_new) - 1


def _num_lost(tables: Sequence[pa.Table]) -> int:
    """Estimate the number of lost samples. A truncated archive has lost the difference to the average number of rows of
    complete archives, but at least one; in other archives, each unreadable sample counts."""
    breaks_off = [bool(_noted(table, _BREAKS_OFF, 0)) for table in tables]
    whole = [table.num_rows for table, is_short in zip(tables, breaks_off, strict=True) if not is_short]
    usual = round(sum(whole) / len(whole)) if whole else 0
    num_lost = 0
    for table, is_short in zip(tables, breaks_off, strict=True):
        reasons = len(_noted(table, _TORN, []))
        num_lost += max(usual - table.num_rows, reasons) if is_short else reasons
    return num_lost


def _noted(table: pa.Table, key: bytes, default: Any) -> Any:
    about = table.schema.metadata or {}
    return json.loads(about[key]) if key in about else default


def open_tars(source: ClipSourceConfig, split: Split) -> TarPairs:
    """Open all archives of a folder or pattern, in the order of their names. Raises DataError if there are none, or
    none has a readable pair."""
    archives = _find(source, split)
    endings = IMAGE_ENDINGS if source.image_key is None else (source.image_key,)
    keys = tuple(caption_columns(source, USUAL_CAPTIONS))
    is_drawn = isinstance(source.caption_key, dict)
    settings = json.dumps([endings, keys, is_drawn])
    tables = cached_tables(archives, settings, lambda path: index_archive(path, endings, keys, is_drawn))
    with expected_form(f"an index of {archives[0]} or of an archive beside it", "remove the .index files beside them"):
        return TarPairs(source, archives, tables)


def _find(source: ClipSourceConfig, split: Split) -> list[str]:
    """Return the paths or addresses of the archives. Braces are expanded without a look-up; * and folders are
    listed."""
    is_remote = is_address(source.path)
    matching = _matching if is_remote else glob.glob
    if (is_remote and not _is_pattern(source.path)) or os.path.isdir(source.path):
        root, names = source.path.rstrip("/"), split_names(source, split)
        inside = (sorted(matching(f"{folder}/*.tar")) for folder in [*(f"{root}/{name}" for name in names), root])
        archives = next(filter(None, inside), [])
        starts = tuple(f"{name}{mark}" for name in names for mark in "-_")
        archives = [path for path in archives if _base(path).startswith(starts)] or archives
        check_shards(archives, is_chosen=False)
        _warn_of_gaps(archives)
    else:
        patterns = expand_braces(source.path)
        has_more = [not is_remote or "*" in pattern for pattern in patterns]
        archives = [
            path
            for pattern, is_glob in zip(patterns, has_more)
            for path in (sorted(matching(pattern)) if is_glob else []) or [pattern]
        ]
        check_shards(archives)
    missing = [] if is_remote else [path for path in archives if not os.path.isfile(path)]
    if missing or not archives:
        problem = (
            f"{len(missing)} of {len(archives)} archives are missing, such as {missing[0]}" if archives else "no *.tar"
        )
        raise (DataError if archives else MissingSplitError)(
            f"data.{split}: {source.path}: {problem}\n  patterns are relative to {os.getcwd()}; "
            "{00..09} matches numbers, * matches anything"
        )
    return archives


def _warn_of_gaps(archives: Sequence[str]) -> None:
    """Warn if numbers are missing between those of the archives of a folder, as after a download that failed."""
    numbers = {int(match[1]) for path in archives if (match := re.fullmatch(r"\D*(\d+)\.tar", _base(path)))}
    num_missing = max(numbers) - min(numbers) + 1 - len(numbers) if numbers else 0
    if 0 < num_missing < len(numbers):
        missing = next(number for number in count(min(numbers)) if number not in numbers)
        _log.warning(
            "%s: archives are missing between those of numbers %d and %d: %d, such as number %d",
            *(os.path.dirname(archives[0]), min(numbers), max(numbers), num_missing, missing),
        )


def _is_pattern(address: str) -> bool:
    """Return True for the address of an archive or a pattern of archives, False for that of a folder."""
    return ".tar" in address or address.endswith("}") or "*" in address


def _matching(pattern: str) -> list[str]:
    """Return the addresses that match. This lists the folder, with about one request per thousand files."""
    with explained_read_errors(pattern):
        import fsspec

        files, place = fsspec.core.url_to_fs(pattern)
        return [str(files.unstrip_protocol(path)) for path in files.glob(place)]


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def index_archive(path: str, endings: Sequence[str], keys: Sequence[str], is_drawn: bool) -> pa.Table:
    """Return the pairs of an archive. If the caption of a sample is a list, each caption is a pair.

    Args:
        endings: File extensions of images.
        keys: Keys of captions, see USUAL_CAPTIONS. The first that the sample has is used.
        is_drawn: True to keep a column for each key instead, from which training draws.

    Returns:
        A table with the columns image, offset, num_bytes, image_id, caption_id (null if the sample has none),
        caption_0, .... Its metadata hold the number of skipped samples by reason, and the unreadable parts.
    """
    num_columns = len(keys) if is_drawn else 1
    rows: list[tuple[Any, ...]] = []
    skipped: Counter[str] = Counter()
    torn: list[str] = []
    ends: list[str] = []
    with opened_archive(path) as file:
        for files in _samples(members_of(file, path, ends.append)):
            image = next((files[ending] for ending in endings if ending in files), None)
            if image is None:
                skipped["sample without an image"] += 1
                continue
            try:
                about = _json(file, files["json"]) if "json" in files else {}
                texts = [_caption(file, files, about, key) for key in keys]
            except ValueError as error:
                torn.append(str(error))
                continue
            if about.get("status", "success") != "success":  # img2dataset writes the status of each download
                skipped[f"status {about['status']}"] += 1
                continue
            if not is_drawn:
                texts = [next((text for text in texts if text is not None), None)]
            if all(text is None for text in texts):
                skipped["sample without a caption"] += 1
                continue
            for caption_id, captions in _pairs(texts, about.get("caption_id"), path, image):
                rows.append((image.name, image.offset, image.num_bytes, about.get("image_id"), caption_id, *captions))
    fields = [
        ("image", pa.string()),
        *((name, pa.int64()) for name in ("offset", "num_bytes", "image_id", "caption_id")),
        *((f"caption_{column}", pa.large_string()) for column in range(num_columns)),
    ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
    arrays = [
        pa.array(_whole_numbers(column) if name.endswith("_id") else column, kind)
        for column, (name, kind) in zip(columns, fields, strict=True)
    ]
    about_all = {_SKIPPED: json.dumps(skipped).encode(), _TORN: json.dumps(torn + ends).encode()}
    schema = pa.schema(fields, metadata=about_all | ({_BREAKS_OFF: b"1"} if ends else {}))
    return pa.Table.from_arrays(arrays, schema=schema)


def _samples(members: Iterator[Member]) -> Iterator[dict[str, Member]]:
    """Yield the files of each sample by extension. The name of a sample ends at the first dot after the last slash."""

    def stem(member: Member) -> str:
        folder, slash, name = member.name.rpartition("/")
        return folder + slash + name.split(".", 1)[0]

    for key, files in groupby(members, stem):
        yield {member.name[len(key) + 1 :].lower(): member for member in files}


def _json(file: Any, member: Member) -> dict[str, Any]:
    """Return the object in a file; empty if it contains another value. Raises ValueError if it is not JSON."""
    try:
        value = json.loads(_text(file, member))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{member.name} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _text(file: Any, member: Member) -> str:
    """Return the text of a file. Raises ValueError if it is not UTF-8, or has zeros as UTF-16 has."""
    file.seek(member.offset)
    try:
        return utf8_text(file.read(member.num_bytes))
    except ValueError as error:
        raise ValueError(f"{member.name} is not UTF-8: {error}") from error


def _caption(file: Any, files: dict[str, Member], about: dict[str, Any], key: str) -> str | list[str] | None:
    if key.startswith("json:"):
        return about.get(key.removeprefix("json:"))
    return _text(file, files[key]) if key in files else None


def _pairs(
    texts: list[Any], caption_ids: Any, path: str, image: Member
) -> Iterator[tuple[int | None, tuple[str | None, ...]]]:
    """Yield (caption_id, a text for each column) for the pairs of a sample."""
    if len(texts) == 1 and isinstance(texts[0], list):
        ids = caption_ids if isinstance(caption_ids, list) else [None] * len(texts[0])
        for caption_id, text in zip(ids, texts[0], strict=False):
            yield caption_id, (_encodable(text),)
        return
    if any(isinstance(text, list) for text in texts):
        raise DataError(
            f"{path}: {image.name} has a list of captions under one of several caption keys\n"
            "  give a single caption_key: then each caption of the list becomes a pair"
        )
    yield caption_ids, tuple(map(_encodable, texts))


def _encodable(text: Any) -> str | None:
    """Return a caption. Half of a surrogate pair, left where JSON was cut, is replaced as in a text file."""
    return None if text is None else str(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _whole_numbers(values: Sequence[Any]) -> list[int | None]:
    """Return whole numbers of 64 bits, with or without a sign, as int64. Other values become None."""
    return [
        (value + 2**63) % 2**64 - 2**63 if isinstance(value, int) and not isinstance(value, bool) else None
        for value in values
    ]
