"""Count words exactly, in bounded memory (see `word_tables`), with the same result for any number of workers.

A word is a maximal run of bytes other than space, TAB, LF and CR, without any normalization, as in Sabertooth's
counter: U+00A0, U+3000, VT and FF are parts of words. Rows are `word TAB count LF`. Tables (`.tsv`) are also valid
input: counting shards separately and merging the tables equals counting them together.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pretrainkit.corpus.readers import decoded_lines, read_documents
from pretrainkit.corpus.word_tables import (
    Order,
    PythonTable,
    Tally,
    chunks_of,
    explained_overflow,
    new_table,
    write_merged,
)
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import (
    HashingFile,
    atomic_file,
    explained_write_errors,
    fingerprint,
    made_by,
    manifest_path,
    read_manifest,
    verify,
    write_manifest,
)
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import OnBytes, SourceFile, plain_chunks, whole_lines
from pretrainkit.files.spans import GroupTask, group_sources, group_tasks
from pretrainkit.files.work import record_finished, work_folder
from pretrainkit.workers.engine import LOCAL, Engine, StageRunner
from pretrainkit.workers.processes import DEFAULT_MEMORY, Progress, Quiet

SABERTOOTH_PILE_SETS = frozenset({
    "BookCorpus2", "Books3", "DM Mathematics", "Enron Emails", "FreeLaw", "Gutenberg (PG-19)", "HackerNews",
    "NIH ExPorter", "OpenSubtitles", "OpenWebText2", "Pile-CC", "PubMed Abstracts", "USPTO Backgrounds",
    "Wikipedia (en)",
})  # fmt: skip
"""The subsets of the Pile that Sabertooth's counter keeps."""

_OTHER_BLANK = rb"(?:[\x0b\x0c]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
_BLANK_LINE = re.compile(rb"\n[ \t\r]*" + _OTHER_BLANK + rb"(?:" + _OTHER_BLANK + rb"|[ \t\r])*(?=\n)")
"""Lines of Unicode white space that contain not only separators. They end a document and are not words."""
_TSV_ROW = re.compile(rb"([^\t]+)\t\+?([0-9]+)\r?")


def count_source(
    source: SourceFile,
    tally: Tally,
    skips: Skips,
    pile_sets: frozenset[str] | None,
    text_key: str,
    on_bytes: OnBytes = None,
) -> None:
    """Add the words of one file, or the rows of a table (`.tsv`), to `tally`."""
    if source.format == "text":
        for chunk in _checked_text(plain_chunks(source, on_bytes), source.address, skips):
            tally.update(chunk)
    elif source.format == "tsv":
        for chunk, first_line in whole_lines(plain_chunks(source, on_bytes)):
            with explained_overflow():
                _merge_rows(chunk, first_line, source.address, tally.table, skips)
            tally.update(b"")
    else:
        for document in read_documents([source], skips, text_key=text_key, on_bytes=on_bytes):
            name = document.meta.get("pile_set_name")
            if pile_sets is not None and type(name) is str and name not in pile_sets:
                skips.skip("pile_set_left_out", source.address, f"document {document.position + 1}", name)
            else:
                tally.update(document.text.encode())


def _checked_text(chunks: Iterator[bytes], address: str, skips: Skips) -> Iterator[bytes]:
    """Yield the lines of BERT text that are part of documents. A line with invalid UTF-8 is counted as bad input."""
    for chunk, first_line in whole_lines(chunks):
        if not chunk.isascii():
            if not _is_utf8(chunk):
                lines = decoded_lines(chunk.split(b"\n")[:-1], address, skips, first_line)
                chunk = b"".join(line.encode() + b"\n" for _, line in lines)
        elif b"\v" not in chunk and b"\f" not in chunk:
            yield chunk
            continue
        # The added line feed lets the pattern match the first line.
        yield _BLANK_LINE.sub(b"", b"\n" + chunk)


def _merge_rows(chunk: bytes, first_line: int, address: str, table: PythonTable, skips: Skips) -> None:
    """Add rows of `word TAB count`. Empty lines are ignored; other lines are bad input."""
    taken = table.merge(chunk) if _is_utf8(chunk) else 0
    # Continue with the first row that the fast path does not handle: a sign, a CR, an empty line or an error.
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
            table.merge(b"%b\t%d\n" % (match[1], int(match[2])))  # ignores rows of count 0


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def count_group(
    task: GroupTask,
    *,
    pile_sets: frozenset[str] | None,
    text_key: str,
    max_bad: int,
    memory_bytes: int,
    on_bytes: OnBytes = None,
) -> dict[str, Any]:
    """Count the words of one group of files and write sorted runs. Return the record of the finished task, which is
    also stored."""
    shutil.rmtree(task.folder, ignore_errors=True)
    skips = Skips(max_bad)
    tally = Tally(task.folder, memory_bytes)
    for _, source in task.sources:
        count_source(source, tally, skips, pile_sets, text_key, on_bytes)
    return record_counted(task.folder, task.key, tally, skips)


def record_counted(folder: Path, key: str, tally: Tally, skips: Skips) -> dict[str, Any]:
    """Write the rest of `tally` and the record of the finished task. Return the record."""
    tally.spill()
    runs = [path.name for path in tally.runs]
    return record_finished(folder, {"key": key, "runs": runs, "skips": skips.as_dict(), "folder": folder.name})


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
    engine: Engine = LOCAL,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the word counts of `sources` to the table `out`, and its manifest next to it. Return the manifest.

    Groups of files that an interrupted call has counted are kept. The table does not depend on `workers`,
    `memory_bytes` or `engine`.

    Args:
        sources: Documents of any format, and tables (`.tsv`), which are added up.
        out: File of the table. It must not exist, unless it was made from the same input and settings.
        pile_sets: Skip documents whose `meta.pile_set_name` is a string that is not in this set; None skips none.
        workers: Number of tasks that run at once; None lets the engine choose, for example all cores for large input.
        memory_bytes: Memory of all processes of this machine, or of each task on a cluster.

    Raises:
        DataError: There is more bad input than allowed or no word, or the output exists or cannot be written.
    """
    out, progress = Path(out), progress or Quiet()
    settings = {"order": order, "pile_sets": None if pile_sets is None else sorted(pile_sets), "text_key": text_key}
    input_key = fingerprint([settings, [source.identity for source in sources]])
    with explained_write_errors(out):
        if out.exists():
            manifest = _existing(out, input_key, progress)
            # A command that was killed at its end may have left its work folder.
            shutil.rmtree(work_of(out), ignore_errors=True)
            return manifest
    counting = {name: value for name, value in settings.items() if name != "order"}
    total_bytes = sum(source.num_bytes for source in sources)
    groups = group_sources(sources, max(64_000_000, total_bytes // 128))
    runner = StageRunner(engine, workers, memory_bytes, progress)
    resources = runner.resources(len(groups), total_bytes)
    with work_folder(work_of(out), settings, out) as work:
        if len(groups) == 1 and engine.is_local:  # count directly into the final table
            progress.stage("counting", total_bytes, "B")
            skips, tally = Skips(max_bad), Tally(work / "one", resources.memory_bytes)
            for _, source in groups[0]:
                count_source(source, tally, skips, pile_sets, text_key, progress.advance)
            if tally.runs:
                tally.spill()
            table, runs = tally.table, tally.runs
        else:
            tasks = group_tasks(groups, work, "task", [counting])
            limits: dict[str, Any] = {"max_bad": max_bad, "memory_bytes": resources.memory_bytes}
            count = partial(count_group, pile_sets=pile_sets, text_key=text_key, **limits)
            results = runner.finish(
                count, tasks, resources, work, "counting", "B", "groups of files were already counted"
            )
            skips = Skips.of(results, max_bad)
            runs = [work / result["folder"] / name for result in results for name in result["runs"]]
            table = new_table()
        for warning in skips.warnings:
            progress.note(f"warning: {warning}")
        if runs:
            progress.stage("merging", len(runs), "run")
        manifest = write_table(
            table, runs, out, sources, skips, settings=settings, work=work, memory_bytes=memory_bytes, progress=progress
        )
    return manifest


def write_table(
    table: PythonTable,
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
    """Add up `table` and sorted `runs`, write the file `out` and its manifest, and return the manifest.

    The manifest is written before the table gets its name, so that no table is ever without a manifest.
    """
    try:
        with explained_overflow(), atomic_file(out) as file:
            hashing = HashingFile(file)
            num_words = write_merged(
                table, runs, hashing.write, settings["order"], work, memory_bytes // 3, (progress or Quiet()).advance
            )
            if not num_words:
                raise DataError(
                    "the input contains no word\n  give other files, or name the key of the text with --text-key"
                )
            file.flush()
            manifest = {
                "kind": "word-counts",
                "format_version": 1,
                "made_by": made_by(),
                "fingerprint": fingerprint(hashing.sha256),
                "input_fingerprint": fingerprint([settings, [source.identity for source in sources]]),
                "num_words": num_words,
                "num_distinct_words": sum(chunk.count(b"\n") for chunk in chunks_of(Path(file.name))),
                "shards": [{"name": out.name, "num_bytes": hashing.num_bytes, "sha256": hashing.sha256}],
                "settings": settings,
                "sources": [source.describe() for source in sources],
                "skipped": skips.for_manifest(),
            }
            write_manifest(out, manifest)
    except BaseException:  # after any failure, a manifest without its table must not remain
        with suppress(OSError):
            manifest_path(out).unlink()
        raise
    return manifest


def work_of(out: Path) -> Path:
    """Return the folder for the unfinished work on the table `out`."""
    return out.with_name(f".{out.name}.work")


def _existing(out: Path, input_key: str, progress: Progress) -> dict[str, Any]:
    if out.is_dir():
        raise DataError(f"{out} is a folder\n  name a file for the table, such as {out / 'words.tsv'}")
    if not manifest_path(out).exists():
        raise DataError(
            f"{out} already exists without a manifest, so this command did not write it\n"
            "  name another --out, or remove that file"
        )
    if read_manifest(out).get("input_fingerprint") != input_key:
        raise DataError(
            f"{out} already exists and was made from other input or with other settings\n"
            "  name another --out, or remove that file"
        )
    progress.note(f"{out} is already complete, with the right checksum")
    return verify(out)
