"""Which layout of attention a device gets, for recipes to ask. A layout of padded rows is chosen by the recipe itself,
which asks `nn.cpu.dispatch`."""

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from pretrainkit.nn.attention import AttentionLayout
from pretrainkit.nn.biased_attention import PairLayout, RowPairs, visible_pairs
from pretrainkit.nn.cpu.attention import Pair, TiledLayout, TiledPairs
from pretrainkit.nn.cpu.dispatch import drops_padding
from pretrainkit.nn.cuda.attention import VarlenLayout, flex_pairs, has_flex

PairKind = Literal["tiles", "rows", "flex"]
"""tiles: `TiledPairs`, without padding; rows: `RowPairs`, the reference; flex: `FlexPairs`, without dropout."""


def stream_layout(starts: Tensor, max_length: int, num_tokens: int) -> AttentionLayout:
    """The layout of examples that lie one after another, none longer than `max_length`, with maybe unused tokens behind
    the last. `starts` int32 (B + 1,): where each begins and the last one ends."""
    if not drops_padding(starts):
        return VarlenLayout(starts, max_length, num_tokens)
    lengths = starts.diff().tolist()
    unused = num_tokens - sum(lengths)
    return TiledLayout((*lengths, *([unused] if unused else [])))


def best_pairs(
    some: Tensor, head_width: int, *, has_dropout: bool = False, has_static_shapes: bool = False
) -> PairKind:
    """The fastest layout of pairs on the device of `some` tensor of a batch. `has_dropout`: attention probabilities are
    dropped; `has_static_shapes`: blocks are compiled, so that shapes must not change from batch to batch."""
    if drops_padding(some):
        return "rows" if has_static_shapes else "tiles"
    return "flex" if has_flex(some, head_width) and not has_dropout else "rows"


def stream_pairs(starts: Tensor, num_tokens: int, head_width: int, *, has_dropout: bool) -> PairLayout:
    """The layout of examples that lie one after another and fill the stream, each seeing itself. `starts` int64
    (B + 1,) as for `stream_layout`; see `best_pairs`."""
    kind = best_pairs(starts, head_width, has_dropout=has_dropout)
    if kind == "tiles":
        examples = [slice(begin, end) for begin, end in pairwise(starts.tolist())]
        return TiledPairs(tuple(Pair(one, one) for one in examples), num_tokens)
    segments_1T = example_numbers(starts, num_tokens)[None] + 1
    return segment_pairs(kind, segments_1T, segments_1T)


def segment_pairs(
    kind: PairKind,
    query_segment_BQ: Tensor,
    key_segment_BP: Tensor,
    *,
    is_causal: bool = False,
    is_prefix_BP: Tensor | None = None,
) -> PairLayout:
    """The layout of rows with these segments (see `visible_pairs`); `kind` is flex or rows."""
    make = flex_pairs if kind == "flex" else visible_pairs
    made = make(query_segment_BQ, key_segment_BP, is_causal=is_causal, is_prefix_BP=is_prefix_BP)
    return RowPairs(len(made), made.shape[1], made.shape[2], made) if isinstance(made, Tensor) else made


def row_pairs(num_rows: int, length: int, some: Tensor) -> PairLayout:
    """The layout of full rows one after another, on the device of `some` tensor, each seeing itself."""
    if not drops_padding(some):
        return RowPairs(num_rows, length, length, None)
    rows = (slice(start, start + length) for start in range(0, num_rows * length, length))
    return TiledPairs(tuple(Pair(row, row) for row in rows), num_rows * length)


def example_numbers(starts: Tensor, num_tokens: int) -> Tensor:
    """int64 (T,): the number of the example that each token of a stream belongs to."""
    return torch.searchsorted(starts[1:], torch.arange(num_tokens, device=starts.device), right=True)
