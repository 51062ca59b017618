"""Find input files by addresses, globs and folders; open and decompress them in bounded memory.

An address is a local path or anything that fsspec can open (`s3://`, `gs://`, `hf://`, `https://`, `file://`,
`memory://`). `hf://datasets/NAME`, with an optional `@REVISION` and `:CONFIGURATION`, is a data set of the Hugging Face
hub; the library `datasets` finds the files of its splits.
"""

import glob
import json
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol, cast

from pretrainkit.errors import DataError, MissingPackageError, PretrainKitError, import_optional
from pretrainkit.files.manifest import MANIFEST_NAME, verify

_log = logging.getLogger(__name__)

DocumentFormat = Literal["auto", "jsonl", "text", "book", "wiki", "dump", "parquet"]
Format = DocumentFormat | Literal["arrow", "tsv", "csv"]
"""jsonl: JSON objects with a text. text: BERT text, one sentence per line, blank lines between documents. book: the
whole file is one document. wiki: `<doc>` articles as WikiExtractor writes them. dump: pages of a
MediaWiki XML dump. arrow: a file of a folder that `datasets` saved. tsv: word counts (only for counting). csv: a table,
which is not read."""

FORMAT_OF_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".zst": "jsonl",
    ".gz": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tsv": "tsv",
    ".csv": "csv",
}
"""Format by the last suffix alone, as in Sabertooth: `.txt.zst` is JSONL. Other files are BERT text, except dumps."""
_DUMPS = (".xml", ".xml.bz2", ".xml.gz")

_DRIVERS = {
    "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcs"),
    "http": ("aiohttp", "http"),
    "https": ("aiohttp", "http"),
}
"""Protocols whose drivers are in our extras: package and extra. The driver of `hf://` comes with transformers. For
other protocols, fsspec reports the missing package."""
_HUB_SET = re.compile(r"hf://datasets/([^/@:]+(?:/[^/@:]+)?)(?:@([^/:]+))?(?::([^/]+))?")
_ABOUT_SETS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files without rows that `datasets` writes."""
_VALID_NAMES = ("valid", "validation", "dev")
_SHARD = re.compile(r"part-\d{5}-of-\d{5}\.jsonl(\.zst)?")
_LARGEST_TOTAL = 100_000
_NUMBERED = re.compile(r"(.*?)(\d+)-of-(\d+)(?:-[0-9a-f]{16})?([^/]*)")
"""Start, number, total and end of the address of a shard. Older versions of `datasets` add a hash to each name."""
_FETCH_AGAIN = "download or create the file again; it is not skipped, because its content would be lost silently"
LARGEST_TEXT = 1 << 28
"""Largest line or book in bytes: a compressed file of a megabyte can have a line of a gigabyte."""
_CHUNK_BYTES = 1 << 20
_MOST_ZEROS, _FEW_ZEROS = 0.02, 16
"""Largest share of zero bytes in a text, and a number that may be there by mistake. UTF-16 has more, even where only
spaces and line feeds are ASCII."""
_PACKED_CHUNK_BYTES = 1 << 17  # decompressed at once, so it is small enough for highly compressed text


class ReadOptions(Protocol):
    """Options of a reader, such as the parts of a dump that become text. They are part of a source's identity."""

    def content(self) -> dict[str, Any]:
        """Return the options in JSON form, for fingerprints and manifests."""
        ...


@dataclass(frozen=True)
class SourceFile:
    """One input file and how to read it."""

    address: str
    format: Format
    num_bytes: int
    """Stored size, compressed or not; 0 if the file system does not report it."""
    stamp: str = ""
    """Value that changes with the file: modification time or ETag of the file system, or sha256 in a corpus'
    manifest."""
    dataset: str | None = None
    """Value of `meta.dataset` for documents without their own meta."""
    begin: int | None = None
    """Start of a span of `num_bytes` in the file; None for the whole file."""
    options: ReadOptions | None = None
    """Options of the reader of its format; None for the defaults."""
    origin: dict[str, Any] | None = None
    """Origin of a temporary copy, used instead of its address and stamp; JSON, with a "name"."""

    @property
    def suffix(self) -> str:
        """The last suffix in lower case, such as ".gz". It decides how the file is decompressed."""
        return Path(self.address).suffix.lower()

    @property
    def identity(self) -> list[Any]:
        """Values by which a stage detects that its input has changed."""
        place = [self.stamp, self.dataset] if self.origin is None else []
        span = [] if self.begin is None else [self.begin]
        choices = [] if self.options is None else [self.options.content()]
        return [self.origin or self.address, self.format, self.num_bytes, *place, *span, *choices]

    def describe(self) -> dict[str, Any]:
        """Return a description in JSON form, for manifests."""
        address = self.address if self.origin is None else self.origin["name"]
        return (self.origin or {}) | {"address": address, "format": self.format, "num_bytes": self.num_bytes}


def find_sources(
    patterns: Sequence[str | Path],
    format: Format = "auto",
    *,
    dataset: str | None = None,
    options: ReadOptions | None = None,
) -> list[SourceFile]:
    """Return the files that match `patterns`, in the order of the patterns and sorted by name within each pattern.

    A pattern is a file, a glob (`**` crosses folders), a folder, or `hf://datasets/NAME`. A folder means all files
    below it except hidden ones, `_*`, manifests, README* and LICENSE*. A data set of the hub means its training split.
    Raises DataError if a pattern matches nothing or is a folder with both training and held-out data, or if shards of a
    corpus are missing.
    """
    sources: list[SourceFile] = []
    chosen: list[str] = []
    for pattern in chain.from_iterable(_training_files(str(given)) for given in patterns):
        remote = "://" in pattern
        matches = _remote_matches(pattern) if remote else _local_matches(pattern)
        if not matches:
            problem = "matches no file" if glob.has_magic(pattern) else "does not exist or contains no file"
            advice = f"check the spelling; patterns are relative to {os.getcwd()}"
            raise DataError(f"input {pattern!r} {problem}\n  {advice}")
        addresses = [address for address, _, _ in matches]
        is_file = [Path(address).name for address in addresses] == [Path(pattern).name]
        if is_file or glob.has_magic(pattern):
            chosen += addresses
        else:
            check_shards(addresses, is_chosen=False)
        for address, num_bytes, stamp in matches:
            name = address.lower()
            by_name = "dump" if name.endswith(_DUMPS) else FORMAT_OF_SUFFIX.get(Path(name).suffix, "text")
            resolved = by_name if format == "auto" else format
            sources.append(SourceFile(address, resolved, num_bytes, stamp, dataset, options=options))
    check_shards(chosen)
    counts = Counter(os.path.abspath(source.address) for source in sources)
    if twice := [address for address, count in counts.items() if count > 1]:
        _log.warning("files given several times: %d, such as %s", len(twice), twice[0])
    return sources


def check_shards(addresses: Iterable[str], *, is_chosen: bool = True) -> None:
    """Report files that are missing from a set whose names have a total, such as `text-00003-of-00010.jsonl`.

    `is_chosen`: False for the files of a folder, True if they were chosen one by one or by a pattern. Raises DataError
    if a folder has more than half of a set, but not all: a part that was chosen on purpose is small, or is named.
    """
    numbers_by_set: dict[tuple[str, str, str], set[int]] = {}
    for address in addresses:
        if match := _NUMBERED.fullmatch(address):
            start, number, total, end = match.groups()
            numbers_by_set.setdefault((start, total, end), set()).add(int(number))
    for (start, total, end), numbers in numbers_by_set.items():
        first = int(0 not in numbers and int(total) in numbers)
        is_single = is_chosen and len(numbers) == 1
        # Numbers that exceed the total count something else, as in published sets of rendered text.
        if is_single or max(numbers) >= first + int(total) or int(total) > _LARGEST_TOTAL:
            continue
        absent = set(range(first, first + int(total))) - numbers
        missing = sorted(absent - _in_other_splits(start, total, end)) if absent else []
        if not missing:
            continue
        names = [f"{start}{number:0{len(total)}}-of-{total}{end}" for number in missing[:3]]
        problem = f"{len(missing):,} of {int(total):,} files of a set are missing, such as {', '.join(names)}"
        if not is_chosen and len(numbers) > len(missing):
            part = f"'{os.path.dirname(start)}/*{end}'"
            raise DataError(f"{problem}\n  get them; if you want only a part of the set, name its files: {part}")
        _log.warning("%s; the others are used", problem)


def _in_other_splits(start: str, total: str, end: str) -> set[int]:
    """Return the numbers of the files of a set that are in the folders of splits beside it, such as held-out ones."""
    folder, name = os.path.split(start)
    places = [os.path.join(os.path.dirname(folder), split, name) for split in ("train", *_VALID_NAMES, "test")]
    paths = chain.from_iterable(glob.glob(f"{glob.escape(place)}*") for place in places)
    matches = filter(None, map(_NUMBERED.fullmatch, paths))
    return {int(match[2]) for match in matches if match[1] in places and match[3] == total and match[4] == end}


def find_splits(inputs: Sequence[str | Path]) -> dict[str, Sequence[str | Path]]:
    """Return the inputs of the splits "train" and (if there is one) "valid" of the only input.

    The input is a folder or a data set of the hub; without a split "train", the result is empty. A validation split may
    also be named "validation" or "dev". Other splits, and files beside them, are not read, which is logged.
    """
    if len(inputs) != 1:
        return {}
    address = str(inputs[0])
    splits: Mapping[str, Sequence[str | Path]] = hub_splits(address)
    if not splits and "://" not in address and (Path(address) / "train").is_dir():
        splits = {path.name: [path] for path in sorted(Path(address).iterdir()) if _is_data(path.name)}
    if "train" not in splits:
        return {}
    valid = next((name for name in _VALID_NAMES if name in splits), None)
    if rest := [name for name in splits if name not in ("train", valid)]:
        known = "train" if valid is None else f"train and {valid}"
        _log.warning("%s: only %s will be read, not %s", address, known, ", ".join(rest))
    return {"train": splits["train"]} | ({} if valid is None else {"valid": splits[valid]})


class HubSet(NamedTuple):
    """A data set of the hub."""

    address: str
    name: str
    """USER/NAME, or NAME alone."""
    revision: str | None
    config: str | None


def hub_set(address: str) -> HubSet | None:
    """Parse hf://datasets/NAME[@REVISION][:CONFIGURATION]. Return None for any other address."""
    match = _HUB_SET.fullmatch(address)
    return None if match is None else HubSet(address, *match.groups())


def hub_splits(address: str) -> dict[str, list[str]]:
    """Return the addresses of the files of each split of a data set of the hub; empty if `address` is not a data set of
    the hub. Raises DataError if there is no such data set, or a configuration must be named."""
    data_set = hub_set(address)
    if data_set is None:
        return {}
    name = data_set.name
    datasets = import_optional("datasets", "hub", address)
    with explained_read_errors(address):
        try:
            files = datasets.load_dataset_builder(name, data_set.config, revision=data_set.revision).config.data_files
        except ValueError as error:
            raise DataError(
                f"{address} cannot be opened: {error}\n"
                f"  name a configuration (hf://datasets/{name}:CONFIGURATION) or files (hf://datasets/{name}/FOLDER)"
            ) from error
    return {str(split): list(map(str, paths)) for split, paths in (files or {}).items()}


def _training_files(pattern: str) -> list[str]:
    """Return the files of the training split if `pattern` is a data set of the hub, else the pattern."""
    splits = hub_splits(pattern)
    if splits and "train" not in splits:
        raise DataError(
            f"{pattern} has no split named train\n"
            f"  its splits are: {', '.join(splits)}; read one with pretrainkit corpus hub --split NAME"
        )
    return splits.get("train", [pattern])


def _is_data(relative: str) -> bool:
    parts = relative.split("/")
    is_about_data = parts[-1].endswith("manifest.json") or parts[-1].startswith(("README", "LICENSE"))
    is_about_data |= parts[-1] in _ABOUT_SETS
    return not is_about_data and not any(part.startswith((".", "_")) for part in parts)


def _local_matches(pattern: str) -> list[tuple[str, int, str]]:
    is_glob = glob.has_magic(pattern) and not os.path.exists(pattern)
    names = sorted(glob.glob(pattern, recursive=True)) if is_glob else [pattern]
    paths: list[Path] = []
    for name in map(Path, names):
        if name.is_file():
            paths.append(name)
        elif name.is_dir() and "**" not in pattern:
            if (name / "train/manifest.json").exists() and (name / "valid/manifest.json").exists():
                raise _both_splits(str(name))
            if (name / "dataset_dict.json").is_file():
                splits = [f"{path}" for path in sorted(name.iterdir()) if path.is_dir()]
                raise DataError(f"{name} contains several splits\n  name one of them: {', '.join(splits)}")
            if _manifest_of(name).get("kind") == "corpus":
                verify(name, checksums=False)
            paths += (path for path in files_below(name) if _is_data(path.relative_to(name).as_posix()))
    _check_finished(paths)
    hashes = _shard_hashes(paths)
    files = ((path, path.stat()) for path in paths)
    return [
        (str(path), status.st_size, hashes.get((path, status.st_size), str(status.st_mtime_ns)))
        for path, status in files
    ]


def files_below(folder: Path, seen: set[str] | None = None) -> list[Path]:
    """Return the files in a folder and below, sorted, also in linked folders. A folder to which several links lead is
    read once; `seen` has those that were read before. Raises DataError if a folder cannot be read, or a link that is
    not hidden leads nowhere."""
    seen, real = set() if seen is None else seen, os.path.realpath(folder)
    if real in seen:
        return []
    seen.add(real)
    files: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = folder / entry.name
                if entry.is_dir():
                    files += files_below(path, seen)
                elif entry.is_file():
                    files.append(path)
                elif entry.is_symlink() and not entry.name.startswith("."):
                    raise DataError(
                        f"{path} is a link to {os.path.realpath(path)}, which does not exist\n"
                        "  if the data was moved, link its new place; otherwise remove the link"
                    )
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}\n  check that you may read it") from error
    return files


def _shard_hashes(paths: Sequence[Path]) -> dict[tuple[Path, int], str]:
    """Map shard and size to the sha256 in the shard's manifest, which identifies it by content, not by time."""
    hashes = {}
    for folder in sorted({path.parent for path in paths if _SHARD.fullmatch(path.name)}):
        with suppress(ValueError, TypeError, KeyError):  # a manifest of another program
            for shard in _manifest_of(folder)["shards"]:
                hashes[folder / shard["name"], int(shard["num_bytes"])] = str(shard["sha256"])
    return hashes


def _manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; empty if there is none, or it is not a JSON object."""
    with suppress(OSError, ValueError):
        content = json.loads((folder / MANIFEST_NAME).read_bytes())
        return content if isinstance(content, dict) else {}
    return {}


def _check_finished(paths: Sequence[Path]) -> None:
    """Raise DataError if `paths` has shards of a corpus that is still being written or was never finished."""
    folders = {path.parent for path in paths if _SHARD.fullmatch(path.name)}
    for folder in sorted({*folders, *(folder.parent for folder in folders)}):
        if (folder / ".work").is_dir():
            raise DataError(
                f"the corpus in {folder} is not finished: some of its shards are still missing\n"
                "  repeat the command that writes it, and let it finish"
            )


def _both_splits(folder: str) -> DataError:
    return DataError(
        f"{folder} contains training and held-out data\n  name one of them: {folder}/train or {folder}/valid"
    )


def _remote_matches(pattern: str) -> list[tuple[str, int, str]]:
    with explained_read_errors(pattern):
        import fsspec

        system, path = fsspec.core.url_to_fs(pattern)
        if glob.has_magic(path):
            names = sorted(filter(system.isfile, system.glob(path)))
        elif system.isdir(path):
            root = path.rstrip("/")
            if all(system.exists(f"{root}/{split}/manifest.json") for split in ("train", "valid")):
                raise _both_splits(pattern.rstrip("/"))
            names = sorted(name for name in system.find(path) if _is_data(name[len(root) :].lstrip("/")))
        else:
            names = [path] if system.exists(path) else []
        result = []
        for name in names:
            info = system.info(name)
            stamps = [info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if key in info]
            stamp = str(stamps[0]) if stamps else ""
            result.append((str(system.unstrip_protocol(name)), int(info.get("size") or 0), stamp))
        return result


@contextmanager
def explained_table_errors(address: str | Path, kind: str = "a parquet") -> Iterator[None]:
    """Turn errors of pyarrow about a parquet or Arrow file into a DataError."""
    import pyarrow

    try:
        yield
    # ValueError: a name that is not UTF-8; MemoryError: a damaged size; KeyError: two columns of one name;
    # ArithmeticError: a date that Python lacks
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError, KeyError, ArithmeticError) as error:
        reason = error if str(error) else "a size in it is wrong"
        raise DataError(
            f"{address} is not {kind} file, or is damaged: {reason}\n  download or create the file again"
        ) from error


def open_parquet(address: str | Path) -> Any:
    """Open a parquet file for reading. Raises DataError if it is not a valid one, or its counts of rows differ."""
    import fsspec
    import pyarrow.parquet

    with explained_table_errors(address):
        file = fsspec.open(address).open() if "://" in str(address) else address
        opened = pyarrow.parquet.ParquetFile(file, memory_map=True)
        metadata = opened.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
            raise ValueError(f"its {metadata.num_rows} rows are not those of its row groups")
        return opened


@contextmanager
def explained_read_errors(address: str) -> Iterator[None]:
    """Turn errors of fsspec and its drivers into a DataError, or into a MissingPackageError if a driver is missing."""
    try:
        yield
    except PretrainKitError:
        raise
    except ImportError as error:
        package, extra = _DRIVERS.get(address.partition("://")[0], ("", ""))
        if package:
            raise MissingPackageError(package, extra, address) from error
        raise DataError(f"{address} needs a package that is not installed\n  {error}") from error
    except Exception as error:  # every driver raises different types, some of them directly below Exception
        reason = str(error) or type(error).__name__
        raise DataError(f"{address} cannot be read: {reason}\n  check the address and your access to it") from error


@contextmanager
def open_source(address: str) -> Iterator[BinaryIO]:
    """Open the stored bytes of a file, seekable if the file system supports it. Raises DataError if it cannot be
    opened."""
    if "://" in address:
        with explained_read_errors(address):
            import fsspec

            file = cast(BinaryIO, fsspec.open(address, "rb").open())
    else:
        try:
            file = open(address, "rb")  # noqa: SIM115 - closed below, but only opening is explained here
        except OSError as error:
            raise DataError(
                f"{address} cannot be opened: {error.strerror}\n  check that it is a file and that you may read it"
            ) from error
    with file:
        yield file


OnBytes = Callable[[int], None] | None
"""Callback that receives the number of stored bytes read, for progress."""


def plain_chunks(source: SourceFile, on_bytes: OnBytes = None) -> Iterator[bytes]:
    """Yield the decompressed bytes of a text file in pieces of about a megabyte. Raises DataError if the file is
    truncated, not compressed as its name says, or UTF-16."""
    return text_chunks(unpacked_chunks(source, on_bytes), source.address)


def text_chunks(chunks: Iterator[bytes], address: str) -> Iterator[bytes]:
    """Yield the chunks of a text file. Raises DataError if it is UTF-16, of which many lines are valid UTF-8."""
    first = next(chunks, b"")
    if first.count(0) > max(_MOST_ZEROS * len(first), _FEW_ZEROS):
        order = "LE" if first[1::2].count(0) >= first[::2].count(0) else "BE"
        raise DataError(
            f"{address} is not UTF-8 text: {first.count(0) / len(first):.0%} of its first {len(first):,} bytes "
            f"are zero, as in UTF-16\n  convert it (for example iconv -f UTF-16{order} -t UTF-8), or leave it out"
        )
    if first:
        yield first
    yield from chunks


def unpacked_chunks(source: SourceFile, on_bytes: OnBytes = None) -> Iterator[bytes]:
    """Yield the decompressed bytes of any file, as `plain_chunks` does for texts."""
    with open_source(source.address) as file:
        packed = source.suffix in (".zst", ".gz")
        if source.begin is not None:
            file.seek(source.begin)
        left = None if source.begin is None else source.num_bytes
        raw = _raw_chunks(file, source.address, left, _PACKED_CHUNK_BYTES if packed else _CHUNK_BYTES, on_bytes)
        if source.suffix == ".zst":
            import zstandard

            # We decode frame by frame, because the library's stream reader treats a truncated frame as the end of the
            # file.
            decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
            yield from _frames(raw, source.address, "zstd", decoder, zstandard.ZstdError)
        elif source.suffix == ".gz":
            yield from _frames(raw, source.address, "gzip", partial(zlib.decompressobj, wbits=31), zlib.error)
        else:
            yield from raw


def _raw_chunks(file: BinaryIO, address: str, left: int | None, size: int, on_bytes: OnBytes) -> Iterator[bytes]:
    """Yield the next `left` bytes of a file, or all if it is None."""
    while left is None or left > 0:
        with explained_read_errors(address):
            chunk = file.read(size if left is None else min(size, left))
        if not chunk:
            return
        left = None if left is None else left - len(chunk)
        yield chunk
        if on_bytes:
            on_bytes(len(chunk))


def _frames(
    raw: Iterator[bytes], address: str, kind: str, decoder: Callable[[], Any], failure: type[Exception]
) -> Iterator[bytes]:
    num_read = num_plain = 0
    frame: Any = None
    for chunk in raw:
        num_read += len(chunk)
        while chunk:
            frame = frame or decoder()
            try:
                plain = frame.decompress(chunk)
            except failure as error:
                raise DataError(
                    f"{address} is not {kind} data or is damaged, before byte {num_read} ({num_plain} bytes "
                    f"decompressed)\n  the decompressor reports: {error}\n"
                    f"  {_FETCH_AGAIN}"
                ) from error
            chunk = b""
            # There may be several frames: parallel compressors and `cat` write them.
            if frame.eof:
                chunk, frame = frame.unused_data, None
            num_plain += len(plain)
            if plain:
                yield plain
    if frame is not None:
        raise DataError(
            f"{address} is truncated: the {kind} stream ends at byte {num_read} ({num_plain} bytes decompressed)\n"
            f"  {_FETCH_AGAIN}"
        )


def split_lines(chunks: Iterator[bytes], address: str) -> Iterator[bytes]:
    r"""Yield the lines of a file without their \n. The rest after the last \n is a line only if it is not empty. Raises
    DataError for a line of more than `LARGEST_TEXT` bytes."""
    rest: list[bytes] = []
    num_bytes = 0
    for chunk in chunks:
        num_bytes += len(chunk)
        if num_bytes > LARGEST_TEXT:
            raise too_large(address, "has a line")
        # `first` is the end of the line that the previous chunk began.
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        if lines:
            yield b"".join(rest)
            yield from lines[:-1]
            rest, num_bytes = [lines[-1]], len(lines[-1])
    if last := b"".join(rest):
        yield last


def likely_encoding(first: bytes) -> str:
    """Return the likely encoding of a text that is not UTF-8, from its first bytes."""
    # Neither of the bytes occurs in UTF-8. Together they are the byte order mark of UTF-16.
    return "UTF-16" if first.startswith((b"\xff\xfe", b"\xfe\xff")) else "WINDOWS-1252"


def utf8_text(content: bytes) -> str:
    """Return the text of a file without its byte order mark. Raises ValueError if it is not UTF-8, or has zeros, as
    UTF-16 has."""
    if b"\0" in content:
        raise ValueError("it has zeros, as UTF-16 has")
    return str(content, "utf-8-sig")


def delimiter_of(lines: Iterable[str]) -> str:
    """Return the separator of a table by its line of column names, the first that is not blank: a comma, otherwise a
    semicolon or a tab, which spreadsheets write in countries with decimal commas."""
    header = next((line for line in lines if line.strip()), "")
    return next((mark for mark in ",;\t" if mark in header), ",")


def too_large(address: str, has: str) -> DataError:
    """Return the error for a line or book that is probably not text; a small compressed file can expand to any size."""
    return DataError(
        f"{address} {has} of more than {LARGEST_TEXT >> 20} MB\n  check that it is text; split a larger text into lines"
    )


def whole_lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    r"""Yield chunks that end with \n (added to the last chunk if missing), and the number of their first line."""
    rest: list[bytes] = []
    number = 1
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest.append(chunk)
            continue
        whole = b"".join([*rest, chunk[:cut]])
        yield whole, number
        number += whole.count(b"\n")
        rest = [chunk[cut:]]
    if last := b"".join(rest):
        yield last + b"\n", number
