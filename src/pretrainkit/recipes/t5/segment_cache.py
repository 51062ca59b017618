"""The segments of a large corpus, kept on disk beside its token shards and memory-mapped, so that they are found once.

A corpus of 365 million documents with an end mark after each would cost every rank a minute and 6 GB at every start.
Below `MIN_DOCUMENTS` nothing is written. A folder that cannot be written only costs the time again.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.recipes.t5.segments import IndexBlock, SegmentIndex, index_blocks, index_of, segment_index
from pretrainkit.tokenizers.shards import TokenShards

MIN_DOCUMENTS = 2_000_000
_FORMAT = "pretrainkit segment index 1"
_logger = logging.getLogger(__name__)


def segments_of(
    shards: TokenShards, length: int, *, min_documents: int = MIN_DOCUMENTS, **settings: Any
) -> SegmentIndex:
    """The segments of `shards`, from the cache where there is one. `settings`: all others of `segment_index`. Raises
    OSError where files cannot be read."""
    if shards.num_documents < min_documents:
        return segment_index(shards, length, **settings)
    parts = [_FORMAT, shards.fingerprint, json.dumps({"length": length, **settings}, sort_keys=True)]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
    folder, end_mark = shards.folder / f"segments-{digest}", settings["end_mark"]
    if not folder.is_dir():
        try:
            _write(index_blocks(shards, length, **settings), folder)
        except OSError as error:
            told = "the segments of %s are not kept, so the next start finds them again: %s"
            _logger.warning(told, shards.folder, error)
            return segment_index(shards, length, **settings)
    return index_of(IndexBlock(*(_map(folder / f"{name}.bin") for name in IndexBlock._fields)), length, end_mark)


def _map(path: Path) -> Any:
    return np.asarray(np.memmap(path, np.int64, "r")) if path.stat().st_size else np.empty(0, np.int64)


def _write(blocks: Iterator[IndexBlock], folder: Path) -> None:
    """All columns or none, in little memory: written aside, then renamed. Another rank may have been faster; its
    columns are the same."""
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        aside.mkdir()
        with ExitStack() as stack:
            files = [stack.enter_context(open(aside / f"{name}.bin", "wb")) for name in IndexBlock._fields]
            for block in blocks:
                for file, values in zip(files, block, strict=True):
                    file.write(np.ascontiguousarray(values, np.int64).data)
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        try:
            aside.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
