"""Segments: the spans of tokens from which unlabelled examples are made, computed only from stored lengths.

Consecutive documents form groups. The tokens of a group are concatenated, as in the token shards, and cut into segments
of one length; the last segment of a group may be shorter. Documents longer than a limit contribute one chunk, as in the
released T5, which draws a new one each time. Here it is always the same, so that segments can be numbered.

If there is an `end_mark`, it follows every document. The *stream* counts the tokens that are used, including end marks.

Dimensions: B segments, G groups, P pieces: spans of the shards without a cut or an end mark inside.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.subsets import slots
from pretrainkit.errors import InputError, RunError
from pretrainkit.files.outputs import new_folder
from pretrainkit.recipes.t5.ragged import Ragged, below
from pretrainkit.rng import fold, stream_key
from pretrainkit.tokenizers.shards import TokenShards

Ints = NDArray[np.int64]

GROUP_SIZE = 128
"""Number of documents that the released T5 concatenates."""
MAX_DOCUMENT_TOKENS = 65_536
"""The released T5 cuts a chunk of this many tokens from a longer document."""
SHORTEST_RANDOM_LENGTH = 8
"""Length in tokens of the shortest segments of random length."""
_BLOCK = 1 << 20
"""Number of documents that are processed together."""
_NONE = np.empty(0, np.int64)
MIN_DOCUMENTS = 2_000_000
"""The segments of a corpus are cached if it has at least this many documents."""
_FORMAT = "pretrainkit segment index 1"
_logger = logging.getLogger(__name__)
_CHUNK, _LENGTH = stream_key(0, "t5", "chunk of a document"), stream_key(0, "t5", "length of segments")


@dataclass(frozen=True)
class SegmentIndex:
    """All segments of some token shards, in stored order."""

    group_ends: Ints
    """(G,) end of each group in the stream."""
    segment_ends: Ints
    """(G,) number of segments up to the end of each group."""
    lengths_G: Ints
    """(G,) length in tokens of each group's segments except its last."""
    piece_ends: Ints
    """(P,) end of each piece in the stream, including its end mark."""
    piece_starts: Ints
    """(P,) global offset of the piece's first token in the shards."""
    end_mark: int | None
    """Id that ends every piece; None: no end marks."""

    def __len__(self) -> int:
        return int(self.segment_ends[-1]) if len(self.segment_ends) else 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all segments, including end marks."""
        return int(self.group_ends[-1]) if len(self.group_ends) else 0

    def spans(self, index: Ints) -> tuple[Ints, Ints]:
        """Return (B,) positions of the first tokens in the stream and (B,) lengths of the segments with these
        numbers."""
        group = np.searchsorted(self.segment_ends, index, side="right")
        before = group - 1
        first_segment = np.where(group > 0, self.segment_ends[before], 0)
        group_begin = np.where(group > 0, self.group_ends[before], 0)
        length = self.lengths_G[group]
        starts = group_begin + (index - first_segment) * length
        return starts, np.minimum(length, self.group_ends[group] - starts)

    def lengths(self, index: Ints) -> Ints:
        """Return (B,) lengths in tokens of the segments with these numbers."""
        return self.spans(index)[1]

    def read(self, shards: TokenShards, index: Ints) -> Ragged:
        starts, lengths = self.spans(index)
        # The pieces that hold the first and the last token of each segment.
        first = np.searchsorted(self.piece_ends, starts, side="right")
        last = np.searchsorted(self.piece_ends, starts + lengths, side="left")
        if self.end_mark is None and (first == last).all():
            piece_begins = np.where(first > 0, self.piece_ends[first - 1], 0)
            offsets = self.piece_starts[first] + starts - piece_begins
            return Ragged(shards.gather_flat(offsets, lengths).astype(np.int32), lengths)
        # One span for every piece of every segment, limited to the segment.
        num_pieces = last - first + 1
        piece = np.repeat(first, num_pieces) + slots(num_pieces)
        piece_begins = np.where(piece > 0, self.piece_ends[piece - 1], 0)
        begins = np.maximum(np.repeat(starts, num_pieces), piece_begins)
        ends = np.minimum(np.repeat(starts + lengths, num_pieces), self.piece_ends[piece])
        # The end mark of a piece is not stored: a span up to its end reads one token less.
        has_mark = (ends == self.piece_ends[piece]) & (self.end_mark is not None)
        num_stored = ends - begins - has_mark
        stored = shards.gather_flat(self.piece_starts[piece] + begins - piece_begins, num_stored)
        if self.end_mark is None:
            return Ragged(stored.astype(np.int32), lengths)
        values = np.full(int(lengths.sum()), self.end_mark, np.int32)
        is_stored = np.ones(len(values), np.bool_)
        is_stored[(np.cumsum(ends - begins) - 1)[has_mark]] = False
        values[is_stored] = stored
        return Ragged(values, lengths)


_COLUMNS = ("group_ends", "segment_ends", "lengths", "piece_ends", "piece_starts")
"""Columns of the index, which are also file names; `lengths` is empty if all groups have the same length."""
Columns = tuple[Ints, ...]


def segment_index(shards: TokenShards, length: int, *, end_mark: int | None = None, **settings: Any) -> SegmentIndex:
    """Return the segments of `shards`; arguments are those of `index_blocks`."""
    blocks = [(_NONE,) * len(_COLUMNS), *index_blocks(shards, length, end_mark=end_mark, **settings)]
    return _index_of([np.concatenate(parts) for parts in zip(*blocks, strict=True)], length, end_mark)


def _index_of(columns: Sequence[Ints], length: int, end_mark: int | None) -> SegmentIndex:
    group_ends, segment_ends, lengths, piece_ends, piece_starts = columns
    # If all groups have the same length, one number serves for all.
    lengths_G = lengths if len(lengths) else np.broadcast_to(np.int64(length), len(group_ends))
    return SegmentIndex(group_ends, segment_ends, lengths_G, piece_ends, piece_starts, end_mark)


def index_blocks(
    shards: TokenShards,
    length: int,
    *,
    group_size: int = GROUP_SIZE,
    max_document_tokens: int | None = MAX_DOCUMENT_TOKENS,
    end_mark: int | None = None,
    is_random_length: bool = False,
    is_uniform_start: bool = False,
) -> Iterator[Columns]:
    """Yield the columns of the index in the order of the documents, in blocks.

    Args:
        length: Number of tokens of a segment, including end marks.
        group_size: Number of documents of a group; with 1, no segment has tokens of two documents.
        max_document_tokens: Longer documents contribute one chunk of this many tokens, or their shorter last chunk;
            None: documents are used whole.
        end_mark: Id that follows every document; None: no end marks.
        is_random_length: Each group's length is log-uniform from 8 to `length`, drawn once.
        is_uniform_start: The chunk of every document begins anywhere from `max_document_tokens` - 1 positions before
            it to its last token; it ends with the document.
    """
    groups = _Groups(length, is_random_length)
    num_documents = num_stream = 0
    for starts, sizes in _documents(shards):
        cut_starts, cut_sizes = _cut(starts, sizes, num_documents, max_document_tokens, is_uniform=is_uniform_start)
        ends = num_stream + np.cumsum(cut_sizes + (end_mark is not None))
        number = num_documents + np.arange(len(sizes))
        pieces = _joined(cut_starts, cut_sizes, ends, is_joined=end_mark is None)
        num_documents, num_stream = num_documents + len(sizes), int(ends[-1])
        yield *groups.ended(ends[(number + 1) % group_size == 0]), pieces[:, 0], pieces[:, 1]
    if num_documents % group_size:
        yield *groups.ended(np.array([num_stream])), _NONE, _NONE


@dataclass
class _Groups:
    """Counter of groups and their segments."""

    length: int
    is_random_length: bool
    num_groups: int = 0
    num_segments: int = 0
    begin: int = 0
    """Start of the unfinished group in the stream."""

    def ended(self, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the first three columns for groups that end at `ends`, ascending."""
        if not len(ends):
            return _NONE, _NONE, _NONE
        numbers = self.num_groups + np.arange(len(ends))
        lengths = _random_lengths(numbers, self.length) if self.is_random_length else _NONE
        length = lengths if len(lengths) else np.int64(self.length)
        num_segments: Ints = -(-np.diff(ends, prepend=self.begin) // length)
        segment_ends: Ints = self.num_segments + np.cumsum(num_segments)
        self.num_groups, self.num_segments = self.num_groups + len(ends), int(segment_ends[-1])
        self.begin = int(ends[-1])
        return ends, segment_ends, lengths


def _random_lengths(group: Ints, longest: int) -> Ints:
    """Return lengths that are log-uniform from 8 to `longest`, for groups by number."""
    if longest <= SHORTEST_RANDOM_LENGTH:
        return np.full(len(group), longest, np.int64)
    share = (fold(_LENGTH, group) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    low, high = np.log(SHORTEST_RANDOM_LENGTH), np.log(longest)
    return np.rint(np.exp(low + share * (high - low))).astype(np.int64)


def _documents(shards: TokenShards) -> Iterator[tuple[Ints, Ints]]:
    """Yield (documents,) global offsets of first tokens and (documents,) lengths, in blocks without empty documents."""
    for shard in range(shards.num_shards):
        sentence_ends, document_ends = shards.boundaries(shard)
        begin = 0
        for block in range(0, len(document_ends), _BLOCK):
            last_sentence = document_ends[block : block + _BLOCK] - 1
            ends = np.where(last_sentence >= 0, sentence_ends[np.maximum(last_sentence, 0)], 0)
            starts = np.concatenate([[begin], ends[:-1]])
            begin, has_tokens = int(ends[-1]), ends > starts
            if has_tokens.any():
                yield starts[has_tokens] + int(shards.token_begins[shard]), (ends - starts)[has_tokens]


def _cut(starts: Ints, sizes: Ints, first: int, most: int | None, *, is_uniform: bool) -> tuple[Ints, Ints]:
    """Return the used part of each document; `first` is the number of the first document."""
    if is_uniform and most is not None:
        begin = below(fold(_CHUNK, first + np.arange(len(sizes))), sizes + most - 1) - (most - 1)
        end = np.minimum(begin + most, sizes)
        begin = np.maximum(begin, 0)
        return starts + begin, end - begin
    if most is None or int(sizes.max()) <= most:
        return starts, sizes
    starts, sizes = starts.copy(), sizes.copy()
    is_long = np.flatnonzero(sizes > most)  # use one of the chunks that begin at multiples of `most`
    num_chunks = -(-sizes[is_long] // most)
    begin = most * below(fold(_CHUNK, first + is_long), num_chunks)
    starts[is_long] += begin
    sizes[is_long] = np.minimum(most, sizes[is_long] - begin)
    return starts, sizes


def _joined(starts: Ints, sizes: Ints, ends: Ints, *, is_joined: bool) -> Ints:
    """Return (pieces, 2): their ends in the stream and starts in the shards. With `is_joined`, adjacent documents
    without a gap become one piece."""
    is_first = np.ones(len(starts), np.bool_)
    if is_joined:
        is_first[1:] = starts[1:] != starts[:-1] + sizes[:-1]
    last = np.append(np.flatnonzero(is_first)[1:] - 1, len(starts) - 1)
    return np.stack([ends[last], starts[is_first]], axis=1)


def segments_of(
    shards: TokenShards, length: int, *, min_documents: int = MIN_DOCUMENTS, **settings: Any
) -> SegmentIndex:
    """Return the segments of `shards`, from the cache if present; `settings` are all those of `index_blocks`.

    The segments of a large corpus are stored beside its token shards and memory-mapped. Computing those of 365 million
    documents with end marks would take every rank a minute and 6 GB at every start. If the folder cannot be written,
    they are computed at every start. Raises OSError if files cannot be read.
    """
    if shards.num_documents < min_documents:
        return segment_index(shards, length, **settings)
    parts = [_FORMAT, shards.fingerprint, json.dumps({"length": length, **settings}, sort_keys=True)]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
    folder, end_mark = shards.folder / f"segments-{digest}", settings["end_mark"]
    if not folder.is_dir():
        try:
            _write(index_blocks(shards, length, **settings), folder)
        except (InputError, RunError) as error:
            if not folder.is_dir():  # else another rank was faster; its columns are the same
                message = "the segments of %s cannot be stored, so the next start computes them again: %s"
                _logger.warning(message, shards.folder, error)
                return segment_index(shards, length, **settings)
    paths = [folder / f"{name}.bin" for name in _COLUMNS]
    columns = [np.asarray(np.memmap(path, np.int64, "r")) if path.stat().st_size else _NONE for path in paths]
    return _index_of(columns, length, end_mark)


def _write(blocks: Iterator[Columns], folder: Path) -> None:
    """Write all columns or none, in little memory."""
    with new_folder(folder) as aside, ExitStack() as stack:
        files = [stack.enter_context(open(aside / f"{name}.bin", "wb")) for name in _COLUMNS]
        for block in blocks:
            for file, values in zip(files, block, strict=True):
                file.write(np.ascontiguousarray(values, np.int64).data)
