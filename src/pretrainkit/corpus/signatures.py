"""What documents are compared by: pairs of a key and a document, on disk, sorted by key. Columns: the hash of the text,
and, where near duplicates count, the bands of its MinHash. Documents with an equal key in a column are duplicates.

Dimensions: D documents, C columns.
"""

import json
import shutil
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.corpus.minhash import MinHash
from pretrainkit.corpus.pairs import PAIR_BYTES, U64, PairRun
from pretrainkit.corpus.readers import read_documents, text_hash
from pretrainkit.corpus.shuffle import identity
from pretrainkit.files.manifest import atomic_file
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import SourceFile

NOT_HELD_OUT = 1 << 63
"""Added to the identities of documents that are not held out: of a set of duplicates the held-out ones come first."""
_HELD_COPIES = 6
"""Of the numbers in hand, while a column of them is sorted and written."""


@dataclass(frozen=True)
class SignTask:
    """A group of files to be read into signatures, in `folder`."""

    sources: tuple[tuple[int, SourceFile], ...]
    folder: Path
    minhash: MinHash | None
    heldout: float
    text_key: str
    max_bad: int
    memory_bytes: int
    key: str
    """Fingerprint of everything that decides the signatures."""


def num_columns(minhash: MinHash | None) -> int:
    """C."""
    return 1 + (minhash.num_bands if minhash else 0)


def sign_group(task: SignTask) -> dict[str, Any]:
    """Reads a group. Returns and notes what was written."""
    shutil.rmtree(task.folder, ignore_errors=True)
    skips = Skips(task.max_bad)
    documents, keys, num_documents = array("Q"), array("Q"), 0
    runs: list[tuple[str, int]] = []
    width = num_columns(task.minhash)
    max_rows = max(1, task.memory_bytes // (8 * (width + 1) * _HELD_COPIES))
    for index, source in task.sources:
        for document in read_documents([source], skips, text_key=task.text_key):
            exact = text_hash(document.text)
            is_held_out = exact / 2**64 < task.heldout
            number = identity(index, document.position)
            documents.append(number if is_held_out else number | NOT_HELD_OUT)
            keys.append(exact)
            if task.minhash:
                keys.frombytes(task.minhash.bands(document.text).tobytes())
            if len(documents) >= max_rows:
                runs.append(_spill(task.folder, len(runs), documents, keys, width))
                num_documents += len(documents)
                documents, keys = array("Q"), array("Q")
    if documents:
        runs.append(_spill(task.folder, len(runs), documents, keys, width))
    result = {
        "key": task.key,
        "folder": task.folder.name,
        "runs": runs,
        "num_documents": num_documents + len(documents),
        "num_bytes": sum(source.num_bytes for _, source in task.sources),
    }
    with atomic_file(task.folder / "task.json") as file:
        file.write(json.dumps(result).encode())
    return result


def _spill(folder: Path, number: int, documents: "array[int]", keys: "array[int]", width: int) -> tuple[str, int]:
    """Writes uint64 (C, D, 2): of every column the keys and documents, sorted."""
    name = f"signatures-{number:05d}.pairs"
    documents_D, keys_DC = np.frombuffer(documents, np.uint64), np.frombuffer(keys, np.uint64).reshape(-1, width)
    with atomic_file(folder / name) as file:
        for column in range(width):
            order = np.lexsort((documents_D, keys_DC[:, column]))
            file.write(np.stack([keys_DC[order, column], documents_D[order]], axis=1).tobytes())
    return name, len(documents_D)


def column_runs(work: Path, results: list[dict[str, Any]], column: int) -> list[PairRun]:
    """The sorted pairs of a column, over all groups."""
    return [
        PairRun(work / result["folder"] / name, num, column * num * PAIR_BYTES)
        for result in results
        for name, num in result["runs"]
    ]


def documents_of(numbers: U64) -> U64:
    """Identities of documents, without what was added to them."""
    return numbers & np.uint64(NOT_HELD_OUT - 1)


def is_held_out(numbers: U64) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """True for numbers of held-out documents."""
    return numbers < np.uint64(NOT_HELD_OUT)
