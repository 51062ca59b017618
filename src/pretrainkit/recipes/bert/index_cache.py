"""The chunk index of a large corpus, kept on disk beside its token shards and memory-mapped, so that it is made once.

Ten million sentences take 1.5 CPU-seconds; a Wikipedia of 150 million would cost every rank 20 seconds and 1 GB at
every start. Below `MIN_SENTENCES` nothing is written. A folder that cannot be written only costs the time again.
"""

import hashlib
import logging
from pathlib import Path

import numpy as np

from pretrainkit.errors import InputError, RunError
from pretrainkit.exporting.folder import new_folder
from pretrainkit.recipes.bert.chunks import ChunkIndex, Chunking, chunk_index, join
from pretrainkit.tokenizers.shards import TokenShards

MIN_SENTENCES = 4_000_000
_FORMAT = "pretrainkit chunk index 1"
_ARRAYS = ("starts", "lengths", "inner_begins", "inner_ends", "document_sizes")
_logger = logging.getLogger(__name__)


def chunks_of(
    shards: TokenShards,
    *,
    chunking: Chunking,
    max_tokens: int,
    sentence_order: bool,
    min_sentences: int = MIN_SENTENCES,
) -> ChunkIndex:
    """All chunks of `shards` (arguments as for `chunk_index`), from the cache where there is one.

    Raises:
        OSError: Files of the shards or of the cache cannot be read.
    """
    if shards.num_sentences < min_sentences:
        return _made(shards, chunking, max_tokens, sentence_order)
    parts = [_FORMAT, shards.fingerprint, chunking, str(max_tokens), str(sentence_order and chunking == "lossless")]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
    folder = shards.folder / f"chunks-{digest}"
    if folder.is_dir():
        return _read(folder)
    index = _made(shards, chunking, max_tokens, sentence_order)
    try:
        with new_folder(folder) as aside:
            for name in _ARRAYS:
                np.save(aside / f"{name}.npy", getattr(index, name))
    except (InputError, RunError) as error:
        if not folder.is_dir():  # else another rank was faster; its arrays are the same
            _logger.warning(
                "the chunk index of %s is not kept, so the next start makes it again: %s", shards.folder, error
            )
            return index
    return _read(folder)


def _made(shards: TokenShards, chunking: Chunking, max_tokens: int, sentence_order: bool) -> ChunkIndex:
    return join(
        chunk_index(
            shards.sentence_ends(shard),
            shards.document_ends(shard),
            chunking=chunking,
            max_tokens=max_tokens,
            sentence_order=sentence_order,
            first_token=int(shards.token_begins[shard]),
        )
        for shard in range(shards.num_shards)
    )


def _read(folder: Path) -> ChunkIndex:
    return ChunkIndex(*(np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS))
