"""Input files: addresses, globs, folders; opening and decompressing them in bounded memory.

An address is a local path or anything fsspec knows (`s3://`, `gs://`, `hf://`, `https://`, `file://`, `memory://`).
`hf://datasets/NAME`, with `@REVISION` and `:CONFIGURATION` where they are wanted, is a data set of the Hugging Face
hub; `datasets` says which files its splits have.
"""

import glob
import json
import logging
import os
import re
import zlib
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
Format = DocumentFormat | Literal["arrow", "tsv"]
"""jsonl: JSON objects with a text. text: BERT text, one sentence per line, blank lines between documents. book: the
whole file is one document. wiki: `<doc>` articles as WikiExtractor writes them. dump: pages of a
MediaWiki XML dump. arrow: a file of a folder that `datasets` saved. tsv: word counts (only for counting)."""

FORMAT_OF_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".zst": "jsonl",
    ".gz": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tsv": "tsv",
}
"""By the last suffix alone, as in Sabertooth: `.txt.zst` is JSONL. Everything else is BERT text, but for dumps."""
_DUMPS = (".xml", ".xml.bz2", ".xml.gz")

_DRIVERS = {
    "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcs"),
    "http": ("aiohttp", "http"),
    "https": ("aiohttp", "http"),
}
"""Protocols whose drivers are extras of ours: package and extra. `hf://` comes with transformers; of others fsspec says
what it needs."""
_HUB_SET = re.compile(r"hf://datasets/([^/@:]+(?:/[^/@:]+)?)(?:@([^/:]+))?(?::([^/]+))?")
_ABOUT_SETS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""What `datasets` writes beside the rows."""
_VALID_NAMES = ("valid", "validation", "dev")
_SHARD = re.compile(r"part-\d{5}-of-\d{5}\.jsonl(\.zst)?")
_FETCH_AGAIN = "fetch or make the file again; it is not skipped, because what it held is lost"
_CHUNK_BYTES = 1 << 20
_PACKED_CHUNK_BYTES = 1 << 17  # decompressed at once, so small enough for well-packed text


class ReadOptions(Protocol):
    """Choices of a reader, such as what becomes text of a dump. Part of a source's identity."""

    def content(self) -> dict[str, Any]:
        """For fingerprints and manifests."""
        ...


@dataclass(frozen=True)
class SourceFile:
    """One input file and how to read it."""

    address: str
    format: Format
    num_bytes: int
    """Size as stored, compressed or not; 0 where the file system does not tell."""
    stamp: str = ""
    """Changes when the file does, as far as its file system tells (modification time or ETag), or the manifest of a
    corpus (sha256)."""
    dataset: str | None = None
    """Name that goes into `meta.dataset` of documents that bring no meta of their own."""
    begin: int | None = None
    """Start of a stretch of a file, which has `num_bytes`; None: the whole file."""
    options: ReadOptions | None = None
    """Options of the reader of its format; None: the defaults."""
    origin: dict[str, Any] | None = None
    """Origin of a temporary copy, used instead of its address and stamp; JSON, with a "name"."""

    @property
    def identity(self) -> list[Any]:
        """Values by which a stage notices that its input has changed."""
        place = [self.stamp, self.dataset] if self.origin is None else []
        stretch = [] if self.begin is None else [self.begin]
        choices = [] if self.options is None else [self.options.content()]
        return [self.origin or self.address, self.format, self.num_bytes, *place, *stretch, *choices]

    def describe(self) -> dict[str, Any]:
        """For manifests."""
        address = self.address if self.origin is None else self.origin["name"]
        return (self.origin or {}) | {"address": address, "format": self.format, "num_bytes": self.num_bytes}


def find_sources(
    patterns: Sequence[str | Path],
    format: Format = "auto",
    *,
    dataset: str | None = None,
    options: ReadOptions | None = None,
) -> list[SourceFile]:
    """The files that `patterns` name: in the order of the patterns, sorted by name inside each.

    A pattern is a file, a glob (`**` crosses folders), or a folder, which stands for all files under it except hidden
    ones, `_*`, manifests, README* and LICENSE*; or `hf://datasets/NAME`, which stands for its training split. Raises
    DataError where a pattern matches nothing, is a folder with both train and held-out data, or shards of a corpus are
    missing.
    """
    found: list[SourceFile] = []
    for pattern in chain.from_iterable(_training_files(str(given)) for given in patterns):
        remote = "://" in pattern
        matches = _remote_matches(pattern) if remote else _local_matches(pattern)
        if not matches:
            what = "matches no file" if glob.has_magic(pattern) else "does not exist or holds no file"
            raise DataError(f"input {pattern!r} {what}\n  check the spelling; patterns are relative to {os.getcwd()}")
        for address, num_bytes, stamp in matches:
            by_name = "dump" if address.endswith(_DUMPS) else FORMAT_OF_SUFFIX.get(Path(address).suffix, "text")
            resolved = by_name if format == "auto" else format
            found.append(SourceFile(address, resolved, num_bytes, stamp, dataset, options=options))
    return found


def find_splits(inputs: Sequence[str | Path]) -> dict[str, Sequence[str | Path]]:
    """Return the inputs of "train", and of "valid" where there are some, if the only input is a folder or a data set of
    the hub with these splits; else an empty dictionary. Of a validation split under another name ("validation",
    "dev"), this one is taken; other splits are not read, which is logged."""
    if len(inputs) != 1:
        return {}
    given = str(inputs[0])
    found: Mapping[str, Sequence[str | Path]] = hub_splits(given)
    if not found and "://" not in given and (Path(given) / "train").is_dir():
        found = {path.name: [path] for path in sorted(Path(given).iterdir()) if path.is_dir()}
        has_saved = (Path(given) / "dataset_dict.json").is_file()
        found = found if has_saved else {name: paths for name, paths in found.items() if name in ("train", "valid")}
    if "train" not in found:
        return {}
    valid = next((name for name in _VALID_NAMES if name in found), None)
    if rest := [name for name in found if name not in ("train", valid)]:
        _log.warning("%s: only train and %s are read, not %s", given, valid or "nothing else", ", ".join(rest))
    return {"train": found["train"]} | ({} if valid is None else {"valid": found[valid]})


class HubSet(NamedTuple):
    """A data set of the hub."""

    address: str
    name: str
    """USER/NAME, or NAME alone."""
    revision: str | None
    config: str | None


def hub_set(address: str) -> HubSet | None:
    """Return what hf://datasets/NAME[@REVISION][:CONFIGURATION] names; None for every other address."""
    match = _HUB_SET.fullmatch(address)
    return None if match is None else HubSet(address, *match.groups())


def hub_splits(address: str) -> dict[str, list[str]]:
    """Return the addresses of the files of each split of a data set of the hub; empty if `address` is none. Raises
    DataError if there is no such data set, or a configuration has to be named."""
    wanted = hub_set(address)
    if wanted is None:
        return {}
    name = wanted.name
    datasets = import_optional("datasets", "hub", address)
    with explained_read_errors(address):
        try:
            files = datasets.load_dataset_builder(name, wanted.config, revision=wanted.revision).config.data_files
        except ValueError as error:
            raise DataError(
                f"{address} cannot be opened: {error}\n"
                f"  name a configuration, hf://datasets/{name}:CONFIGURATION, or files, hf://datasets/{name}/FOLDER"
            ) from error
    return {str(split): list(map(str, paths)) for split, paths in (files or {}).items()}


def _training_files(pattern: str) -> list[str]:
    """Return the files of the training split where `pattern` is a data set of the hub, else the pattern."""
    splits = hub_splits(pattern)
    if splits and "train" not in splits:
        raise DataError(
            f"{pattern} has no split train\n"
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
                raise DataError(f"{name} holds several splits\n  name one of them: {', '.join(splits)}")
            if _manifest_of(name).get("kind") == "corpus":
                verify(name, checksums=False)
            inside = (path for path in name.rglob("*") if path.is_file())
            paths += sorted(path for path in inside if _is_data(path.relative_to(name).as_posix()))
    _check_finished(paths)
    noted = _noted_shards(paths)
    found = ((path, path.stat()) for path in paths)
    return [(str(path), at.st_size, noted.get((path, at.st_size), str(at.st_mtime_ns))) for path, at in found]


def _noted_shards(paths: Sequence[Path]) -> dict[tuple[Path, int], str]:
    """Shard and size to its sha256, as the manifest beside it says: known by content, whenever it was written."""
    noted = {}
    for folder in sorted({path.parent for path in paths if _SHARD.fullmatch(path.name)}):
        with suppress(ValueError, TypeError, KeyError):  # somebody else's
            for shard in _manifest_of(folder)["shards"]:
                noted[folder / shard["name"], int(shard["num_bytes"])] = str(shard["sha256"])
    return noted


def _manifest_of(folder: Path) -> dict[str, Any]:
    """Empty where there is none, or somebody else's."""
    with suppress(OSError, ValueError):
        content = json.loads((folder / MANIFEST_NAME).read_bytes())
        return content if isinstance(content, dict) else {}
    return {}


def _check_finished(paths: Sequence[Path]) -> None:
    """DataError if shards are among `paths` whose corpus is still being written, or was never finished."""
    folders = {path.parent for path in paths if _SHARD.fullmatch(path.name)}
    for folder in sorted({*folders, *(folder.parent for folder in folders)}):
        if (folder / ".work").is_dir():
            raise DataError(
                f"the corpus in {folder} is not finished: some of its shards are still missing\n"
                "  run the command that writes it again, to its end"
            )


def _both_splits(folder: str) -> DataError:
    return DataError(f"{folder} holds training and held-out data\n  name one of them: {folder}/train or {folder}/valid")


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
def explained_read_errors(address: str) -> Iterator[None]:
    """Raise the errors of fsspec and of its drivers as DataError, or MissingPackageError if a driver is missing."""
    try:
        yield
    except PretrainKitError:
        raise
    except ImportError as error:
        package, extra = _DRIVERS.get(address.partition("://")[0], ("", ""))
        if package:
            raise MissingPackageError(package, extra, address) from error
        raise DataError(f"{address} needs a package that is not installed\n  {error}") from error
    except Exception as error:  # every driver raises types of its own, some of them directly below Exception
        reason = str(error) or type(error).__name__
        raise DataError(f"{address} cannot be read: {reason}\n  check the address and your access to it") from error


@contextmanager
def open_source(address: str) -> Iterator[BinaryIO]:
    """The stored bytes of a file, seekable where the file system can. Raises DataError where it cannot be opened."""
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
"""Told how many stored bytes were read, for progress."""


def plain_chunks(source: SourceFile, on_bytes: OnBytes = None) -> Iterator[bytes]:
    """The decompressed bytes of a file in pieces of about a megabyte. Raises DataError where the file is truncated
    or not of the compression its name says."""
    with open_source(source.address) as file:
        packed = source.address.endswith((".zst", ".gz"))
        if source.begin is not None:
            file.seek(source.begin)
        left = None if source.begin is None else source.num_bytes
        raw = _raw_chunks(file, source.address, left, _PACKED_CHUNK_BYTES if packed else _CHUNK_BYTES, on_bytes)
        if source.address.endswith(".zst"):
            import zstandard

            # Frame by frame and by hand: the library's stream reader takes a truncated frame for the end of the file.
            decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
            yield from _frames(raw, source.address, "zstd", decoder, zstandard.ZstdError)
        elif source.address.endswith(".gz"):
            yield from _frames(raw, source.address, "gzip", partial(zlib.decompressobj, wbits=31), zlib.error)
        else:
            yield from raw


def _raw_chunks(file: BinaryIO, address: str, left: int | None, size: int, on_bytes: OnBytes) -> Iterator[bytes]:
    """The next `left` bytes of a file; None: all."""
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
                    f"{address}: not {kind} data, or damaged, before byte {num_read} ({num_plain} bytes decompressed)\n"
                    f"  the decompressor says: {error}\n"
                    f"  {_FETCH_AGAIN}"
                ) from error
            chunk = b""
            # Several frames may follow each other, as parallel compressors and `cat` leave them.
            if frame.eof:
                chunk, frame = frame.unused_data, None
            num_plain += len(plain)
            if plain:
                yield plain
    if frame is not None:
        raise DataError(
            f"{address}: truncated; the {kind} stream breaks off at byte {num_read} ({num_plain} bytes decompressed)\n"
            f"  {_FETCH_AGAIN}"
        )


def split_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    r"""Lines cut at \n, without it. What follows the last \n is a line only if it is not empty."""
    rest: list[bytes] = []
    for chunk in chunks:
        # `first` ends the line that the chunk before began.
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        if lines:
            yield b"".join(rest)
            yield from lines[:-1]
            rest = [lines[-1]]
    if last := b"".join(rest):
        yield last


def whole_lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    r"""Chunks that end with \n (put behind the last where it lacks), with the number of their first line."""
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
