"""Build checksummed shards from source files: `corpus shards`, `corpus shuffle` and `corpus books`.

There are two passes through `OUT/.work` (see `shuffle`): *scatter* tasks read groups of files into sorted runs, and
*gather* tasks write one shard each. A finished task leaves a record with its fingerprint, and a finished shard a record
with its sha256, so that the same command resumes after a crash. A shard appears under its name only when it is
complete; manifests are written last.

Documents are held out by a hash of their text alone. So all copies of a text are in one split, and neither the seed nor
the order changes which documents are held out.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pretrainkit.corpus.build_settings import BuildSettings
from pretrainkit.corpus.duplicates import DropList, find_duplicates
from pretrainkit.corpus.readers import Document, read_documents, text_hash
from pretrainkit.corpus.shard_writer import Compression, encode_record, open_shard, shard_name
from pretrainkit.corpus.shuffle import Run, RunWriter, cut_positions, gather, identity, load_parts, save_cuts
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import (
    MANIFEST_NAME,
    explained_write_errors,
    fingerprint,
    made_by,
    manifest_path,
    matches_entry,
    read_manifest,
    verify,
    write_manifest,
)
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import OnBytes, SourceFile
from pretrainkit.files.spans import GroupTask, group_sources, group_tasks
from pretrainkit.files.work import finished_task, record_finished, work_folder
from pretrainkit.workers.engine import LOCAL, Engine, StageRunner
from pretrainkit.workers.processes import DEFAULT_MEMORY, Progress, Quiet

_MEMORY_SHARE = 0.7
"""Share of a process's memory for documents; the rest is for reading, sorting and the allocator."""


class EmptyCorpus(DataError):
    """The input contains no document."""


@dataclass(frozen=True)
class GatherTask:
    """Task that writes one shard."""

    split: str
    index: int
    """Number of the shard in its split."""
    path: Path
    cuts: Path
    """Folder of `save_cuts`. With thousands of runs and shards, the parts of all tasks would fill the memory."""
    folder: Path
    """Folder for the record of the finished task."""
    key: str
    compress: Compression
    memory_bytes: int


def build_corpus(
    sources: Sequence[SourceFile],
    out: str | Path,
    settings: BuildSettings,
    *,
    workers: int | None = None,
    memory_bytes: int = DEFAULT_MEMORY,
    engine: Engine = LOCAL,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Write the shards of `sources` to `out`, and resume an earlier, interrupted call.

    The shards depend only on the sources and `settings`, not on `workers`, `memory_bytes` or `engine`.

    Args:
        sources: Result of `find_sources`, in the order that `seed=None` keeps.
        out: Folder that is new, has no shards, or has an unfinished or equal corpus.
        workers: Number of tasks that run at once; None lets the engine choose, for example all cores for large input.
        memory_bytes: Memory of all processes of this machine, or of each task on a cluster.

    Returns:
        The manifest of each split ("train", "valid").

    Raises:
        EmptyCorpus: The input contains no document.
        DataError: There is more bad input than allowed, the output exists or cannot be written, or a split is empty.
    """
    out, progress = Path(out), progress or Quiet()
    if not sources:
        raise EmptyCorpus("no input files\n  name at least one file, glob or folder")
    finished = _finished(out, settings, _input_key(sources, settings), progress)
    if finished is not None:
        return finished
    plan = {"settings": settings.content(), "addresses": [source.address for source in sources]}
    with work_folder(out / ".work", plan, out) as work:
        runner = StageRunner(engine, workers, memory_bytes, progress)
        results = _read(sources, work, settings, runner)
        used = settings
        if share := _sufficient_share(results, settings):
            progress.note(
                f"none of the {_num_documents(results, 'train')} documents would be held out with --heldout "
                f"{settings.heldout}; --heldout {share} is used instead, which holds out at least one"
            )
            used = replace(settings, heldout=share)
            results = _read(sources, work, used, runner)
        skips = Skips.of(results, settings.max_bad)
        for warning in skips.warnings:
            progress.note(f"warning: {warning}")
        try:
            check_documents(results, used, skips)
        except DataError:
            shutil.rmtree(work, ignore_errors=True)  # with these settings there is nothing to resume
            raise
        entries = _gather(results, work, out, used, runner)
        more = {"heldout_used": used.heldout} if used is not settings else {}
        manifests = write_manifests(entries, results, sources, out, settings, skips, more)
    return manifests


def _read(
    sources: Sequence[SourceFile], work: Path, settings: BuildSettings, runner: StageRunner
) -> list[dict[str, Any]]:
    """Run pass 1: read the documents into sorted runs by split. Return the records of the tasks."""
    dropped: Path | None = None
    choices: list[Any] = [settings.content()]
    if settings.duplicates:
        limits = {name: getattr(settings, name) for name in ("heldout", "text_key", "max_bad")}
        duplicates = find_duplicates(sources, work, settings.duplicates, runner=runner, **limits)
        dropped, choices = duplicates.path, [*choices, duplicates.key]
    tasks = group_tasks(group_sources(sources), work, "task", choices)
    resources = runner.resources(len(tasks), sum(source.num_bytes for source in sources))
    read = partial(scatter, settings=settings, memory_bytes=resources.memory_bytes, dropped=dropped)
    return runner.finish(
        read, tasks, resources, work, "reading", "B", "groups of files were already read", _kept_result
    )


def _num_documents(results: Sequence[dict[str, Any]], split: str) -> int:
    return sum(count for result in results for _, count, _ in result["runs"].get(split, []))


def _sufficient_share(results: Sequence[dict[str, Any]], settings: BuildSettings) -> float:
    """Return a share that holds out at least one document if the requested share holds out none of several; else 0."""
    if not settings.heldout or _num_documents(results, "valid") or _num_documents(results, "train") < 2:
        return 0.0
    return share_above(min(result["lowest_share"] for result in results))


def share_above(lowest: float) -> float:
    """Return a share with few digits that is above `lowest`, the lowest hash of a text as a share. Return 0 if that
    share would not be below 1."""
    # The next multiple of 0.0001 above `lowest`.
    share = math.floor(10_000 * lowest + 1) / 10_000
    return share if share < 1 else 0.0


def _input_key(sources: Sequence[SourceFile], settings: BuildSettings) -> str:
    return fingerprint([settings.content(), [source.identity for source in sources]])


def _finished(
    out: Path, settings: BuildSettings, input_key: str, progress: Progress
) -> dict[str, dict[str, Any]] | None:
    """Return the manifests of an equal corpus that is already in `out`; None if there is none. Raises DataError if
    there is another one."""
    folders = {split: out / folder for split, folder in settings.splits.items()}
    with explained_write_errors(out):
        if out.exists() and not out.is_dir():
            raise DataError(f"{out} is a file\n  name a folder for the shards")
        has_manifest = [manifest_path(folder).exists() for folder in folders.values() if folder.is_dir()]
    if has_manifest and all(has_manifest) and len(has_manifest) == len(folders):
        if any(read_manifest(folder).get("input_fingerprint") != input_key for folder in folders.values()):
            raise DataError(
                f"{out} already has a corpus that was made from other input or with other settings\n"
                "  name another folder with --out, or remove that one"
            )
        manifests = {split: verify(folder) for split, folder in folders.items()}
        num_shards = sum(len(manifest["shards"]) for manifest in manifests.values())
        progress.note(f"{out} is already complete: {num_shards} shards with the right checksums were kept")
        shutil.rmtree(out / ".work", ignore_errors=True)
        return manifests
    if not (out / ".work").exists():
        for folder in (out, out / "train", out / "valid"):
            for path in [*sorted(folder.glob("part-*")), *folder.glob(MANIFEST_NAME)]:
                raise DataError(
                    f"{folder} already has {path.name}, which is not from an unfinished run of this command\n"
                    "  name another folder with --out, or remove that one"
                )
    return None


class HeldOut:
    """Decides which texts are held out, and stores the smallest share that would have held out one."""

    def __init__(self, settings: BuildSettings) -> None:
        self._share = settings.heldout
        self.lowest = 1.0
        """Any share above this one holds out at least one of the texts seen so far."""

    def split_of(self, text: str) -> str:
        """Return "valid" for the held-out share of all texts, else "train". Copies of a text get the same split."""
        if not self._share:
            return "train"
        # Uniformly distributed over [0, 1) for any texts.
        place = text_hash(text) / 2**64
        self.lowest = min(self.lowest, place)
        return "valid" if place < self._share else "train"


class Scattering:
    """Pass 1 for some documents: writes those that are not dropped to sorted runs in `folder`, by split."""

    def __init__(
        self, folder: Path, settings: BuildSettings, memory_bytes: int, skips: Skips, dropped: Path | None = None
    ) -> None:
        """Empty the folder and start. `dropped`: the file of `find_duplicates` with the documents to drop."""
        shutil.rmtree(folder, ignore_errors=True)
        self._settings, self._skips = settings, skips
        self._dropped = DropList(dropped) if dropped else None
        self._writer = RunWriter(folder, settings.seed, memory_bytes)
        self._held_out = HeldOut(settings)
        self._num_bytes = {"train": 0, "valid": 0}

    def add(self, document: Document, number: int) -> str | None:
        """Add the document with the `identity` `number`. Return its split, or None if it is dropped, which is
        counted."""
        quality, duplicates = self._settings.quality, self._settings.duplicates
        if duplicates is not None and self._dropped is not None and number in self._dropped:
            problem: str | None = duplicates.reason
        else:
            problem = quality.problem(document.text) if quality else None
        if problem:
            self._skips.leave_out(problem, document.source, f"document {document.position}")
            return None
        split = self._held_out.split_of(document.text)
        record = encode_record(document.text, document.meta)
        self._num_bytes[split] += len(record)
        self._writer.add(split, number, record)
        return split

    def finish(self, key: str) -> dict[str, Any]:
        """Write the remaining documents and the record of the finished task. Return the record."""
        self._writer.spill()
        result = {
            "key": key,
            "runs": {
                split: [[run.path.name, run.num_documents, run.num_bytes] for run in runs]
                for split, runs in self._writer.runs.items()
            },
            "num_bytes": self._num_bytes,
            "skips": self._skips.as_dict(),
            "lowest_share": self._held_out.lowest,
            "folder": self._writer.folder.name,
        }
        return record_finished(self._writer.folder, result)


def scatter(
    task: GroupTask, *, settings: BuildSettings, memory_bytes: int, dropped: Path | None, on_bytes: OnBytes = None
) -> dict[str, Any]:
    """Run pass 1 for one group of files: write its documents to sorted runs. Return the record of the finished task,
    which is also stored. `dropped`: the list of duplicates, if there is one."""
    skips = Skips(settings.max_bad)
    scattering = Scattering(task.folder, settings, int(memory_bytes * _MEMORY_SHARE), skips, dropped)
    options: dict[str, Any] = {"text_key": settings.text_key, "compat": settings.rule == "sabertooth"}
    for file_index, source in task.sources:
        for document in read_documents([source], skips, on_bytes=on_bytes, **options):
            scattering.add(document, identity(file_index, document.position))
    return scattering.finish(task.key)


def _runs(work: Path, result: dict[str, Any], split: str) -> list[Run]:
    folder = work / result["folder"]
    return [Run(folder / name, count, num_bytes) for name, count, num_bytes in result["runs"].get(split, [])]


def _kept_result(task: GroupTask) -> dict[str, Any] | None:
    """Return the record of an earlier call for the same task if its runs are still intact."""
    result, work = finished_task(task.folder, task.key), task.folder.parent
    is_whole = result and all(run.is_whole() for split in ("train", "valid") for run in _runs(work, result, split))
    return result if is_whole else None


def check_documents(results: list[dict[str, Any]], settings: BuildSettings, skips: Skips) -> None:
    """Raise EmptyCorpus or DataError if a split would be empty."""
    counts = {split: _num_documents(results, split) for split in settings.splits}
    total = sum(counts.values())
    if not total:
        skipped = "; ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(skips.counts.items()))
        raise EmptyCorpus(
            "the input contains no document\n"
            f"  skipped: {skipped or 'nothing, the files are empty'}\n"
            + ("  name the key of the text with --text-key" if skips.counts["no_text"] else "  give other files")
        )
    if not settings.heldout or all(counts.values()):
        return
    advice = "give more documents, or --heldout 0 for no held-out data"
    if counts["valid"]:
        problem, advice = "left to train on", f"hold out less, {advice}"
    else:
        problem = "held out"
        if share := _sufficient_share(results, settings):
            advice = f"hold out more (--heldout {share} holds out at least one), {advice}"
    documents = "the only document" if total == 1 else f"none of the {total} documents"
    would_not = "would not" if total == 1 else "would"
    raise DataError(f"{documents} {would_not} be {problem} with --heldout {settings.heldout}\n  {advice}")


def shard_ranks(num_documents: int, num_shards: int, rule: Literal["even", "sabertooth"]) -> list[int]:
    """Return the number of documents before each shard, and the total: shard j has the ranks from [j] to [j + 1]."""
    if rule == "even":
        return [num_documents * index // num_shards for index in range(num_shards + 1)]
    # The mean, rounded up.
    size = -(-num_documents // num_shards)
    return [*range(0, num_documents, size), num_documents]


def num_shards_of(split: str, settings: BuildSettings) -> int:
    """Return the number of shards of a split. Held-out data gets its share of the number, at least one."""
    return settings.num_shards if split == "train" else max(1, round(settings.num_shards * settings.heldout))


def gather_shard(task: GatherTask) -> dict[str, Any]:
    """Run pass 2 for one shard. Return its entry in the manifest."""
    parts = load_parts(task.cuts, task.split, task.index)
    with open_shard(task.path, task.compress) as (writer, entry):
        gather(parts, writer, int(task.memory_bytes * _MEMORY_SHARE))
    record_finished(task.folder, {"key": task.key, "entry": entry})
    return entry


def plan_gather(
    results: Sequence[dict[str, Any]], work: Path, out: Path, settings: BuildSettings, memory_bytes: int, cuts: Path
) -> list[GatherTask]:
    """Return the tasks for the shards of all splits, from the records of all scatter tasks. `cuts` is a folder for what
    the tasks read, which only this process writes."""
    key = fingerprint([settings.content(), [result["key"] for result in results]])
    tasks = []
    for split, folder in settings.splits.items():
        runs = [run for result in results for run in _runs(work, result, split)]
        num_shards = num_shards_of(split, settings)
        ranks = shard_ranks(sum(run.num_documents for run in runs), num_shards, settings.rule)
        save_cuts(cuts, split, runs, cut_positions([run.index()[0] for run in runs], ranks))
        for index in range(len(ranks) - 1):
            path = out / folder / shard_name(index, num_shards, settings.compress)
            folder_of_task = work / f"{split}-{index:05d}"
            tasks.append(GatherTask(split, index, path, cuts, folder_of_task, key, settings.compress, memory_bytes))
    return tasks


def kept_entry(task: GatherTask) -> dict[str, Any] | None:
    """Return the manifest entry of a shard that is already written and still has the recorded checksum, else None."""
    noted = finished_task(task.folder, task.key)
    return noted["entry"] if noted and matches_entry(task.path, noted["entry"]) else None


def _gather(
    results: list[dict[str, Any]], work: Path, out: Path, settings: BuildSettings, runner: StageRunner
) -> dict[str, list[dict[str, Any]]]:
    num_bytes = sum(sum(result["num_bytes"].values()) for result in results)
    num_tasks = sum(num_shards_of(split, settings) for split in settings.splits)
    resources = runner.resources(num_tasks, num_bytes)
    tasks = plan_gather(results, work, out, settings, resources.memory_bytes, work / "cuts")
    entries = runner.finish(
        *(gather_shard, tasks, resources, work, "writing", "shard"),
        about_kept="shards were already written, with the right checksums",
        kept=kept_entry,
    )
    by_split: dict[str, list[dict[str, Any]]] = {split: [] for split in settings.splits}
    for task, entry in zip(tasks, entries):
        by_split[task.split].append(entry)
    return by_split


def write_manifests(
    entries: dict[str, list[dict[str, Any]]],
    results: Sequence[dict[str, Any]],
    sources: Sequence[SourceFile],
    out: Path,
    settings: BuildSettings,
    skips: Skips,
    more_settings: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Write the manifest of every split from the entries of its shards, and return the manifests. `more_settings` are
    stored together with `settings`."""
    manifests = {}
    # Training data is last: if its manifest exists, the corpus is complete.
    for split in reversed(settings.splits):
        shards = entries[split]
        manifests[split] = {
            "kind": "corpus",
            "format_version": 1,
            "made_by": made_by(),
            "split": split,
            "fingerprint": fingerprint([shard["sha256"] for shard in shards]),
            "input_fingerprint": _input_key(sources, settings),
            "num_documents": sum(shard["num_documents"] for shard in shards),
            "num_record_bytes": sum(result["num_bytes"][split] for result in results),
            "num_bytes": sum(shard["num_bytes"] for shard in shards),
            "shards": shards,
            "settings": settings.content() | {"max_bad": settings.max_bad, **more_settings},
            "sources": [source.describe() for source in sources],
            "skipped": skips.for_manifest(),
        }
        write_manifest(out / settings.splits[split], manifests[split])
    return {split: manifests[split] for split in settings.splits}
