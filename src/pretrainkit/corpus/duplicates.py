"""Find exact and near duplicates in a corpus, which `corpus dedup` and `corpus split` drop.

There are three passes in bounded memory. First, groups of files are read into signatures: columns on disk with sorted
pairs of a key and a document. The keys are the hash of the text and, for near duplicates, the bands of its MinHash.
Second, documents with an equal key are joined, one task per column. Third, the connected sets are computed
(`components`). The result is a sorted list of documents, which does not depend on the engine or the memory. Finished
tasks are kept, so that an interrupted call can be resumed.

Dimensions: D documents, C columns.
"""

import shutil
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.corpus.components import write_components
from pretrainkit.corpus.minhash import MinHash
from pretrainkit.corpus.pairs import PAIR_BYTES, PairRun, PairSorter, least_of_firsts, merged, write_pairs
from pretrainkit.corpus.readers import read_documents, text_hash
from pretrainkit.corpus.shuffle import identity
from pretrainkit.files.manifest import atomic_file, fingerprint
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import OnBytes, SourceFile
from pretrainkit.files.spans import GroupTask, group_sources, group_tasks
from pretrainkit.files.work import finished_task, record_finished
from pretrainkit.workers.engine import LOCAL, StageRunner

_FOLDER = "duplicates"
NOT_HELD_OUT = 1 << 63
"""Number that is added to the identities of documents that are not held out, so that held-out documents come first in
each set."""
_HELD_COPIES = 6
"""Copies of the numbers in memory while a column is sorted and written."""


@dataclass(frozen=True, kw_only=True)
class DuplicateRule:
    """Rule that decides which documents are duplicates."""

    reason: str = "duplicate"
    """Reason under which dropped documents are counted."""
    minhash: MinHash | None = None
    """Settings for near duplicates; None finds only equal texts."""

    @property
    def num_columns(self) -> int:
        """Number of columns C: the hash of the text, and the bands."""
        return 1 + (self.minhash.num_bands if self.minhash else 0)


@dataclass(frozen=True)
class Duplicates:
    """Result of the search."""

    path: Path
    """Identities of the documents to drop: uint64, sorted, no header."""
    num_documents: int
    """Number of documents of the corpus."""
    num_dropped: int
    key: str
    """Fingerprint of everything that decides the list."""


def sign_group(
    task: GroupTask,
    *,
    rule: DuplicateRule,
    heldout: float,
    text_key: str,
    max_bad: int,
    memory_bytes: int,
    on_bytes: OnBytes = None,
) -> dict[str, Any]:
    """Read a group of files into signatures. Return the record of the finished task, which is also stored."""
    shutil.rmtree(task.folder, ignore_errors=True)
    skips = Skips(max_bad)
    documents, keys = array("Q"), array("Q")
    runs: list[tuple[str, int]] = []
    width = rule.num_columns
    max_rows = max(1, memory_bytes // (8 * (width + 1) * _HELD_COPIES))
    for index, source in task.sources:
        for document in read_documents([source], skips, text_key=text_key, on_bytes=on_bytes):
            exact = text_hash(document.text)
            # The same rule as in `HeldOut` in `shards`.
            is_held_out = exact / 2**64 < heldout
            number = identity(index, document.position)
            documents.append(number if is_held_out else number | NOT_HELD_OUT)
            keys.append(exact)
            if rule.minhash:
                keys.frombytes(rule.minhash.bands(document.text).tobytes())
            if len(documents) >= max_rows:
                runs.append(_spill(task.folder, len(runs), documents, keys, width))
                documents, keys = array("Q"), array("Q")
    if documents:
        runs.append(_spill(task.folder, len(runs), documents, keys, width))
    return record_finished(task.folder, {"key": task.key, "folder": task.folder.name, "runs": runs})


def _spill(folder: Path, number: int, documents: "array[int]", keys: "array[int]", width: int) -> tuple[str, int]:
    """Write uint64 (C, D, 2): the sorted keys and documents of every column."""
    name = f"signatures-{number:05d}.pairs"
    documents_D, keys_DC = np.frombuffer(documents, np.uint64), np.frombuffer(keys, np.uint64).reshape(-1, width)
    with atomic_file(folder / name) as file:
        for column in range(width):
            # Sort by key, then by document: lexsort's last key is the primary one.
            order = np.lexsort((documents_D, keys_DC[:, column]))
            file.write(np.stack([keys_DC[order, column], documents_D[order]], axis=1).tobytes())
    return name, len(documents_D)


@dataclass(frozen=True)
class JoinTask:
    """Task for one column of signatures, whose equal keys join documents."""

    runs: tuple[PairRun, ...]
    folder: Path
    memory_bytes: int
    key: str


def join_column(task: JoinTask) -> dict[str, Any]:
    """Write a pair for each document that shares its key: the document, and the first one with that key. Return the
    record of the finished task, which is also stored."""
    shutil.rmtree(task.folder, ignore_errors=True)
    sorting_folder = task.folder / "sorted"
    sorting_folder.mkdir(parents=True)
    pairs = PairSorter(sorting_folder, task.memory_bytes // 2)
    for signatures, least, is_first in least_of_firsts(merged(task.runs, task.folder, task.memory_bytes // 2)):
        # The other documents with a key are joined to the first one.
        pairs.add(np.stack([signatures[~is_first, 1], least[~is_first]], axis=1))
    run = write_pairs(task.folder / "joined.pairs", pairs.sorted())
    shutil.rmtree(sorting_folder)
    for path in task.folder.glob("level-*.pairs"):
        path.unlink()
    return record_finished(task.folder, {"key": task.key, "num_pairs": run.num_pairs})


def find_duplicates(
    sources: Sequence[SourceFile],
    work: Path,
    rule: DuplicateRule,
    *,
    runner: StageRunner,
    heldout: float = 0.0,
    text_key: str = "text",
    max_bad: int = 0,
) -> Duplicates:
    """List the documents to drop.

    With `heldout` above 0, these are the training documents that are similar to a held-out one. Otherwise they are all
    but the first of equal or similar documents. The list is in `work`, the folder of an unfinished output. Until it is
    written, `work` also has the records that an interrupted call needs to resume. Raises DataError if a file cannot be
    read or has more bad input than allowed.
    """
    tasks = group_tasks(group_sources(sources), work, "sign", [asdict(rule), heldout, text_key, max_bad])
    folder, key = work / _FOLDER, fingerprint([task.key for task in tasks])
    if (noted := finished_task(folder, key)) is None:
        resources = runner.resources(len(tasks), sum(source.num_bytes for source in sources))
        choices: dict[str, Any] = {"rule": rule, "heldout": heldout, "text_key": text_key, "max_bad": max_bad}
        sign = partial(sign_group, **choices, memory_bytes=resources.memory_bytes)
        signed = runner.finish(sign, tasks, resources, work, "comparing", "B", "groups of files were already compared")
        noted = _list(_join(signed, work, rule, runner), work, key, heldout, runner)
        noted["num_documents"] = sum(num for result in signed for _, num in result["runs"])
        record_finished(folder, noted)
        for finished in [*work.glob("sign-*"), *work.glob("join-*")]:
            shutil.rmtree(finished)
    runner.progress.note(f"{noted['num_dropped']:,} of {noted['num_documents']:,} documents are dropped")
    return Duplicates(folder / "dropped.u64", noted["num_documents"], noted["num_dropped"], key)


def _join(signed: list[dict[str, Any]], work: Path, rule: DuplicateRule, runner: StageRunner) -> list[PairRun]:
    """Return the pairs of similar documents, column by column."""
    width = rule.num_columns
    runs = [(work / result["folder"] / name, num) for result in signed for name, num in result["runs"]]
    resources = runner.resources(width, sum(num for _, num in runs) * width * PAIR_BYTES)
    key = fingerprint([result["key"] for result in signed])
    tasks = [
        JoinTask(
            tuple(PairRun(path, num, column * num * PAIR_BYTES) for path, num in runs),
            *(work / f"join-{column:05d}", resources.memory_bytes, f"{key}-{column}"),
        )
        for column in range(width)
    ]
    joined = runner.finish(join_column, tasks, resources, work, "joining", "column", "columns were already joined")
    return [PairRun(task.folder / "joined.pairs", result["num_pairs"]) for task, result in zip(tasks, joined)]


def _list(joined: Sequence[PairRun], work: Path, key: str, heldout: float, runner: StageRunner) -> dict[str, Any]:
    """Write the list of documents to drop, and return its record."""
    share = LOCAL.resources(1, 1, 0, runner.memory_bytes).memory_bytes  # this step runs here, for any engine
    sets = write_components(
        chain.from_iterable(run.pieces() for run in joined), work / "components", share, work / _FOLDER / "sets.pairs"
    )
    num_dropped = 0
    with atomic_file(work / _FOLDER / "dropped.u64") as file:
        for piece in sets.pieces():
            own, first = piece[:, 0], piece[:, 1]
            # Held-out documents have smaller numbers, so a set has one if its first document is held out.
            if heldout:
                own = own[(own >= NOT_HELD_OUT) & (first < NOT_HELD_OUT)]
            file.write((own & np.uint64(NOT_HELD_OUT - 1)).tobytes())
            num_dropped += len(own)
    sets.path.unlink()
    return {"key": key, "num_dropped": num_dropped}


class DropList:
    """List of documents that `find_duplicates` wrote; supports `identity in drop_list`."""

    def __init__(self, path: Path) -> None:
        # The file is mapped: documents come in order, so few pages are in memory. An empty file cannot be mapped.
        is_empty = path.stat().st_size == 0
        self._numbers = np.empty(0, np.uint64) if is_empty else np.asarray(np.memmap(path, np.uint64, "r"))

    def __contains__(self, number: int) -> bool:
        """True if the document with the `identity` `number` is on the list."""
        place = int(np.searchsorted(self._numbers, np.uint64(number)))
        return place < len(self._numbers) and int(self._numbers[place]) == number
