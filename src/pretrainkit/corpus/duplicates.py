"""Which documents of a corpus are there twice, exactly or nearly: the first pass of `corpus dedup` and `corpus split`.

Groups of files are read in parallel into signatures on disk, one array per group, which an interrupted call finds
again. They are compared band by band, so that memory is 8 bytes per document and band at a time, and 24 more per
document. The result is a list of documents to leave out, sorted, the same on any number of workers.

Dimensions: D documents, B bands (1 where only exact copies count).
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.corpus.manifest import atomic_file, fingerprint
from pretrainkit.corpus.minhash import MinHash
from pretrainkit.corpus.parallel import DEFAULT_MEMORY, Progress, Quiet, num_processes, run_tasks
from pretrainkit.corpus.readers import read_documents, text_hash
from pretrainkit.corpus.shuffle import identity
from pretrainkit.corpus.skips import Skips
from pretrainkit.corpus.sources import SourceFile
from pretrainkit.corpus.spans import group_sources

DROP_LIST = ".dropped.npy"
"""In the output folder: identities of documents that are left out, uint64, sorted."""
_FOLDER = ".signatures"

U64 = NDArray[np.uint64]


@dataclass(frozen=True)
class SignTask:
    """A group of files to be read into signatures."""

    sources: tuple[tuple[int, SourceFile], ...]
    path: Path
    minhash: MinHash | None
    text_key: str
    max_bad: int


def sign_group(task: SignTask) -> tuple[Path, int]:
    """Writes uint64 (D, 2 + B) of a group: identity, hash of the text, bands. Returns where, and the bytes read."""
    rows: list[U64] = []
    skips = Skips(task.max_bad)
    for index, source in task.sources:
        for document in read_documents([source], skips, text_key=task.text_key):
            exact = text_hash(document.text)
            bands = task.minhash.bands(document.text) if task.minhash else np.empty(0, np.uint64)
            rows.append(np.concatenate([np.array([identity(index, document.position), exact], np.uint64), bands]))
    width = 2 + (task.minhash.num_bands if task.minhash else 0)
    with atomic_file(task.path) as file:
        np.save(file, np.array(rows, np.uint64).reshape(-1, width))
    return task.path, sum(source.num_bytes for _, source in task.sources)


@dataclass(frozen=True)
class Duplicates:
    """What was found."""

    drop_fingerprint: str
    """Of the list in `DROP_LIST`."""
    num_documents: int
    num_dropped: int


def find_duplicates(
    sources: Sequence[SourceFile],
    out: str | Path,
    minhash: MinHash | None,
    *,
    heldout: float = 0.0,
    text_key: str = "text",
    max_bad: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Duplicates:
    """Writes `OUT/.dropped.npy`: which documents to leave out.

    Args:
        sources: Of the corpus, in order.
        out: Output folder of the corpus that will be built without them.
        minhash: How near duplicates are found; None: only equal texts.
        heldout: Above 0: what is left out is what lies near a held-out document without being held out; below, all
            but the first of equal or near ones.
        text_key: Key or column that holds the text.
        max_bad: Pieces of bad input that may be skipped.
        workers: Processes; None: the cores.
        progress: Shown how far it is.

    Raises:
        DataError: A file cannot be read, or has bad input beyond the budget.
    """
    progress = progress or Quiet()
    folder = Path(out) / _FOLDER
    choices: list[Any] = [asdict(minhash) if minhash else None, text_key, max_bad]
    tasks = []
    for group in group_sources(sources):
        key = fingerprint([choices, [[index, *source.identity] for index, source in group]])
        tasks.append(SignTask(tuple(group), folder / f"{key}.npy", minhash, text_key, max_bad))
    total = sum(source.num_bytes for source in sources)
    progress.stage("comparing", total, "B")
    todo = [task for task in tasks if not task.path.exists()]
    if len(todo) < len(tasks):
        progress.note(f"kept: {len(tasks) - len(todo)} of {len(tasks)} groups of files were already read")
    for _, num_bytes in run_tasks(sign_group, todo, num_processes(workers, len(todo), total, DEFAULT_MEMORY)):
        progress.advance(num_bytes)
    parts = [np.load(task.path, mmap_mode="r") for task in tasks]
    dropped = _dropped(parts, heldout)
    with atomic_file(Path(out) / DROP_LIST) as file:
        np.save(file, dropped)
    num_documents = sum(len(part) for part in parts)
    del parts
    shutil.rmtree(folder, ignore_errors=True)
    return Duplicates(fingerprint(dropped.tolist()), num_documents, len(dropped))


def _column(parts: Sequence[NDArray[np.uint64]], column: int) -> U64:
    return np.concatenate([part[:, column] for part in parts] or [np.empty(0, np.uint64)])


def _dropped(parts: Sequence[NDArray[np.uint64]], heldout: float) -> U64:
    identities, exact = _column(parts, 0), _column(parts, 1)
    first_D = np.arange(len(identities))
    width = parts[0].shape[1] if parts else 2
    for column in range(1, width):
        _join_equal(first_D, _column(parts, column))
    roots_D = _roots(first_D)
    if not heldout:
        return np.sort(identities[roots_D != np.arange(len(roots_D))])
    is_held_out_D = exact / 2**64 < heldout
    has_held_out_D = np.zeros(len(roots_D), bool)
    has_held_out_D[roots_D[is_held_out_D]] = True
    return np.sort(identities[has_held_out_D[roots_D] & ~is_held_out_D])


def _join_equal(first_D: NDArray[np.int64], keys_D: U64) -> None:
    """Joins the sets of documents with an equal key, in place: each points at an earlier one of it, or at itself."""
    order = np.argsort(keys_D, kind="stable")
    again = np.flatnonzero(keys_D[order][1:] == keys_D[order][:-1])
    for left, right in zip(order[again].tolist(), order[again + 1].tolist(), strict=True):
        a, b = _root(first_D, left), _root(first_D, right)
        if a != b:
            first_D[max(a, b)] = min(a, b)


def _root(first_D: NDArray[np.int64], place: int) -> int:
    root = place
    while first_D[root] != root:
        root = int(first_D[root])
    while first_D[place] != root:
        first_D[place], place = root, int(first_D[place])
    return root


def _roots(first_D: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every document's first of its set."""
    while not np.array_equal(first_D, first_D[first_D]):
        first_D = first_D[first_D]
    return first_D
