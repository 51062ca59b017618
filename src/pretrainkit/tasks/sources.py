"""Sources of the raw examples of a task, with random access by split and index.

Creating a source reads nothing. Files are listed and indexed at their first use, and again (from the stored index) in
every process that gets the source.

Dimensions: N examples of a split.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.line_index import LineIndex, index_lines
from pretrainkit.data.tar import TarReader
from pretrainkit.errors import DataError, import_optional
from pretrainkit.files.manifest import file_sha256
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.files.sources import (
    SourceFile,
    explained_table_errors,
    find_sources,
    likely_encoding,
    open_parquet,
    plain_chunks,
)
from pretrainkit.tasks.identity import identity
from pretrainkit.tasks.vocabulary import PickledUnloaded
from pretrainkit.tokenizers.shards import TokenShards

Value = TypeVar("Value")
Keys = TypeVarTuple("Keys")
Example = dict[str, Any]
Files = Mapping[str, str | Path | Sequence[str | Path]]
"""Files by split: a file, a glob or a folder, or several of them."""

_KEPT_ROW_GROUPS = 4
_FEWEST_TO_CUT = 20


class TaskSource(ABC):
    """Raw examples, by split and index."""

    splits: tuple[str, ...]
    """Names of the splits."""

    @abstractmethod
    def file_sizes(self, split: str) -> tuple[int, ...]:
        """Return the number of examples of each part, usually a file."""

    @abstractmethod
    def example(self, split: str, index: int) -> Example:
        """Return the raw example `index` as a new dict."""

    @abstractmethod
    def fingerprint(self, split: str) -> str:
        """Return a hash of the examples. It depends on the content of files, not on their names."""

    def num_examples(self, split: str) -> int:
        """Return the number of examples of a split."""
        return sum(self.file_sizes(split))

    def check_split(self, split: str) -> None:
        """Raise DataError if there is no such split."""
        if split not in self.splits:
            raise DataError(f"there is no split {split!r}\n  its splits are: {', '.join(self.splits) or 'none'}")


class _Lazy(PickledUnloaded, TaskSource):
    """A source that opens its data when it is first used."""

    @cached_property
    def _opened(self) -> dict[tuple[Any, ...], Any]:
        return {}


def once(method: Callable[[Any, *Keys], Value]) -> Callable[[Any, *Keys], Value]:
    """Cache the results of a source's method by its arguments, such as a split, in each process."""

    @wraps(method)
    def cached(self: _Lazy, *arguments: *Keys) -> Value:
        key = (method, arguments)
        if key not in self._opened:
            self._opened[key] = method(self, *arguments)
        return self._opened[key]

    return cached


class BySplit(_Lazy):
    """A source that has a separate source for every split."""

    def __init__(self, sources: Mapping[str, TaskSource]) -> None:
        """`sources` by split; each must have that split."""
        self.sources, self.splits = dict(sources), tuple(sources)

    def _of(self, split: str) -> TaskSource:
        self.check_split(split)
        return self.sources[split]

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return self._of(split).file_sizes(split)

    def example(self, split: str, index: int) -> Example:
        return self._of(split).example(split, index)

    def fingerprint(self, split: str) -> str:
        return self._of(split).fingerprint(split)


class HeldOutSplit(_Lazy):
    """A source with a further split, whose examples are taken out of another one at even distances."""

    def __init__(self, source: TaskSource, name: str, *, of: str = "train", share: float = 0.01) -> None:
        """Define the new split.

        Args:
            name: Name of the new split.
            of: Split that loses the examples.
            share: Share of its examples. It is increased, up to a half, if that would be less than 10 examples.
        """
        self.source, self.name, self.of, self.share = source, name, of, share
        self.splits = (*source.splits, name)

    @once
    def _distance(self) -> int:
        """Return n: every n-th example is held out. Raises DataError if there are too few examples."""
        num = self.source.num_examples(self.of)
        if num < _FEWEST_TO_CUT:
            raise DataError(
                f"the split {self.of!r} has {num} examples, too few to hold some out as {self.name!r}\n"
                f"  add held-out examples as the split {self.name!r}, or train without any: data.valid_split=null"
            )
        return max(2, min(round(1 / self.share), num // 10))

    def file_sizes(self, split: str) -> tuple[int, ...]:
        if split not in (self.of, self.name):
            return self.source.file_sizes(split)
        ends = np.cumsum(self.source.file_sizes(self.of))
        held_out = ends // self._distance()
        return tuple(np.diff(held_out if split == self.name else ends - held_out, prepend=0).tolist())

    def example(self, split: str, index: int) -> Example:
        if split == self.name:
            return self.source.example(self.of, (index + 1) * self._distance() - 1)
        if split == self.of:
            return self.source.example(split, index + index // (self._distance() - 1))
        return self.source.example(split, index)

    def fingerprint(self, split: str) -> str:
        if split not in (self.of, self.name):
            return self.source.fingerprint(split)
        return json_fingerprint([self.source.fingerprint(self.of), split == self.name, self._distance()])


class FileSource(_Lazy):
    """A source whose splits are lists of files."""

    def __init__(self, files: Files) -> None:
        """`files`: see `Files`; files at fsspec addresses (`s3://`, `hf://`) are copied once."""
        self.files = {
            split: (names,) if isinstance(names, (str, Path)) else tuple(names) for split, names in files.items()
        }
        self.splits = tuple(files)

    @once
    def _sources(self, split: str) -> list[SourceFile]:
        self.check_split(split)
        return find_sources(self.files[split])


class FilesInMemory(FileSource):
    """A source whose splits are lists of files, with all examples in memory."""

    kind = ""
    """Name of the kind in fingerprints; empty: the name of the class."""

    @abstractmethod
    def _read(self, content: bytes, path: str) -> list[Example]:
        """Return the examples of a file from its uncompressed content."""

    @once
    def _files(self, split: str) -> list[list[Example]]:
        return [self._read(b"".join(plain_chunks(source)), source.address) for source in self._sources(split)]

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return tuple(map(len, self._files(split)))

    def example(self, split: str, index: int) -> Example:
        for rows in self._files(split):
            if index < len(rows):
                return dict(rows[index])
            index -= len(rows)
        raise IndexError(f"example {index} is after the last one")

    def fingerprint(self, split: str) -> str:
        digests = [file_sha256(source.address) for source in self._sources(split)]
        return json_fingerprint([self.kind or type(self).__name__, digests])


@dataclass(frozen=True)
class _OpenLines:
    """The indexed files of a split."""

    indexes: list[LineIndex]
    rows: list[NDArray[np.int64] | None]
    """For each file the lines that are examples; None: all lines."""
    ends: NDArray[np.int64]
    """(files,) cumulative numbers of examples."""
    reader: TarReader

    def locate(self, index: int) -> tuple[int, int]:
        """Return (file, line in it) of an example."""
        if not 0 <= index < self.ends[-1]:
            raise IndexError(f"example {index} of {self.ends[-1]}")
        file = int(np.searchsorted(self.ends, index, side="right"))
        own = index - (int(self.ends[file - 1]) if file else 0)
        rows = self.rows[file]
        return file, own if rows is None else int(rows[own])

    def line(self, file: int, row: int) -> bytes:
        """Return a line without its line end."""
        place = self.indexes[file]
        begin = int(place.begins[row])
        try:
            return self.reader.read(file, begin, int(place.ends[row]) - begin)
        except OSError as error:
            raise DataError(
                f"{place.path} cannot be read: {error}\n  do not change it while it is in use; start again"
            ) from error


class LineSource(FileSource):
    """Files, compressed or not, in which every line is an example; subclasses may use other pieces than lines."""

    def __init__(self, files: Files, *, skip_header_lines: int = 0, skip_blank_lines: bool = False) -> None:
        super().__init__(files)
        self.skip_header_lines, self._skips_blank_lines = skip_header_lines, skip_blank_lines

    _index = staticmethod(index_lines)

    @once
    def _lines(self, split: str) -> _OpenLines:
        indexes = [self._index(source) for source in self._sources(split)]
        rows = [self._rows(index) for index in indexes]
        sizes = [len(index) if row is None else len(row) for index, row in zip(indexes, rows)]
        return _OpenLines(indexes, rows, np.cumsum(sizes), TarReader([index.path for index in indexes]))

    def _rows(self, index: LineIndex) -> NDArray[np.int64] | None:
        if self._skips_blank_lines:
            filled = np.flatnonzero(index.ends > index.begins)
            return filled[filled >= self.skip_header_lines]
        return np.arange(self.skip_header_lines, len(index)) if self.skip_header_lines else None

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return tuple(np.diff(self._lines(split).ends, prepend=0).tolist())

    def fingerprint(self, split: str) -> str:
        settings = {name: value for name, value in vars(self).items() if name not in ("files", "splits", "_opened")}
        return json_fingerprint([identity(settings), [index.sha256 for index in self._lines(split).indexes]])

    def _text(self, split: str, index: int) -> tuple[str, str]:
        """Return (line, description of its position)."""
        lines = self._lines(split)
        file, row = lines.locate(index)
        place = f"line {row + 1} of {lines.indexes[file].path}"
        text = _decoded(lines.line(file, row), place)
        return (text.removeprefix("\ufeff") if row == 0 else text), place


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place} is not UTF-8: {error.reason}\n"
            f"  convert the file (for example iconv -f {likely_encoding(line)} -t UTF-8)"
        ) from error


class TextLines(LineSource):
    """Every line of text files, including empty ones, as `{"text": line}`."""

    def __init__(self, files: Files, *, key: str = "text", skip_header_lines: int = 0) -> None:
        """`key`: name of the line in the example; `skip_header_lines`: lines to skip at the start of each file."""
        super().__init__(files, skip_header_lines=skip_header_lines)
        self.key = key

    def example(self, split: str, index: int) -> Example:
        return {self.key: self._text(split, index)[0]}


class JsonLines(LineSource):
    """Every line of `.jsonl` files, also `.gz` and `.zst`, is a JSON object; blank lines are skipped."""

    def __init__(self, files: Files, *, keys: Sequence[str] | None = None) -> None:
        """`keys`: keys to keep; None: all."""
        super().__init__(files, skip_blank_lines=True)
        self.keys = None if keys is None else tuple(keys)

    def example(self, split: str, index: int) -> Example:
        text, place = self._text(split, index)
        try:
            value = json.loads(text)
        except ValueError as error:
            raise DataError(f"{place} is not JSON: {error}\n  correct or remove it") from error
        if not isinstance(value, dict):
            raise DataError(f"{place} is a JSON {type(value).__name__}, not an object\n  correct or remove it")
        return value if self.keys is None else _kept(value, self.keys, place)


def different_names(names: Sequence[str], path: object) -> Sequence[str]:
    """Return the names of a table's columns. Raises DataError if two are equal, because all values of the first would
    be lost. Spreadsheets write several columns without a name and content."""
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise DataError(f"{path} has the column {twice!r} twice\n  rename or remove one of them")
    return names


class Tsv(LineSource):
    """Rows of tables with tabs between the columns and no quoting, as in GLUE; all values are strings."""

    def __init__(
        self,
        files: Files,
        *,
        columns: Sequence[str | None] | None = None,
        skip_header_lines: int | None = None,
        delimiter: str = "\t",
        may_be_ragged: bool = False,
    ) -> None:
        """Define the format of the files.

        Args:
            files: Files by split.
            columns: Names of the columns; None for columns to ignore. Default: the first line of each file.
            skip_header_lines: Lines to skip at the start of each file. Default: 1 without `columns`, otherwise 0.
            delimiter: Separator of the columns.
            may_be_ragged: Rows may have fewer fields than columns (the example lacks the missing ones) or more (they
                are dropped).
        """
        header_lines = (1 if columns is None else 0) if skip_header_lines is None else skip_header_lines
        super().__init__(files, skip_header_lines=header_lines, skip_blank_lines=True)
        self.columns = None if columns is None else tuple(columns)
        self.delimiter, self.may_be_ragged = delimiter, may_be_ragged

    @once
    def _names(self, split: str, file: int) -> tuple[str | None, ...]:
        if self.columns is not None:
            return self.columns
        raw, path = self._lines(split).line(file, 0), self._lines(split).indexes[file].path
        names = _decoded(raw, f"line 1 of {path}").removeprefix("\ufeff").split(self.delimiter)
        return tuple(different_names(names, path))

    def example(self, split: str, index: int) -> Example:
        text, place = self._text(split, index)
        names = self._names(split, self._lines(split).locate(index)[0])
        fields = text.split(self.delimiter)
        if len(fields) != len(names) and not self.may_be_ragged:
            raise DataError(
                f"{place} has {len(fields)} fields instead of {len(names)}\n"
                "  correct it, set other columns, or allow it with may_be_ragged=True"
            )
        return {name: field for name, field in zip(names, fields, strict=False) if name is not None}

    def fingerprint(self, split: str) -> str:
        settings = [self.columns, self.delimiter, self.may_be_ragged, self.skip_header_lines]
        return json_fingerprint([settings, [index.sha256 for index in self._lines(split).indexes]])


class Parquet(FileSource):
    """Rows of parquet files. Random access reads whole row groups: for files with large ones, create a cache first."""

    def __init__(self, files: Files, *, columns: Sequence[str] | None = None) -> None:
        """`columns`: columns to read; None: all."""
        super().__init__(files)
        self.columns = None if columns is None else list(columns)

    @once
    def _table(self, split: str) -> "_ParquetFiles":
        return _ParquetFiles([source.address for source in self._sources(split)], self.columns)

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return self._table(split).sizes

    def example(self, split: str, index: int) -> Example:
        return self._table(split).row(index)

    def fingerprint(self, split: str) -> str:
        return json_fingerprint(
            [self.columns, [_sha256_of(source.address, source.stamp) for source in self._sources(split)]]
        )


class _ParquetFiles:
    """Parquet files with some of their row groups in memory."""

    def __init__(self, addresses: Sequence[str], columns: list[str] | None) -> None:
        self._addresses, self._columns, self._files = addresses, columns, []
        group_sizes: list[int] = []
        self._groups: list[tuple[int, int]] = []
        sizes = []
        for number, address in enumerate(addresses):
            opened = open_parquet(address)
            rows = [opened.metadata.row_group(group).num_rows for group in range(opened.metadata.num_row_groups)]
            names = opened.schema_arrow.names
            missing = sorted(set(columns or ()) - set(names))
            if missing:
                raise DataError(f"{address}: no column {', '.join(missing)}\n  its columns are: {', '.join(names)}")
            self._files.append(opened)
            sizes.append(sum(rows))
            self._groups += [(number, group) for group in range(len(rows))]
            group_sizes += rows
        self.sizes = tuple(sizes)
        self._ends = np.cumsum(group_sizes)  # over all row groups of all files
        self._read = lru_cache(maxsize=_KEPT_ROW_GROUPS)(self._read_group)

    def _read_group(self, number: int) -> Any:
        file, group = self._groups[number]
        with explained_table_errors(self._addresses[file]):
            table = self._files[file].read_row_group(group, columns=self._columns)
            table.validate(full=True)  # a text may not be UTF-8
            return table

    def row(self, index: int) -> Example:
        if not 0 <= index < sum(self.sizes):
            raise IndexError(f"example {index} of {sum(self.sizes)}")
        number = int(np.searchsorted(self._ends, index, side="right"))
        begin, group = int(self._ends[number - 1]) if number else 0, self._read(number)
        with explained_table_errors(self._addresses[self._groups[number][0]]):
            return group.slice(index - begin, 1).to_pylist()[0]


class HuggingFaceDataset(_Lazy):
    """A data set of the `datasets` library: from `save_to_disk`, a folder of data files, or from the hub."""

    def __init__(
        self,
        path: str | Path,
        name: str | None = None,
        *,
        splits: Mapping[str, str] | Sequence[str] = ("train", "validation", "test"),
        revision: str | None = None,
    ) -> None:
        """Define the data set.

        Args:
            path: Folder, or name on the hub. A `save_to_disk` folder without splits has the split "train".
            name: Name of the configuration, such as "cola" of "glue".
            splits: Names of splits, or a mapping of our names to the hub's, which may be slices:
                `{"validation": "train[:1%]"}`.
            revision: Revision of the data set on the hub; set it so that the data does not change.
        """
        self.path, self.name, self.revision = str(path), name, revision
        self._splits = dict(splits) if isinstance(splits, Mapping) else {split: split for split in splits}
        self.splits = tuple(splits)

    @once
    def _dataset(self, split: str) -> Any:
        self.check_split(split)
        return self._load(self._splits[split])

    def _load(self, split: str) -> Any:
        datasets = import_optional("datasets", "hub", f"the data set {self.path}")
        folder = Path(self.path)
        try:
            if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
                return self._saved(split)
            return datasets.load_dataset(self.path, self.name, split=split, revision=self.revision)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise DataError(
                f"data set {self.path!r}: split {split!r} cannot be read: {type(error).__name__}: {error}\n"
                "  check its name, configuration and splits; without network, use a folder"
            ) from error

    def _saved(self, split: str) -> Any:
        """Return a split, or slices of splits, of a `save_to_disk` folder."""
        import datasets

        saved = datasets.load_from_disk(self.path)
        parts = saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or "train"): saved}
        spec = datasets.ReadInstruction.from_spec(split)
        slices = []
        for part in spec.to_absolute({name: len(rows) for name, rows in parts.items()}):
            rows = parts[part.splitname]
            is_whole = (part.from_, part.to) == (0, len(rows))
            slices.append(rows if is_whole else rows.select(range(part.from_, part.to)))
        return slices[0] if len(slices) == 1 else datasets.concatenate_datasets(slices)

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return (len(self._dataset(split)),)

    def example(self, split: str, index: int) -> Example:
        return dict(self._dataset(split)[index])

    def fingerprint(self, split: str) -> str:
        return json_fingerprint([self.path, self.name, split, self._dataset(split)._fingerprint])


class TokenShardSource(_Lazy):
    """Documents of token shards (`pretrainkit tokenizer encode`), as `{"targets": int32 ids}`."""

    def __init__(self, folders: Mapping[str, str | Path], *, key: str = "targets") -> None:
        """`folders`: folders with `manifest.json` by split; `key`: name of the ids in the example."""
        self.folders, self.key, self.splits = dict(folders), key, tuple(folders)

    @once
    def shards(self, split: str) -> TokenShards:
        """Return the token shards of a split. Raises DataError if there is no such split."""
        self.check_split(split)
        return TokenShards.open(self.folders[split])

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return tuple(np.diff(self.shards(split).document_begins).tolist())

    def example(self, split: str, index: int) -> Example:
        sentences = self.shards(split).document(index)
        return {self.key: np.concatenate([np.empty(0, np.int32), *sentences]).astype(np.int32)}

    def fingerprint(self, split: str) -> str:
        return json_fingerprint([self.key, self.shards(split).fingerprint])


class FunctionSource(_Lazy):
    """Examples from a Python function. A result that is not a sequence is read into memory."""

    def __init__(
        self,
        function: Callable[[str], Sequence[Mapping[str, Any]] | Iterable[Mapping[str, Any]]],
        splits: Sequence[str],
        *,
        version: str = "",
    ) -> None:
        """Define the source.

        Args:
            function: Returns the examples of a split by its name; always the same.
            splits: Names of the splits.
            version: Change it when the examples change but the code of the function does not.
        """
        self.function, self.splits, self.version = function, tuple(splits), version

    @once
    def _examples(self, split: str) -> Sequence[Mapping[str, Any]]:
        self.check_split(split)
        examples = self.function(split)
        return examples if isinstance(examples, Sequence) else list(examples)

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return (len(self._examples(split)),)

    def example(self, split: str, index: int) -> Example:
        return dict(self._examples(split)[index])

    def fingerprint(self, split: str) -> str:
        return json_fingerprint([identity(self.function), self.version, split])


def _kept(value: Example, keys: Sequence[str], place: str) -> Example:
    missing = [key for key in keys if key not in value]
    if missing:
        raise DataError(f"{place} has no {', '.join(missing)}\n  its keys are: {', '.join(value) or 'none'}")
    return {key: value[key] for key in keys}


def _sha256_of(address: str, stamp: str) -> str:
    """Return the hash of a local file's content, or the address of a remote file and the stamp of its file system."""
    return f"{address} {stamp}" if "://" in address else file_sha256(address)
