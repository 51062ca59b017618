"""Attention on a CPU: each example separately, some heads and queries at a time (a *tile*).

There is no padding, the scores of a tile stay in the cache, and keys that a causal query does not see, or that are
outside a window, cost nothing. Queries, keys and values are read in place, and the explicit backward pass writes the
gradient in place without a copy. Measurements: benchmarks/RESULTS.md, section "By hand".

Dimensions: T query tokens, S key tokens (the same stream in self-attention), H heads, K width of one head, Q and P
queries and keys of one tile, W query tokens of a stream if not all tokens are queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from pretrainkit.nn.attention import AttentionLayout, PaddedLayout, padded_layout
from pretrainkit.nn.biased_attention import PairLayout
from pretrainkit.nn.cpu.dropout import keep_factors
from pretrainkit.nn.relative_bias import RelativeBias

_QUERIES_PER_TILE = 128
"""Queries per tile if some keys are masked: small enough to skip most masked keys, large enough for fast products."""
_SCORES_AT_A_TIME = 1 << 17
"""Scores computed at once: half the size of a core's second-level cache."""


@dataclass(frozen=True, eq=False)
class Tile:
    """Queries of one example and the keys they can see, as ranges of their streams."""

    queries: slice
    keys: slice
    is_hidden_QP: Tensor | None = None
    """bool: True where a query does not see a key. Its P columns are the last P keys of the tile: all queries see those
    before them. None: all queries see all keys."""
    has_own_keys: bool = True
    """True if no other tile reads these keys."""
    first_query: int = 0
    """Index of the first query in the example, for the bias."""


@dataclass(frozen=True, eq=False)
class TiledLayout(AttentionLayout):
    """Examples of known lengths, one after another."""

    lengths: tuple[int, ...]
    """Lengths, on the host; the sum is T."""
    padded: PaddedLayout = field(init=False)
    """Layout for other dtypes and for torch.compile. Created in advance, because a compiled block cannot create it."""

    def __post_init__(self) -> None:
        cu_seqlens = torch.tensor((0, *self.lengths)).cumsum(0)
        padded = padded_layout(cu_seqlens, max(self.lengths), sum(self.lengths))
        object.__setattr__(self, "padded", padded)

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        if not _is_supported(qkv_T3HK):
            return self.padded.attend(qkv_T3HK, window=window, dropout_rate=dropout_rate)
        tiles = _whole_tiles(self.lengths) if window is None else _window_tiles(self.lengths, window // 2)
        return attend(None, qkv_T3HK, None, tiles, len(qkv_T3HK), dropout_rate, qkv_T3HK.shape[-1] ** -0.5)

    def attend_from(
        self, q_WHK: Tensor, kv_T2HK: Tensor, query_W: Tensor, *, window: int | None, dropout_rate: float
    ) -> Tensor | None:
        if not _is_supported(kv_T2HK):
            return None
        tiles = self._tiles_of(query_W, window)
        return attend(q_WHK, kv_T2HK, None, tiles, len(q_WHK), dropout_rate, q_WHK.shape[-1] ** -0.5)

    def _tiles_of(self, query_W: Tensor, window: int | None) -> list[Tile]:
        """Return the tiles of the examples that have query tokens."""
        ends = torch.tensor(self.lengths).cumsum(0)
        # query_W is ascending, so the query tokens of an example are those between two of these places.
        last_of = torch.searchsorted(query_W, ends).tolist()
        tiles, first, start = [], 0, 0
        for last, end in zip(last_of, ends.tolist(), strict=True):
            hidden = None
            if window is not None:
                hidden = (query_W[first:last, None] - torch.arange(start, end)).abs() > window // 2
            if last > first:
                tiles.append(Tile(slice(first, last), slice(start, end), hidden))
            first, start = last, end
        return tiles


def _is_supported(x: Tensor) -> bool:
    return x.dtype in (torch.float32, torch.bfloat16) and not torch.compiler.is_compiling()


@lru_cache(maxsize=8)
def _whole_tiles(lengths: tuple[int, ...]) -> list[Tile]:
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    examples = (slice(end - length, end) for end, length in zip(ends, lengths, strict=True) if length)
    return [Tile(tokens, tokens) for tokens in examples]


@lru_cache(maxsize=8)
def _window_tiles(lengths: tuple[int, ...], reach: int) -> list[Tile]:
    tiles, start = [], 0
    for length in lengths:
        for first in range(0, length, _QUERIES_PER_TILE):
            last = min(first + _QUERIES_PER_TILE, length)
            key_first, key_last = max(0, first - reach), min(length, last + reach)
            # The two corners of the tile: its first query with its last key, and its last query with its first key.
            is_all_near = max(key_last - 1 - first, last - 1 - key_first) <= reach
            hidden = (
                None if is_all_near else _beyond_reach(last - first, key_last - key_first, first - key_first, reach)
            )
            queries, keys = slice(start + first, start + last), slice(start + key_first, start + key_last)
            tiles.append(Tile(queries, keys, hidden, has_own_keys=False))
        start += length
    return tiles


@lru_cache(maxsize=256)
def _beyond_reach(num_queries: int, num_keys: int, offset: int, reach: int) -> Tensor:
    """bool (Q, P): True where query `offset + i` is more than `reach` away from key j."""
    return (torch.arange(num_queries)[:, None] + offset - torch.arange(num_keys)).abs() > reach


@dataclass(frozen=True)
class Pair:
    """Positions of the queries and keys of one example in their streams."""

    queries: slice
    keys: slice
    num_prefix: int = 0
    """Causal layouts only: number of tokens at the start that all attend to each other."""


@dataclass(frozen=True, eq=False)
class TiledPairs(PairLayout):
    """Examples of known lengths, one after another, without padding."""

    pairs: tuple[Pair, ...]
    """Pairs of all examples; if the keys of an example are an empty slice, its queries attend to nothing."""
    num_tokens: int
    """T, the number of query tokens."""
    is_causal: bool = False
    """True for self-attention in which a token sees itself and the tokens before it."""

    def prepare(self, bias: RelativeBias | None, dtype: torch.dtype) -> Tensor | None:
        if bias is None:
            return None
        longest = max((_size(pair.keys) for pair in self.pairs), default=1)
        return bias(longest, longest)

    def attend(
        self, q_THK: Tensor | None, kv: Tensor, prepared: Tensor | None, *, dropout_rate: float, scale: float = 1.0
    ) -> Tensor:
        return attend(q_THK, kv, prepared, self._tiles, self.num_tokens, dropout_rate, scale)

    @cached_property
    def _tiles(self) -> list[Tile]:
        """Tiles, created once for all layers."""
        tiles: list[Tile] = []
        for pair in self.pairs:
            if _size(pair.keys) and _size(pair.queries):
                tiles += _causal_tiles(pair) if self.is_causal else [Tile(pair.queries, pair.keys)]
        return tiles


def _causal_tiles(pair: Pair) -> list[Tile]:
    """Return a tile for the prefix, which sees itself, then tiles of some queries with the keys up to the last
    query."""
    start, length, first_key, prefix = pair.queries.start, _size(pair.queries), pair.keys.start, pair.num_prefix
    tiles = []
    if prefix:
        keys = slice(first_key, first_key + prefix)
        tiles.append(Tile(slice(start, start + prefix), keys, has_own_keys=prefix == length))
    for first in range(prefix, length, _QUERIES_PER_TILE):
        last = min(first + _QUERIES_PER_TILE, length)
        queries, keys = slice(start + first, start + last), slice(first_key, first_key + last)
        tiles.append(Tile(queries, keys, _hidden_after(last - first), last - first == length, first))
    return tiles


@lru_cache(maxsize=16)
def _hidden_after(num: int) -> Tensor:
    """bool (num, num): True above the diagonal."""
    return torch.ones(num, num, dtype=torch.bool).triu(1)


def _size(tokens: slice) -> int:
    return tokens.stop - tokens.start


def attend(
    q_THK: Tensor | None,
    kv: Tensor,
    bias_HQP: Tensor | None,
    tiles: Sequence[Tile],
    num_tokens: int,
    dropout_rate: float,
    scale: float,
) -> Tensor:
    """Compute softmax(scale q k + bias) v over the keys that each query sees, (T, H, K). Zeros for queries in no tile.

    Arguments are those of `PairLayout.attend`, except for the bias, which is by position in the example and at least as
    long as the longest example. No two tiles may have the same queries.
    """
    mixed_THK: Tensor = _TiledAttention.apply(q_THK, kv, bias_HQP, tiles, num_tokens, dropout_rate, scale)
    return mixed_THK


class _TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_THK: Tensor | None,
        kv: Tensor,
        bias_HQP: Tensor | None,
        tiles: Sequence[Tile],
        num_tokens: int,
        dropout_rate: float,
        scale: float,
    ) -> Tensor:
        q_HTK, k_HSK, v_HSK = _by_head(q_THK, kv)
        make = kv.new_empty if sum(_size(tile.queries) for tile in tiles) == num_tokens else kv.new_zeros
        mixed_THK = make((num_tokens, *kv.shape[2:]))
        mixed_HTK = mixed_THK.transpose(0, 1)
        saved = []
        for tile in tiles:
            if dropout_rate:
                keep_HQP = keep_factors((len(q_HTK), _size(tile.queries), _size(tile.keys)), dropout_rate)
            for heads in _head_groups(tile, kv):
                q_HQK, k_HPK = q_HTK[heads, tile.queries], k_HSK[heads, tile.keys]
                share_HQP = _scores(q_HQK, k_HPK, _bias_of(tile, heads, bias_HQP), scale)
                if tile.is_hidden_QP is not None:
                    share_HQP[:, :, -tile.is_hidden_QP.shape[1] :].masked_fill_(tile.is_hidden_QP, -torch.inf)
                torch.softmax(share_HQP, -1, out=share_HQP)
                saved.append(share_HQP)
                if dropout_rate:
                    saved.append(keep_HQP[heads])
                    share_HQP = share_HQP * keep_HQP[heads]
                torch.bmm(share_HQP.to(kv.dtype), v_HSK[heads, tile.keys], out=mixed_HTK[heads, tile.queries])
        ctx.save_for_backward(q_THK, kv, mixed_THK, *saved)
        ctx.tiles, ctx.has_dropout, ctx.scale = tiles, bool(dropout_rate), scale
        # The backward pass needs only the shape: a single number expanded to the shape of the bias.
        ctx.bias_like = None if bias_HQP is None else bias_HQP.new_empty(()).expand(bias_HQP.shape)
        return mixed_THK

    @staticmethod
    def backward(ctx: Any, grad_THK: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None, None, None]:
        q_THK, kv, mixed_THK, *saved = ctx.saved_tensors
        tiles, nothing = ctx.tiles, kv.new_empty(())
        # Memory that tiles fill completely need not be zeroed first.
        is_covered = all(tile.has_own_keys for tile in tiles)
        is_covered &= sum(_size(tile.queries) for tile in tiles) == len(grad_THK)
        is_covered &= sum(_size(tile.keys) for tile in tiles) == len(kv)
        make = torch.empty_like if is_covered else torch.zeros_like
        grad_q_THK, grad_kv = None if q_THK is None else make(q_THK), make(kv)
        grad_bias_HQP = None
        if ctx.bias_like is not None and ctx.needs_input_grad[2]:
            grad_bias_HQP = torch.zeros_like(ctx.bias_like, memory_format=torch.contiguous_format)
        q_HTK, k_HSK, v_HSK = _by_head(q_THK, kv)
        to_q_HTK, to_k_HSK, to_v_HSK = _by_head(grad_q_THK, grad_kv)
        grad_HTK = grad_THK.transpose(0, 1)
        # The gradient of softmax is share * (grad - sum(grad * share)); this sum over keys equals one over the width:
        # sum_p share_p (above v_p) = above (sum_p share_p v_p) = above mixed. Hidden pairs have share 0.
        wide = torch.promote_types(kv.dtype, torch.float32)
        along_HT1 = (grad_THK.to(wide) * mixed_THK).sum(-1).t()[..., None]
        rest = iter(saved)
        for tile in tiles:
            for heads in _head_groups(tile, kv):
                above_HQK, k_HPK = grad_HTK[heads, tile.queries], k_HSK[heads, tile.keys]
                share_HQP = next(rest)
                scores_HQP = torch.bmm(above_HQK, v_HSK[heads, tile.keys].mT).to(share_HQP.dtype)
                kept_HQP = share_HQP
                if ctx.has_dropout:
                    keep_HQP = next(rest)
                    kept_HQP = share_HQP * keep_HQP
                    scores_HQP.mul_(keep_HQP)
                beta = 0 if tile.has_own_keys else 1  # gradients of keys that other tiles read too are added up
                to_v_HSK[heads, tile.keys].baddbmm_(kept_HQP.to(kv.dtype).mT, above_HQK, beta=beta)
                scores_HQP.sub_(along_HT1[heads, tile.queries]).mul_(share_HQP)
                if grad_bias_HQP is not None:
                    _bias_of(tile, heads, grad_bias_HQP).add_(scores_HQP)  # type: ignore[union-attr]
                low_HQP, to_q_HQK = scores_HQP.to(kv.dtype), to_q_HTK[heads, tile.queries]
                torch.baddbmm(nothing, low_HQP, k_HPK, beta=0, alpha=ctx.scale, out=to_q_HQK)
                q_HQK, to_k_HPK = q_HTK[heads, tile.queries], to_k_HSK[heads, tile.keys]
                to_k_HPK.baddbmm_(low_HQP.mT, q_HQK, beta=beta, alpha=ctx.scale)
        return grad_q_THK, grad_kv, grad_bias_HQP, None, None, None, None


def _head_groups(tile: Tile, kv: Tensor) -> list[slice]:
    """Return groups of heads to process together, each with as many scores as fit the cache. Fake tensors are processed
    as one group (those of `pretrainkit.training.fake_tensor` have `shape_only`, torch's have `fake_mode`)."""
    num_heads = kv.shape[2]
    if hasattr(kv, "shape_only") or hasattr(kv, "fake_mode"):
        return [slice(0, num_heads)]
    num = max(1, _SCORES_AT_A_TIME // (_size(tile.queries) * _size(tile.keys)))
    return [slice(first, min(first + num, num_heads)) for first in range(0, num_heads, num)]


def _scores(q_HQK: Tensor, k_HPK: Tensor, bias_HQP: Tensor | None, scale: float) -> Tensor:
    """Return the scores in float32 or wider."""
    if bias_HQP is not None and bias_HQP.dtype == q_HQK.dtype:
        return torch.baddbmm(bias_HQP, q_HQK, k_HPK.mT, alpha=scale)
    scores_HQP = torch.baddbmm(q_HQK.new_empty(()), q_HQK, k_HPK.mT, beta=0, alpha=scale)
    if bias_HQP is not None:
        return scores_HQP.to(bias_HQP.dtype).add_(bias_HQP)
    return scores_HQP.to(torch.promote_types(scores_HQP.dtype, torch.float32))


def _bias_of(tile: Tile, heads: slice, bias_HQP: Tensor | None) -> Tensor | None:
    if bias_HQP is None:
        return None
    return bias_HQP[heads, tile.first_query : tile.first_query + _size(tile.queries), : _size(tile.keys)]


def _by_head(q_THK: Tensor | None, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of queries, keys and values with the head first; without `q_THK`, queries are in `kv`."""
    parts = [part.transpose(0, 1) for part in kv.unbind(1)]
    return (parts[0] if q_THK is None else q_THK.transpose(0, 1)), parts[-2], parts[-1]
