"""Chunks: spans of consecutive sentences from which examples are made, computed from stored lengths alone.

The sentences of a chunk depend only on the lengths, so the chunks of a corpus are an index that is computed once. Each
example then draws the place where its chunk is split and the tokens that are dropped (`segments.py`).

The index of a large corpus is stored next to its token shards and memory-mapped: ten million sentences take 1.5 CPU
seconds, so a Wikipedia of 150 million would cost every rank 20 seconds and 1 GB at every start. Below `MIN_SENTENCES`
nothing is written. If the folder cannot be written, the index is computed again at every start.

Dimensions: N chunks, E inner sentence ends of all chunks, D documents.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import InputError, RunError
from pretrainkit.files.outputs import new_folder
from pretrainkit.tokenizers.shards import TokenShards

MIN_SENTENCES = 4_000_000
_FORMAT = "pretrainkit chunk index 1"
_logger = logging.getLogger(__name__)
Chunking = Literal["sabertooth", "lossless"]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ChunkIndex:
    """All chunks of a corpus in stored order."""

    starts: Ints
    """(N,) global offset of each chunk's first token."""
    lengths: NDArray[np.int32]
    """(N,) number of tokens, before any are dropped."""
    inner_begins: Ints
    """(N + 1,) start of each chunk's part of `inner_ends`, and the total."""
    inner_ends: NDArray[np.unsignedinteger]
    """(E,) sentence ends strictly inside a chunk, in tokens from its start: the places where it may be split. uint16,
    or uint32 if examples can have 65,536 tokens or more."""
    document_sizes: Ints
    """(D,) number of chunks of each document that has any."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_inner(self) -> Ints:
        """(N,) number of inner sentence ends per chunk; 0 for a single sentence."""
        return np.diff(self.inner_begins)

    def num_tokens_lost(self, max_tokens: int, sentence_order: bool) -> int:
        """Return how many tokens an epoch drops because chunks are longer than an example (0 for lossless)."""
        limit = token_limits(self.num_inner, max_tokens, sentence_order)
        return int(np.maximum(self.lengths - limit, 0).sum())


_ARRAYS = tuple(field.name for field in fields(ChunkIndex))


def token_limits(num_inner: Ints, max_tokens: int, sentence_order: bool) -> Ints:
    """Return the maximum number of text tokens of an example: max_tokens = max_seq_length - 2, or one less if a pair
    needs a second [SEP]."""
    return max_tokens - ((num_inner > 0) & sentence_order).astype(np.int64)


def chunk_index(
    sentence_ends: NDArray[np.integer],
    document_ends: NDArray[np.integer],
    *,
    chunking: Chunking,
    max_tokens: int,
    sentence_order: bool = True,
    first_token: int = 0,
) -> ChunkIndex:
    """Compute the chunks of one shard.

    sabertooth: sentences are added while there are fewer than max_tokens - 1 tokens, so the last one usually makes the
    chunk too long. `segments.py` drops the excess tokens, at random places in every epoch.
    lossless: sentences are added while all of them fit. A sentence longer than max_tokens is first cut into pieces of
    max_tokens, and the rest counts as a sentence.

    Args:
        sentence_ends: (sentences,) cumulative token counts within the shard.
        document_ends: (documents,) cumulative sentence counts within the shard.
        max_tokens: max_seq_length - 2: the tokens without [CLS] and the last [SEP].
        sentence_order: True if pairs must leave space for a second [SEP] (lossless only; sabertooth's rule ignores it).
        first_token: Global offset of the shard's first token, added to `starts`.
    """
    ends = np.asarray(sentence_ends, np.int64)
    last_of_document = np.asarray(document_ends, np.int64)
    if chunking == "lossless":
        ends, last_of_document = _cut_long_sentences(ends, last_of_document, max_tokens)
    num_sentences = len(ends)
    starts = np.concatenate([[0], ends[:-1]]) if num_sentences else np.empty(0, np.int64)
    if chunking == "sabertooth":
        # The sentence that reaches max_tokens - 1 is the last one of the chunk.
        after = np.searchsorted(ends, starts + (max_tokens - 1), side="left") + 1
    else:
        limit = max_tokens - 1 if sentence_order else max_tokens
        after = np.maximum(np.searchsorted(ends, starts + limit, side="right"), np.arange(1, num_sentences + 1))
    sentences_of_document = np.diff(last_of_document, prepend=0)
    # after[i] is the first sentence after a chunk that begins with sentence i. A chunk ends at the end of its document.
    np.minimum(after, np.repeat(last_of_document, sentences_of_document), out=after)

    # No chunk crosses the end of a document, so the chunks of a document are counted by their first sentences.
    first = np.append(_walk(after), num_sentences)
    index_of_document = np.searchsorted(first, last_of_document, side="left")
    document_sizes = np.diff(index_of_document, prepend=0)
    chunk_starts = starts[first[:-1]] if len(first) > 1 else np.empty(0, np.int64)
    chunk_ends = ends[first[1:] - 1] if len(first) > 1 else np.empty(0, np.int64)
    num_inner = np.diff(first) - 1
    is_inner = np.ones(num_sentences, np.bool_)
    is_inner[first[1:] - 1] = False
    inner = ends[is_inner] - np.repeat(chunk_starts, num_inner)
    return ChunkIndex(
        starts=chunk_starts + first_token,
        lengths=(chunk_ends - chunk_starts).astype(np.int32),
        inner_begins=np.concatenate([[0], np.cumsum(num_inner)]).astype(np.int64),
        inner_ends=inner.astype(np.uint16 if max_tokens < 1 << 16 else np.uint32),
        document_sizes=document_sizes[document_sizes > 0],
    )


def join(parts: Iterable[ChunkIndex]) -> ChunkIndex:
    """Join the indexes of several shards, in this order."""
    indexes = list(parts)
    offsets = np.cumsum([0] + [len(index.inner_ends) for index in indexes])
    arrays = {name: [getattr(index, name) for index in indexes] for name in _ARRAYS}
    arrays["inner_begins"] = [
        np.zeros(1, np.int64),
        *(begins[1:] + offset for begins, offset in zip(arrays["inner_begins"], offsets, strict=False)),
    ]
    return ChunkIndex(**{name: np.concatenate(parts_of_one) for name, parts_of_one in arrays.items()})


def _walk(after: Ints) -> Ints:
    """Return the first sentences of all chunks: 0, after[0], after[after[0]], and so on.

    Each step needs the previous one. A plain loop over chunks (not sentences) takes 50 ns per step, which is less than
    pointer doubling with NumPy over all sentences.
    """
    following = np.ascontiguousarray(after).data
    first, sentence, num_sentences = [], 0, len(after)
    while sentence < num_sentences:
        first.append(sentence)
        sentence = following[sentence]
    return np.array(first, np.int64)


def _cut_long_sentences(ends: Ints, last_of_document: Ints, max_tokens: int) -> tuple[Ints, Ints]:
    """Cut sentences of more than `max_tokens` into pieces; return the new sentence ends and document ends."""
    lengths = np.diff(ends, prepend=0)
    num_pieces = np.maximum(1, -(-lengths // max_tokens))
    if len(ends) == 0 or num_pieces.max() == 1:
        return ends, last_of_document
    piece_ends = np.repeat(ends, num_pieces)
    last_piece = np.cumsum(num_pieces)
    # Piece p of a sentence ends max_tokens x (p + 1) after the sentence begins. The last piece ends with the sentence.
    place = np.arange(len(piece_ends)) - np.repeat(last_piece - num_pieces, num_pieces)
    cut = np.repeat(ends - lengths, num_pieces) + (place + 1) * max_tokens
    return np.minimum(piece_ends, cut), np.concatenate([[0], last_piece])[last_of_document]


def chunks_of(shards: TokenShards, *, min_sentences: int = MIN_SENTENCES, **rules: Any) -> ChunkIndex:
    """Return all chunks of `shards`, from the cache if there is one. `rules` are the chunking, max_tokens and
    sentence_order of `chunk_index`. Raises OSError if files of the shards or of the cache cannot be read."""
    if shards.num_sentences < min_sentences:
        return _computed(shards, rules)
    chunking, reserves_sep = rules["chunking"], rules["sentence_order"] and rules["chunking"] == "lossless"
    parts = [_FORMAT, shards.fingerprint, chunking, str(rules["max_tokens"]), str(reserves_sep)]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
    folder = shards.folder / f"chunks-{digest}"
    if folder.is_dir():
        return _read(folder)
    index = _computed(shards, rules)
    try:
        with new_folder(folder) as aside:
            for name in _ARRAYS:
                np.save(aside / f"{name}.npy", getattr(index, name))
    except (InputError, RunError) as error:
        if not folder.is_dir():  # otherwise another rank was faster; its arrays are the same
            _logger.warning(
                "the chunk index of %s is not stored, so the next start computes it again: %s", shards.folder, error
            )
            return index
    return _read(folder)


def _computed(shards: TokenShards, rules: Mapping[str, Any]) -> ChunkIndex:
    begins = shards.token_begins.tolist()
    return join(chunk_index(*shards.boundaries(n), first_token=begins[n], **rules) for n in range(shards.num_shards))


def _read(folder: Path) -> ChunkIndex:
    return ChunkIndex(*(np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS))
