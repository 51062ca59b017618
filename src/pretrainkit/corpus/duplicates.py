"""Which documents of a corpus are there twice, exactly or nearly: what `corpus dedup` and `corpus split` leave out.

Three passes, in bounded memory: groups of files are read into signatures (`signatures`); documents with an equal key
are joined, a task for each column; what hangs together is found (`components`). The result is a list of documents,
sorted, the same on any engine, in any memory. Finished tasks are found again by an interrupted call.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.corpus.components import write_components
from pretrainkit.corpus.minhash import MinHash
from pretrainkit.corpus.pairs import U64, PairRun, PairSorter, least_of_firsts, merged, write_pairs
from pretrainkit.corpus.signatures import SignTask, column_runs, documents_of, is_held_out, num_columns, sign_group
from pretrainkit.files.manifest import atomic_file, fingerprint
from pretrainkit.files.sources import SourceFile
from pretrainkit.files.spans import group_sources
from pretrainkit.workers.engine import LOCAL, Crew, Means

_FOLDER = "duplicates"
_BLOCK = 1 << 14


@dataclass(frozen=True, kw_only=True)
class DuplicateRule:
    """Which documents are one too many."""

    reason: str = "duplicate"
    """Under which they are counted."""
    minhash: MinHash | None = None
    """How near duplicates are found; None: only equal texts count."""


@dataclass(frozen=True)
class Duplicates:
    """What was found."""

    path: Path
    """Identities of the documents to leave out: uint64, sorted, no header."""
    num_documents: int
    """Of the corpus."""
    num_dropped: int
    key: str
    """Fingerprint of everything that decides the list."""


@dataclass(frozen=True)
class JoinTask:
    """A column of signatures, whose equal keys join documents."""

    runs: tuple[PairRun, ...]
    folder: Path
    memory_bytes: int
    key: str


def join_column(task: JoinTask) -> dict[str, Any]:
    """Writes a pair of documents for each with an equal key: it, and the first with that key. Returns and notes it."""
    shutil.rmtree(task.folder, ignore_errors=True)
    meanwhile = task.folder / "sorted"
    meanwhile.mkdir(parents=True)
    pairs = PairSorter(meanwhile, task.memory_bytes // 2)
    for found, least, is_first in least_of_firsts(merged(task.runs, task.folder, task.memory_bytes // 2)):
        pairs.add(np.stack([found[~is_first, 1], least[~is_first]], axis=1))
    run = write_pairs(task.folder / "joined.pairs", pairs.sorted())
    shutil.rmtree(meanwhile)
    for path in task.folder.glob("level-*.pairs"):
        path.unlink()
    result = {"key": task.key, "folder": task.folder.name, "num_pairs": run.num_pairs}
    with atomic_file(task.folder / "task.json") as file:
        file.write(json.dumps(result).encode())
    return result


def find_duplicates(
    sources: Sequence[SourceFile],
    work: Path,
    rule: DuplicateRule,
    *,
    means: Means,
    heldout: float = 0.0,
    text_key: str = "text",
    max_bad: int = 0,
) -> Duplicates:
    """Lists the documents to leave out.

    Args:
        sources: Of the corpus, in order.
        work: Folder of an output that is not finished. The list stays there, and so does, until it is made, what an
            interrupted call needs to go on.
        rule: What counts as a duplicate.
        means: Engine, workers and memory.
        heldout: Above 0: what is left out is what lies near a held-out document without being held out; 0: all but the
            first of equal or near ones.
        text_key: Key or column that holds the text.
        max_bad: Pieces of bad input that may be skipped.

    Raises:
        DataError: A file cannot be read, or has bad input beyond the budget.
    """
    choices: list[Any] = [asdict(rule), heldout, text_key, max_bad]
    groups = [tuple(group) for group in group_sources(sources)]
    group_keys = [fingerprint([choices, [[index, *source.identity] for index, source in group]]) for group in groups]
    folder, key = work / _FOLDER, fingerprint(group_keys)
    if (noted := _noted(folder, key)) is None:
        crew = means.crew(len(groups), sum(source.num_bytes for source in sources))
        signing = [
            SignTask(
                *(group, work / f"sign-{number:05d}", rule.minhash, heldout, text_key, max_bad, crew.memory_bytes, own),
            )
            for number, (group, own) in enumerate(zip(groups, group_keys, strict=True))
        ]
        signed = _sign(signing, work, crew, means)
        noted = _list(_join(signed, work, rule, means), work, key, heldout, means)
        noted["num_documents"] = sum(result["num_documents"] for result in signed)
        with atomic_file(folder / "task.json") as file:
            file.write(json.dumps(noted).encode())
        for finished in [*work.glob("sign-*"), *work.glob("join-*")]:
            shutil.rmtree(finished)
    means.progress.note(f"{noted['num_dropped']:,} of {noted['num_documents']:,} documents are left out")
    return Duplicates(folder / "dropped.u64", noted["num_documents"], noted["num_dropped"], key)


def _noted(folder: Path, key: str) -> dict[str, Any] | None:
    """What a finished task noted; None: it is not finished, or was another one."""
    try:
        noted = json.loads((folder / "task.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return noted if noted.get("key") == key else None


def _sign(tasks: Sequence[SignTask], work: Path, crew: Crew, means: Means) -> list[dict[str, Any]]:
    progress = means.progress
    results = {task.key: noted for task in tasks if (noted := _noted(task.folder, task.key))}
    progress.stage("comparing", sum(source.num_bytes for task in tasks for _, source in task.sources), "B")
    progress.advance(sum(result["num_bytes"] for result in results.values()))
    if results:
        progress.note(f"kept: {len(results)} of {len(tasks)} groups of files were already compared")
    for result in means.run(sign_group, [task for task in tasks if task.key not in results], crew, work):
        results[result["key"]] = result
        progress.advance(result["num_bytes"])
    return [results[task.key] for task in tasks]


def _join(signed: list[dict[str, Any]], work: Path, rule: DuplicateRule, means: Means) -> list[PairRun]:
    """Pairs of documents that belong together, column by column."""
    width = num_columns(rule.minhash)
    num_bytes = sum(run.num_pairs for run in column_runs(work, signed, 0)) * width * 16
    crew = means.crew(width, num_bytes)
    key = fingerprint([result["key"] for result in signed])
    tasks = [
        JoinTask(
            *(tuple(column_runs(work, signed, column)), work / f"join-{column:05d}", crew.memory_bytes),
            f"{key}-{column}",
        )
        for column in range(width)
    ]
    results = {task.key: noted for task in tasks if (noted := _noted(task.folder, task.key))}
    progress = means.progress
    progress.stage("joining", len(tasks), "column")
    progress.advance(len(results))
    for result in means.run(join_column, [task for task in tasks if task.key not in results], crew, work):
        results[result["key"]] = result
        progress.advance(1)
    return [PairRun(task.folder / "joined.pairs", results[task.key]["num_pairs"]) for task in tasks]


def _list(joined: Sequence[PairRun], work: Path, key: str, heldout: float, means: Means) -> dict[str, Any]:
    """Writes the list."""
    share = LOCAL.crew(1, 1, 0, means.memory_bytes).memory_bytes  # in this process, whatever the engine
    sets = write_components(
        chain.from_iterable(_blocks(run) for run in joined), work / "components", share, work / _FOLDER / "sets.pairs"
    )
    num_dropped = 0
    with atomic_file(work / _FOLDER / "dropped.u64") as file:
        for piece in _blocks(sets):
            own, first = piece[:, 0], piece[:, 1]
            if heldout:
                own = own[~is_held_out(own) & is_held_out(first)]
            file.write(documents_of(own).tobytes())
            num_dropped += len(own)
    sets.path.unlink()
    return {"key": key, "num_dropped": num_dropped}


def _blocks(run: PairRun) -> Iterator[U64]:
    for start in range(0, run.num_pairs, _BLOCK):
        yield run.read(start, start + _BLOCK)


class DropList:
    """Whether a document is on a list of `find_duplicates`. Documents come in order, so it is read piece by piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num = path.stat().st_size // 8
        self._above = 0
        """What is at least this is in hand, up to the last of `_held`."""
        self._held = self._read(0)

    def _read(self, place: int) -> U64:
        held = np.fromfile(self._path, np.uint64, _BLOCK, offset=8 * place)
        self._is_end = place + len(held) >= self._num
        return held

    def __contains__(self, number: int) -> bool:
        """`number`: an `identity`."""
        if number < self._above or not (self._is_end or number <= int(self._held[-1])):
            self._held = self._read(self._place(number))
            self._above = number
        place = int(np.searchsorted(self._held, np.uint64(number)))
        return place < len(self._held) and int(self._held[place]) == number

    def _place(self, number: int) -> int:
        """How many numbers of the list are less than `number`."""
        low, high = 0, self._num
        with open(self._path, "rb") as file:
            while low < high:
                middle = (low + high) // 2
                file.seek(8 * middle)
                if int.from_bytes(file.read(8), "little") < number:
                    low = middle + 1
                else:
                    high = middle
        return low
