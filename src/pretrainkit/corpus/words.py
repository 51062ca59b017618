"""Word counts: exact, in bounded memory, the same table on any number of workers.

A word is a maximal run of bytes other than space, TAB, LF and CR, without any normalisation, as in Sabertooth's
counter: U+00A0, U+3000, VT and FF are part of words. Rows are `word TAB count LF`. Tables (`.tsv`) are input too:
counting shards one by one and merging the tables equals counting them together.

The table itself is compiled (`_words.c`) where the package was installed with a compiler, else a Counter; the rows are
equal. When a table outgrows its share of memory it is written out sorted and a new one begun; the runs are merged at
the end.
"""

import heapq
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, Protocol

from pretrainkit.corpus.manifest import (
    HashingFile,
    atomic_file,
    fingerprint,
    made_by,
    manifest_path,
    read_manifest,
    verify,
    write_manifest,
)
from pretrainkit.corpus.parallel import (
    DEFAULT_MEMORY,
    Progress,
    Quiet,
    memory_per_process,
    num_processes,
    run_tasks,
)
from pretrainkit.corpus.readers import read_documents, utf8_detail
from pretrainkit.corpus.skips import Skips
from pretrainkit.corpus.sources import SourceFile, group_sources, plain_chunks
from pretrainkit.corpus.work import work_folder
from pretrainkit.errors import DataError

Order = Literal["count", "bytes", "sabertooth"]
"""count: most frequent first, then by bytes. bytes: by the words' bytes. sabertooth: as its trie gives them, by bytes
with the low half of each byte first."""

SABERTOOTH_PILE_SETS = frozenset({
    "BookCorpus2", "Books3", "DM Mathematics", "Enron Emails", "FreeLaw", "Gutenberg (PG-19)", "HackerNews",
    "NIH ExPorter", "OpenSubtitles", "OpenWebText2", "Pile-CC", "PubMed Abstracts", "USPTO Backgrounds",
    "Wikipedia (en)",
})  # fmt: skip
"""The subsets of the Pile that Sabertooth's counter keeps."""

_MAX_MERGED_RUNS = 200
_SWAP_NIBBLES = bytes((byte & 15) << 4 | byte >> 4 for byte in range(256))
_SEPARATORS_TO_SPACE = bytes.maketrans(b"\t\n\r", b"   ")
_OTHER_BLANK = rb"(?:[\x0b\x0c]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
_BLANK_LINE = re.compile(rb"\n[ \t\r]*" + _OTHER_BLANK + rb"(?:" + _OTHER_BLANK + rb"|[ \t\r])*(?=\n)")
"""Lines of Unicode white space that hold more than separators: they end a document and are no words."""
_TSV_ROW = re.compile(rb"([^\t]+)\t\+?([0-9]+)\r?")


class Table(Protocol):
    """Words and their counts."""

    @property
    def num_bytes(self) -> int:
        """Memory it takes, about."""

    @property
    def total(self) -> int:
        """Sum of the counts."""

    def __len__(self) -> int: ...

    def update(self, data: bytes, /) -> None:
        """Counts the words of `data`."""

    def add(self, word: bytes, count: int, /) -> None:
        """Adds to the count of one word. OverflowError beyond 64 bits."""

    def merge(self, data: bytes, /) -> int:
        """Adds well-formed rows up to the first that is not; the number of bytes taken."""

    def dump(self, write: Callable[[bytes], Any], order: str, /) -> None:
        """Gives the rows in `order` to `write`, in pieces."""


def split_words(data: bytes) -> list[bytes]:
    """The words of `data`, in order."""
    if b"\v" in data or b"\f" in data:  # bytes.split() would cut there
        return [word for word in data.translate(_SEPARATORS_TO_SPACE).split(b" ") if word]
    return data.split()


class PythonTable:
    """The table without a compiler."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def num_bytes(self) -> int:
        return 140 * len(self._counts)

    @property
    def total(self) -> int:
        return self._counts.total()

    def update(self, data: bytes) -> None:
        self._counts.update(split_words(data))

    def add(self, word: bytes, count: int) -> None:
        if not count:
            return
        self._counts[word] += count
        if self._counts[word] >> 64:
            raise OverflowError("a word count does not fit into 64 bits")

    def merge(self, data: bytes) -> int:
        taken = 0
        for row in data.split(b"\n")[:-1]:
            word, tab, count = row.partition(b"\t")
            if not (word and tab and len(count) <= 19 and count.isdigit() and int(count)):
                break
            self.add(word, int(count))
            taken += len(row) + 1
        return taken

    def dump(self, write: Callable[[bytes], Any], order: str) -> None:
        rows = sorted(self._counts.items(), key=order_key(order))
        for start in range(0, len(rows), 10_000):
            write(b"".join(b"%b\t%d\n" % row for row in rows[start : start + 10_000]))


def new_table() -> Table:
    """An empty table, the compiled one where there is one."""
    try:
        from pretrainkit.corpus._words import WordTable
    except ImportError:
        return PythonTable()
    return WordTable()


def order_key(order: str) -> Callable[[tuple[bytes, int]], Any]:
    """Sort key of (word, count)."""
    match order:
        case "count":
            return lambda row: (-row[1], row[0])
        case "sabertooth":
            return lambda row: row[0].translate(_SWAP_NIBBLES)
        case "bytes":
            return itemgetter(0)
    raise ValueError(f"order {order} is not one of count, bytes, sabertooth")


@dataclass(frozen=True)
class CountTask:
    """A group of files to be counted into sorted runs in `folder`."""

    sources: tuple[tuple[int, SourceFile], ...]
    folder: Path
    pile_sets: frozenset[str] | None
    text_key: str
    max_bad: int
    memory_bytes: int
    key: str


class Tally:
    """A table that writes itself out, sorted, when it outgrows its share of memory."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.table = new_table()
        self.runs: list[Path] = []
        self._folder = folder
        # Growing holds the old and the new slots, and dumping an array of rows besides the table.
        self._max_bytes = memory_bytes // 3

    def update(self, data: bytes) -> None:
        """Counts the words of `data`."""
        self.table.update(data)
        if self.table.num_bytes > self._max_bytes:
            self.spill()

    def spill(self) -> None:
        """Writes the table as a run sorted by bytes, and begins a new one."""
        if len(self.table):
            path = self._folder / f"run-{len(self.runs):05d}.tsv"
            with atomic_file(path) as file:
                self.table.dump(file.write, "bytes")
            self.runs.append(path)
            self.table = new_table()


def count_source(
    source: SourceFile, tally: Tally, skips: Skips, pile_sets: frozenset[str] | None, text_key: str
) -> None:
    """Adds the words of one file, or the rows of a table (`.tsv`), to `tally`."""
    if source.format == "text":
        for chunk in _checked_text(source, skips):
            tally.update(chunk)
    elif source.format == "tsv":
        for chunk, first_line in whole_lines(plain_chunks(source)):
            _merge_rows(chunk, first_line, source.address, tally.table, skips)
            tally.update(b"")
    else:
        for document in read_documents([source], skips, text_key=text_key):
            name = document.meta.get("pile_set_name")
            if pile_sets is not None and type(name) is str and name not in pile_sets:
                skips.skip("pile_set_left_out", source.address, f"document {document.position + 1}", name)
            else:
                tally.update(document.text.encode())


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


def _checked_text(source: SourceFile, skips: Skips) -> Iterator[bytes]:
    """The lines of BERT text that belong to documents; one with invalid UTF-8 is bad by itself."""
    for chunk, first_line in whole_lines(plain_chunks(source)):
        if not chunk.isascii():
            try:
                chunk.decode()
            except UnicodeDecodeError:
                chunk = b"".join(_valid_lines(chunk, first_line, source.address, skips))
        elif b"\v" not in chunk and b"\f" not in chunk:
            yield chunk
            continue
        yield _BLANK_LINE.sub(b"", b"\n" + chunk)


def _valid_lines(chunk: bytes, first_line: int, address: str, skips: Skips) -> Iterator[bytes]:
    for number, line in enumerate(chunk.split(b"\n")[:-1], first_line):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            skips.bad("invalid_utf8", address, f"line {number}", utf8_detail(error))
            continue
        yield line + b"\n"


def _merge_rows(chunk: bytes, first_line: int, address: str, table: Table, skips: Skips) -> None:
    """Adds rows of word TAB count; empty lines are legal, others bad."""
    try:
        chunk.decode()
        taken = table.merge(chunk)
    except UnicodeDecodeError:
        taken = 0
    # From the first row that the fast path leaves alone: a sign, a CR, twenty digits, an empty line, a mistake.
    first_line += chunk.count(b"\n", 0, taken)
    for number, row in enumerate(chunk[taken:].split(b"\n")[:-1], first_line):
        if row in (b"", b"\r"):
            continue
        match = _TSV_ROW.fullmatch(row)
        if match is None or int(match[2]) >> 64 or not _is_utf8(row):
            detail = (
                f"expected a word, a TAB and a count below 2**64, in UTF-8; got {row[:60].decode(errors='replace')!r}"
            )
            skips.bad("invalid_row", address, f"line {number}", detail)
        else:
            table.add(match[1], int(match[2]))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def count_group(task: CountTask) -> dict[str, Any]:
    """Counts one group of files into sorted runs. Returns and notes what was written."""
    shutil.rmtree(task.folder, ignore_errors=True)
    skips = Skips(task.max_bad)
    tally = Tally(task.folder, task.memory_bytes)
    for _, source in task.sources:
        count_source(source, tally, skips, task.pile_sets, task.text_key)
    return note_counted(task.folder, task.key, tally, skips)


def note_counted(folder: Path, key: str, tally: Tally, skips: Skips) -> dict[str, Any]:
    """Writes the rest of `tally` and the record that makes a counting task finished, which it returns."""
    tally.spill()
    runs = [path.name for path in tally.runs]
    result = {"key": key, "runs": runs, "skips": skips.as_dict(), "folder": folder.name}
    with atomic_file(folder / "task.json") as file:
        file.write(json.dumps(result).encode())
    return result


def count_words(
    sources: Sequence[SourceFile],
    out: str | Path,
    *,
    order: Order = "count",
    pile_sets: frozenset[str] | None = None,
    text_key: str = "text",
    max_bad: int = 0,
    workers: int | None = None,
    memory_bytes: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes the word counts of `sources` to the table `out` and its manifest beside it. Returns the manifest.

    Groups of files that an interrupted call has counted are kept. The table does not depend on `workers` or
    `memory_bytes`.

    Args:
        sources: Documents of any format, and tables (`.tsv`), which are added up.
        out: The table; must not exist, unless it is this very one.
        order: Of the rows.
        pile_sets: Documents whose `meta.pile_set_name` is a string count only if it is one of these; None: all count.
        text_key: Key or column that holds the text.
        max_bad: Pieces of bad input that may be skipped.
        workers: Processes; None: the cores, for input worth it.
        memory_bytes: Over all processes.
        progress: Shown how far it is.

    Raises:
        DataError: Bad input beyond the budget, no word at all, output that exists or cannot be written.
    """
    out, progress = Path(out), progress or Quiet()
    settings = {"order": order, "pile_sets": None if pile_sets is None else sorted(pile_sets), "text_key": text_key}
    input_key = fingerprint([settings, [source.identity for source in sources]])
    if out.exists():
        return _existing(out, input_key, progress)
    counting = {name: value for name, value in settings.items() if name != "order"}
    groups = group_sources(sources, max(64_000_000, sum(source.num_bytes for source in sources) // 128))
    total_bytes = sum(source.num_bytes for source in sources)
    processes = num_processes(workers, len(groups), total_bytes, memory_bytes)
    share = memory_per_process(memory_bytes, processes)
    with work_folder(out.with_name(f".{out.name}.work"), settings, out) as work:
        tasks = []
        for number, group in enumerate(groups):
            key = fingerprint([counting, [source.identity for _, source in group]])
            tasks.append(CountTask(tuple(group), work / f"task-{number:05d}", pile_sets, text_key, max_bad, share, key))
        skips = Skips(max_bad)
        progress.stage("counting", total_bytes, "B")
        if len(tasks) == 1:  # straight into the table that is written in the end
            tally = Tally(work / "one", share)
            for _, source in tasks[0].sources:
                count_source(source, tally, skips, pile_sets, text_key)
                progress.advance(source.num_bytes)
            runs: list[Path] = tally.runs
            if runs:
                tally.spill()
            table = tally.table
        else:
            runs = _run_tasks_of(tasks, processes, skips, progress)
            table = new_table()
        for warning in skips.warnings:
            progress.note(f"warning: {warning}")
        progress.stage("merging", len(runs), "run")
        manifest = write_table(
            table, runs, out, sources, skips, settings=settings, work=work, memory_bytes=memory_bytes, progress=progress
        )
        shutil.rmtree(work)
    return manifest


def write_table(
    table: Table,
    runs: Sequence[Path],
    out: Path,
    sources: Sequence[SourceFile],
    skips: Skips,
    *,
    settings: dict[str, Any],
    work: Path,
    memory_bytes: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Adds up `table` and sorted `runs` into the file `out`, and writes its manifest, which it returns."""
    with atomic_file(out) as file:
        hashing = HashingFile(file)
        num_words = _write_merged(
            table, runs, hashing.write, settings["order"], work, memory_bytes // 3, progress or Quiet()
        )
        if not num_words:
            raise DataError("the input holds no word\n  give other files, or name the key of the text by --text-key")
    manifest = {
        "kind": "word-counts",
        "format_version": 1,
        "made_by": made_by(),
        "fingerprint": fingerprint(hashing.sha256),
        "input_fingerprint": fingerprint([settings, [source.identity for source in sources]]),
        "num_words": num_words,
        "num_distinct_words": count_rows(out),
        "shards": [{"name": out.name, "num_bytes": hashing.num_bytes, "sha256": hashing.sha256}],
        "settings": settings,
        "sources": [source.describe() for source in sources],
        "skipped": skips.for_manifest(),
    }
    write_manifest(out, manifest)
    return manifest


def count_rows(path: Path) -> int:
    """Rows of a table."""
    with open(path, "rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _existing(out: Path, input_key: str, progress: Progress) -> dict[str, Any]:
    if out.is_dir():
        raise DataError(f"{out} is a folder\n  name a file for the table, such as {out / 'words.tsv'}")
    if not manifest_path(out).exists() or read_manifest(out).get("input_fingerprint") != input_key:
        raise DataError(
            f"{out} already exists, made from other input or with other settings\n"
            "  name another --out, or remove that one"
        )
    progress.note(f"{out} is already complete, its checksum is right")
    return verify(out)


def _run_tasks_of(tasks: Sequence[CountTask], processes: int, skips: Skips, progress: Progress) -> list[Path]:
    results: dict[str, dict[str, Any]] = {}
    for task in tasks:
        noted = task.folder / "task.json"
        result = json.loads(noted.read_bytes()) if noted.exists() else {}
        if result.get("key") == task.key:
            results[task.folder.name] = result
    if results:
        progress.note(f"kept: {len(results)} of {len(tasks)} groups of files were already counted")
    sizes = {task.folder.name: sum(source.num_bytes for _, source in task.sources) for task in tasks}
    progress.advance(sum(sizes[name] for name in results))
    for result in run_tasks(count_group, [task for task in tasks if task.folder.name not in results], processes):
        results[result["folder"]] = result
        progress.advance(sizes[result["folder"]])
    runs = []
    for task in tasks:
        result = results[task.folder.name]
        skips.merge(result["skips"])
        runs += [task.folder / name for name in result["runs"]]
    return runs


def _write_merged(
    table: Table,
    runs: Sequence[Path],
    write: Callable[[bytes], Any],
    order: Order,
    folder: Path,
    memory_bytes: int,
    progress: Progress,
) -> int:
    """Adds up `table` and sorted `runs` and gives the rows in `order` to `write`. Returns the sum of all counts."""
    for path in runs:
        with open(path, "rb") as file:
            for chunk, _ in whole_lines(iter(lambda: file.read(1 << 20), b"")):
                table.merge(chunk)
                if table.num_bytes > memory_bytes:
                    return _write_merged_on_disk(runs, write, order, folder, memory_bytes)
        progress.advance(1)
    table.dump(write, order)
    return table.total


def _write_merged_on_disk(
    runs: Sequence[Path], write: Callable[[bytes], Any], order: Order, folder: Path, memory_bytes: int
) -> int:
    """The same for tables that do not fit into memory together: by merging sorted files, and sorting the sums again."""
    level = 0
    runs = list(runs)
    while len(runs) > _MAX_MERGED_RUNS:
        merged = []
        for start in range(0, len(runs), _MAX_MERGED_RUNS):
            path = folder / f"level-{level}-{start:05d}.tsv"
            with atomic_file(path) as file:
                _write_rows(_summed(runs[start : start + _MAX_MERGED_RUNS]), file.write)
            merged.append(path)
        runs, level = merged, level + 1
    rows = _summed(runs)
    if order == "bytes":
        return _write_rows(rows, write)
    key = order_key(order)
    parts: list[Path] = []
    held: list[tuple[bytes, int]] = []
    held_bytes = 0
    for row in rows:
        held.append(row)
        held_bytes += len(row[0]) + 160
        if held_bytes > memory_bytes:
            parts.append(_write_part(sorted(held, key=key), folder / f"order-{len(parts):05d}.tsv"))
            held, held_bytes = [], 0
    parts.append(_write_part(sorted(held, key=key), folder / f"order-{len(parts):05d}.tsv"))
    return _write_rows(heapq.merge(*map(_read_rows, parts), key=key), write)


def _write_part(rows: Iterable[tuple[bytes, int]], path: Path) -> Path:
    with atomic_file(path) as file:
        _write_rows(rows, file.write)
    return path


def _read_rows(path: Path) -> Iterator[tuple[bytes, int]]:
    with open(path, "rb") as file:
        for row in file:
            word, _, count = row.rpartition(b"\t")
            yield word, int(count)


def _summed(runs: Sequence[Path]) -> Iterator[tuple[bytes, int]]:
    merged = heapq.merge(*map(_read_rows, runs), key=itemgetter(0))
    for word, rows in groupby(merged, key=itemgetter(0)):
        yield word, sum(count for _, count in rows)


def _write_rows(rows: Iterable[tuple[bytes, int]], write: Callable[[bytes], Any]) -> int:
    total = 0
    for word, count in rows:
        write(b"%b\t%d\n" % (word, count))
        total += count
    return total
