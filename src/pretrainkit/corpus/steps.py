"""Corpus stages as datatrove pipeline steps, so that its local, SLURM and Ray executors can run them, with its filters
between them. They call the same functions as `pretrainkit corpus`, and give the same shards and tables.

A global shuffle needs three pipelines, each of which waits for the previous one (`depends=`):

    settings = BuildSettings(num_shards=500, heldout=0.01, compress="zst")
    reader = ReadSources(["raw/*.jsonl.zst"])
    SlurmPipelineExecutor([reader, LanguageFilter(...), ScatterRuns("corpus", settings, reader)], tasks=100, ...)
    SlurmPipelineExecutor([GatherShards("corpus", settings)], tasks=50, depends=..., ...)
    SlurmPipelineExecutor([FinishCorpus("corpus", settings, reader)], tasks=1, depends=..., ...)

Word counts need two: `[ReadSources(...), CountWords("words.tsv")]` with any number of tasks, then
`[MergeCounts("words.tsv")]` with one task. Output folders must be on a disk that all tasks share. After a crash,
datatrove repeats whole tasks.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datatrove.data import Document as PipelineDocument
from datatrove.data import DocumentsPipeline
from datatrove.pipeline.base import PipelineStep

from pretrainkit.corpus.readers import Document, read_documents, text_hash
from pretrainkit.corpus.shards import (
    BuildSettings,
    Scattering,
    check_documents,
    gather_shard,
    kept_entry,
    plan_gather,
    write_manifests,
)
from pretrainkit.corpus.shuffle import identity
from pretrainkit.corpus.word_tables import Order, Tally, new_table
from pretrainkit.corpus.words import record_counted, work_of, write_table
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import fingerprint
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import Format, SourceFile, find_sources
from pretrainkit.files.spans import group_sources
from pretrainkit.workers.processes import DEFAULT_MEMORY


class ReadSources(PipelineStep):
    """Read documents with our readers, file by file (large JSONL in spans): task r of n reads files r, r + n, ...

    The id of a document is "FILE/POSITION", which decides its place in the shuffle. Its metadata is the `meta` of the
    corpus.
    """

    name = "pretrainkit: read"
    type = "📖 - READER"

    def __init__(
        self,
        patterns: Sequence[str],
        format: Format = "auto",
        *,
        dataset: str | None = None,
        text_key: str = "text",
        max_bad: int = 0,
    ) -> None:
        super().__init__()
        self.patterns, self.dataset, self.text_key = list(patterns), dataset, text_key
        self.format: Format = format
        self.skips = Skips(max_bad)

    def sources(self) -> list[SourceFile]:
        """Return the files of all tasks."""
        return find_sources(self.patterns, self.format, dataset=self.dataset)

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> Iterator[PipelineDocument]:
        """Yield `data` unchanged, then the documents of this task's files."""
        yield from data or ()
        parts = [part for group in group_sources(self.sources(), 1) for part in group]
        for index, source in parts[rank::world_size]:
            for document in read_documents([source], self.skips, text_key=self.text_key):
                record = PipelineDocument(document.text, f"{index}/{document.position}", metadata=document.meta)
                self.stat_update("documents")
                self.update_doc_stats(record)
                yield record
        for reason, count in self.skips.counts.items():
            self.stat_update(f"skipped: {reason}", value=count)


def _identity_of(document_id: str) -> int:
    """Return the number that `ReadSources` wrote in the id, or a hash of another reader's id."""
    file_index, slash, position = document_id.partition("/")
    if slash and file_index.isdigit() and position.isdigit():
        return identity(int(file_index), int(position))
    return text_hash(document_id)


class ScatterRuns(PipelineStep):
    """Pass 1 of the shuffle: writes the documents of a task to sorted runs in OUT/.work, and yields them unchanged."""

    name = "pretrainkit: scatter"
    type = "💽 - WRITER"

    def __init__(
        self,
        out: str | Path,
        settings: BuildSettings,
        reader: ReadSources | None = None,
        *,
        memory_bytes: int = DEFAULT_MEMORY // 2,
    ) -> None:
        """`reader`: the reader in the same pipeline, whose skips are recorded. `memory_bytes`: memory of one task."""
        super().__init__()
        if settings.duplicates:
            raise DataError(
                "`duplicates` is not supported in datatrove pipelines, which have their own steps for that\n"
                "  leave out `duplicates`, or use pretrainkit corpus dedup or split with --engine"
            )
        self.work, self.settings, self.reader, self.memory_bytes = Path(out) / ".work", settings, reader, memory_bytes

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> Iterator[PipelineDocument]:
        skips = self.reader.skips if self.reader else Skips()
        scattering = Scattering(self.work / f"task-{rank:05d}", self.settings, self.memory_bytes, skips)
        for document in data or ():
            record = Document(document.text, document.metadata, document.id)
            if split := scattering.add(record, _identity_of(document.id)):
                self.stat_update(f"{split} documents")
                yield document
        scattering.finish(_task_key(self.settings.content(), rank, world_size))


def _task_key(settings: dict[str, Any], rank: int, world_size: int) -> str:
    return f"{world_size}:{rank}:{fingerprint(settings)}"


def _task_records(work: Path, settings: dict[str, Any], earlier: str) -> list[dict[str, Any]]:
    """Return the records of all tasks of an earlier pipeline, in the order of their ranks. Raises DataError if some are
    missing, or were made with other settings."""
    records = [json.loads(path.read_bytes()) for path in sorted(work.glob("task-*/task.json"))]
    world_size = int(records[0]["key"].split(":")[0]) if records else 0
    expected = [_task_key(settings, rank, world_size) for rank in range(world_size)]
    if not records or [record["key"] for record in records] != expected:
        raise DataError(
            f"{work} does not have the records of all tasks with these settings: it has {len(records)} records "
            f"for {world_size} tasks\n  first finish the pipeline with {earlier}, with the same settings"
        )
    return records


class GatherShards(PipelineStep):
    """Pass 2 of the shuffle: task r of n writes shards r, r + n, ... Existing shards with the right checksum are
    kept."""

    name = "pretrainkit: gather"
    type = "💽 - WRITER"

    def __init__(self, out: str | Path, settings: BuildSettings, *, memory_bytes: int = DEFAULT_MEMORY // 2) -> None:
        super().__init__()
        self.out, self.settings, self.memory_bytes = Path(out), settings, memory_bytes

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> None:
        work = self.out / ".work"
        records = _task_records(work, self.settings.content(), "ScatterRuns")
        tasks = plan_gather(records, work, self.out, self.settings, self.memory_bytes, work / f"cuts-{rank}")
        for task in tasks[rank::world_size]:
            if kept_entry(task) is None:
                gather_shard(task)
                self.stat_update("shards written")
            else:
                self.stat_update("shards kept")


class FinishCorpus(PipelineStep):
    """Last pipeline, with one task: checks that all shards are written, writes the manifests and removes OUT/.work."""

    name = "pretrainkit: manifest"
    type = "💽 - WRITER"

    def __init__(self, out: str | Path, settings: BuildSettings, reader: ReadSources | None = None) -> None:
        """Take the list of sources from `reader`, which needs the arguments of the first pipeline's reader."""
        super().__init__()
        self.out, self.settings, self.reader = Path(out), settings, reader

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> None:
        _check_single(self, world_size)
        work = self.out / ".work"
        records = _task_records(work, self.settings.content(), "ScatterRuns")
        skips = Skips.of(records, self.settings.max_bad)
        check_documents(records, self.settings, skips)
        entries: dict[str, list[dict[str, Any]]] = {split: [] for split in self.settings.splits}
        for task in plan_gather(records, work, self.out, self.settings, DEFAULT_MEMORY, work / "cuts"):
            entry = kept_entry(task)
            if entry is None:
                raise DataError(f"{task.path} is missing or incomplete\n  first finish the pipeline with GatherShards")
            entries[task.split].append(entry)
        sources = self.reader.sources() if self.reader else []
        write_manifests(entries, records, sources, self.out, self.settings, skips)
        shutil.rmtree(work)


class CountWords(PipelineStep):
    """Counts the words of a task's documents, writes them to sorted runs next to OUT, and yields the documents."""

    name = "pretrainkit: count words"
    type = "📊 - STATS"

    def __init__(
        self, out: str | Path, reader: ReadSources | None = None, *, memory_bytes: int = DEFAULT_MEMORY // 2
    ) -> None:
        """`reader`: the reader in the same pipeline, whose skips are recorded. `memory_bytes`: memory of one task."""
        super().__init__()
        self.out, self.reader, self.memory_bytes = Path(out), reader, memory_bytes

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> Iterator[PipelineDocument]:
        folder = work_of(self.out) / f"task-{rank:05d}"
        shutil.rmtree(folder, ignore_errors=True)
        tally = Tally(folder, self.memory_bytes)
        for document in data or ():
            tally.update(document.text.encode())
            yield document
        skips = self.reader.skips if self.reader else Skips()
        record_counted(folder, _task_key({}, rank, world_size), tally, skips)


class MergeCounts(PipelineStep):
    """Adds up the counts of the `CountWords` tasks, and writes the table OUT and its manifest. It runs in one task."""

    name = "pretrainkit: merge word counts"
    type = "📊 - STATS"

    def __init__(
        self,
        out: str | Path,
        reader: ReadSources | None = None,
        *,
        order: Order = "count",
        memory_bytes: int = DEFAULT_MEMORY,
    ) -> None:
        """Take the list of sources from `reader`, which needs the arguments of the first pipeline's reader."""
        super().__init__()
        self.out, self.reader, self.memory_bytes = Path(out), reader, memory_bytes
        self.order: Order = order

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> None:
        _check_single(self, world_size)
        work = work_of(self.out)
        records = _task_records(work, {}, "CountWords")
        num_bad = sum(record["skips"]["num_bad"] for record in records)  # each task checked its own limit
        skips = Skips.of(records, num_bad)
        write_table(
            new_table(),
            [work / record["folder"] / name for record in records for name in record["runs"]],
            self.out,
            self.reader.sources() if self.reader else [],
            skips,
            settings={"order": self.order, "pile_sets": None, "text_key": getattr(self.reader, "text_key", "text")},
            work=work,
            memory_bytes=self.memory_bytes,
        )
        shutil.rmtree(work)


def _check_single(step: PipelineStep, world_size: int) -> None:
    if world_size != 1:
        raise DataError(f"{type(step).__name__} must run in a pipeline with one task, not {world_size}\n  set tasks=1")
