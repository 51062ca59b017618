"""Segments: the stretches of tokens that unlabelled examples are made of, found from stored lengths alone.

Consecutive documents form groups; the tokens of a group lie end to end, as they do in the token shards, and are cut
into segments of one length; the last of a group may be shorter. Documents longer than a limit contribute one chunk, as
in the released T5: there a new one each time, here always the same, so that a segment has a number.

With `ends` every document is followed by the end mark. The *stream* counts the tokens that are left, end marks too.

Dimensions: B segments, G groups, P pieces: stretches of the shards without a cut or an end mark inside.
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
from pretrainkit.exporting.folder import new_folder
from pretrainkit.recipes.t5.ragged import Ragged, below
from pretrainkit.rng import fold, stream_key
from pretrainkit.tokenizers.shards import TokenShards

Ints = NDArray[np.int64]

GROUP_SIZE = 128
"""Documents that are laid end to end in the released T5."""
MAX_DOCUMENT_TOKENS = 65_536
"""Tokens of the chunk of a longer document in the released T5."""
SHORTEST_RANDOM_LENGTH = 8
"""Tokens of the shortest segments where their lengths are random."""
_BLOCK = 1 << 20
"""Documents that are looked at together."""
_NONE = np.empty(0, np.int64)
MIN_DOCUMENTS = 2_000_000
"""The segments of fewer documents are not worth a cache."""
_FORMAT = "pretrainkit segment index 1"
_logger = logging.getLogger(__name__)
_CHUNK, _LENGTH = stream_key(0, "t5", "chunk of a document"), stream_key(0, "t5", "length of segments")


@dataclass(frozen=True)
class SegmentIndex:
    """All segments of some token shards, in stored order."""

    group_ends: Ints
    """(G,) where each group ends in the stream."""
    segment_ends: Ints
    """(G,) segments up to the end of each group."""
    lengths_G: Ints
    """(G,) tokens of each group's segments but the last."""
    piece_ends: Ints
    """(P,) where each piece ends in the stream, its end mark included."""
    piece_starts: Ints
    """(P,) global offset of its first token in the shards."""
    end_mark: int | None
    """Ends every piece; None: nothing does."""

    def __len__(self) -> int:
        return int(self.segment_ends[-1]) if len(self.segment_ends) else 0

    @property
    def num_tokens(self) -> int:
        """Tokens of all segments, end marks too."""
        return int(self.group_ends[-1]) if len(self.group_ends) else 0

    def spans(self, index: Ints) -> tuple[Ints, Ints]:
        """(B,) first token in the stream and (B,) length of segments by number."""
        group = np.searchsorted(self.segment_ends, index, side="right")
        before = group - 1
        first_segment = np.where(group > 0, self.segment_ends[before], 0)
        group_begin = np.where(group > 0, self.group_ends[before], 0)
        length = self.lengths_G[group]
        starts = group_begin + (index - first_segment) * length
        return starts, np.minimum(length, self.group_ends[group] - starts)

    def lengths(self, index: Ints) -> Ints:
        """(B,) tokens of segments by number."""
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
        # One stretch for every piece of every segment, cut to the segment.
        num_pieces = last - first + 1
        piece = np.repeat(first, num_pieces) + slots(num_pieces)
        piece_begins = np.where(piece > 0, self.piece_ends[piece - 1], 0)
        begins = np.maximum(np.repeat(starts, num_pieces), piece_begins)
        ends = np.minimum(np.repeat(starts + lengths, num_pieces), self.piece_ends[piece])
        # The end mark of a piece is not stored: a stretch up to its end reads one token less.
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
"""Of the index, as files name them; lengths are stored where those of groups differ, else the column is empty."""
Columns = tuple[Ints, ...]


def segment_index(shards: TokenShards, length: int, *, end_mark: int | None = None, **settings: Any) -> SegmentIndex:
    """Return the segments of `shards`; arguments are those of `index_blocks`."""
    blocks = [(_NONE,) * len(_COLUMNS), *index_blocks(shards, length, end_mark=end_mark, **settings)]
    return _index_of([np.concatenate(parts) for parts in zip(*blocks, strict=True)], length, end_mark)


def _index_of(columns: Sequence[Ints], length: int, end_mark: int | None) -> SegmentIndex:
    group_ends, segment_ends, lengths, piece_ends, piece_starts = columns
    # Where every group has the same length, one number serves for all.
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
    """Yield the columns of the index in the order of the documents, some at a time.

    Args:
        length: Tokens of a segment, end marks included.
        group_size: Documents of a group; with 1 no segment has tokens of two documents.
        max_document_tokens: Longer documents contribute one chunk of so many tokens, or their shorter last one; None:
            all of every document is used.
        end_mark: Id that follows every document; None: nothing does.
        is_uniform_start: The chunk of every document begins anywhere from `max_document_tokens` - 1 places before it to
            its last token; it ends with the document.
        is_random_length: Each group's length is log-uniform from 8 to `length`, drawn once.
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
    """Counts groups and their segments."""

    length: int
    is_random_length: bool
    num_groups: int = 0
    num_segments: int = 0
    begin: int = 0
    """Of the group that has not ended, in the stream."""

    def ended(self, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the first three columns for groups that end at `ends`, ascending."""
        if not len(ends):
            return _NONE, _NONE, _NONE
        numbers = self.num_groups + np.arange(len(ends))
        lengths = _random_lengths(numbers, self.length) if self.is_random_length else _NONE
        of_segment = lengths if len(lengths) else np.int64(self.length)
        num_segments: Ints = -(-np.diff(ends, prepend=self.begin) // of_segment)
        segment_ends: Ints = self.num_segments + np.cumsum(num_segments)
        self.num_groups, self.num_segments = self.num_groups + len(ends), int(segment_ends[-1])
        self.begin = int(ends[-1])
        return ends, segment_ends, lengths


def _random_lengths(group: Ints, longest: int) -> Ints:
    """Log-uniform from 8 to `longest`, for groups by number."""
    if longest <= SHORTEST_RANDOM_LENGTH:
        return np.full(len(group), longest, np.int64)
    share = (fold(_LENGTH, group) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    low, high = np.log(SHORTEST_RANDOM_LENGTH), np.log(longest)
    return np.rint(np.exp(low + share * (high - low))).astype(np.int64)


def _documents(shards: TokenShards) -> Iterator[tuple[Ints, Ints]]:
    """(documents,) global offsets of first tokens and (documents,) lengths, some documents at a time, none empty."""
    for shard in range(shards.num_shards):
        document_ends, sentence_ends = shards.document_ends(shard), shards.sentence_ends(shard)
        begin = 0
        for block in range(0, len(document_ends), _BLOCK):
            last_sentence = document_ends[block : block + _BLOCK] - 1
            ends = np.where(last_sentence >= 0, sentence_ends[np.maximum(last_sentence, 0)], 0)
            starts = np.concatenate([[begin], ends[:-1]])
            begin, has_tokens = int(ends[-1]), ends > starts
            if has_tokens.any():
                yield starts[has_tokens] + int(shards.token_begins[shard]), (ends - starts)[has_tokens]


def _cut(starts: Ints, sizes: Ints, first: int, most: int | None, *, is_uniform: bool) -> tuple[Ints, Ints]:
    """Return the part of each document that is used; `first` is the number of the first one."""
    if is_uniform and most is not None:
        begin = below(fold(_CHUNK, first + np.arange(len(sizes))), sizes + most - 1) - (most - 1)
        end = np.minimum(begin + most, sizes)
        begin = np.maximum(begin, 0)
        return starts + begin, end - begin
    if most is None or int(sizes.max()) <= most:
        return starts, sizes
    starts, sizes = starts.copy(), sizes.copy()
    is_long = np.flatnonzero(sizes > most)  # one of its chunks that begin at multiples of `most`
    num_chunks = -(-sizes[is_long] // most)
    begin = most * below(fold(_CHUNK, first + is_long), num_chunks)
    starts[is_long] += begin
    sizes[is_long] = np.minimum(most, sizes[is_long] - begin)
    return starts, sizes


def _joined(starts: Ints, sizes: Ints, ends: Ints, *, is_joined: bool) -> Ints:
    """(pieces, 2): where they end in the stream and start in the shards. Documents without a gap between them become
    one piece where `is_joined`."""
    is_first = np.ones(len(starts), np.bool_)
    if is_joined:
        is_first[1:] = starts[1:] != starts[:-1] + sizes[:-1]
    last = np.append(np.flatnonzero(is_first)[1:] - 1, len(starts) - 1)
    return np.stack([ends[last], starts[is_first]], axis=1)


def segments_of(
    shards: TokenShards, length: int, *, min_documents: int = MIN_DOCUMENTS, **settings: Any
) -> SegmentIndex:
    """The segments of `shards`, from the cache where there is one; `settings` are those of `index_blocks`, all of them.

    Those of a large corpus are kept on disk beside its token shards and memory-mapped, so that they are found once: 365
    million documents with an end mark after each would cost every rank a minute and 6 GB at every start. A folder that
    cannot be written only costs the time again. Raises OSError where files cannot be read.
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
                told = "the segments of %s are not kept, so the next start finds them again: %s"
                _logger.warning(told, shards.folder, error)
                return segment_index(shards, length, **settings)
    paths = [folder / f"{name}.bin" for name in _COLUMNS]
    columns = [np.asarray(np.memmap(path, np.int64, "r")) if path.stat().st_size else _NONE for path in paths]
    return _index_of(columns, length, end_mark)


def _write(blocks: Iterator[Columns], folder: Path) -> None:
    """All columns or none, in little memory."""
    with new_folder(folder) as aside, ExitStack() as stack:
        files = [stack.enter_context(open(aside / f"{name}.bin", "wb")) for name in _COLUMNS]
        for block in blocks:
            for file, values in zip(files, block, strict=True):
                file.write(np.ascontiguousarray(values, np.int64).data)
