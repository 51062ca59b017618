"""Choice of the attention layout for a device, used by recipes. A recipe chooses a layout of padded rows itself by
`nn.cpu.dispatch`."""

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
    """Return the layout of examples stored one after another, none longer than `max_length`, possibly followed by
    unused tokens. `starts` is int32 (B + 1,): the start of each example, and the end of the last one."""
    if not drops_padding(starts):
        return VarlenLayout(starts, max_length, num_tokens)
    lengths = starts.diff().tolist()
    unused = num_tokens - sum(lengths)
    return TiledLayout((*lengths, *([unused] if unused else [])))


def best_pairs(
    some: Tensor, head_width: int, *, has_dropout: bool = False, has_static_shapes: bool = False
) -> PairKind:
    """Return the fastest kind of pair layout on the device of the tensor `some`. `has_dropout`: attention probabilities
    are dropped out. `has_static_shapes`: blocks are compiled, so shapes must not change from batch to batch."""
    if drops_padding(some):
        return "rows" if has_static_shapes else "tiles"
    return "flex" if has_flex(some, head_width) and not has_dropout else "rows"


def stream_pairs(starts: Tensor, num_tokens: int, head_width: int, *, has_dropout: bool) -> PairLayout:
    """Return the layout of examples stored one after another that fill the stream; each attends to itself. `starts` is
    int64 (B + 1,) as for `stream_layout`; see `best_pairs`."""
    kind = best_pairs(starts, head_width, has_dropout=has_dropout)
    if kind == "tiles":
        examples = [slice(begin, end) for begin, end in pairwise(starts.tolist())]
        return TiledPairs(tuple(Pair(example, example) for example in examples), num_tokens)
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
    """Return the layout of rows with these segments (see `visible_pairs`); `kind` is flex or rows."""
    make = flex_pairs if kind == "flex" else visible_pairs
    layout = make(query_segment_BQ, key_segment_BP, is_causal=is_causal, is_prefix_BP=is_prefix_BP)
    return RowPairs(len(layout), layout.shape[1], layout.shape[2], layout) if isinstance(layout, Tensor) else layout


def row_pairs(num_rows: int, length: int, some: Tensor) -> PairLayout:
    """Return the layout of full rows stored one after another, on the device of `some`; each row attends to itself."""
    if not drops_padding(some):
        return RowPairs(num_rows, length, length, None)
    rows = (slice(start, start + length) for start in range(0, num_rows * length, length))
    return TiledPairs(tuple(Pair(row, row) for row in rows), num_rows * length)


def example_numbers(starts: Tensor, num_tokens: int) -> Tensor:
    """Return the number of the example that each token of a stream belongs to, int64 (T,)."""
    return torch.searchsorted(starts[1:], torch.arange(num_tokens, device=starts.device), right=True)
