"""Attention with an additive bias between two streams of tokens, within pairs of examples and never across them.

Dimensions: T tokens that ask, S tokens that are asked (the same stream in self-attention), H heads, K width of one
head, Q and P queries and keys of one tile or row, B rows, R distances.

As in `pretrainkit.nn.attention`, a *layout* says where the examples lie. It is made once per batch and shared by all
layers; all layouts compute the same numbers:

* `RowPairs`: rows and `scaled_dot_product_attention` with one additive mask; runs everywhere and is the reference.
* `TiledPairs`: on a CPU. Each example for itself, some heads and queries at a time, so that scores stay in the cache
  and keys that a causal query does not see cost nothing. Many short examples without bias or dropout go to
  `pretrainkit.nn.stacked_attention`.
* `FlexPairs`: rows on a GPU; FlexAttention reads the bias by distance, so no (H, Q, P) is ever made.

Scores are plain dot products where no scale is given: T5 has it in the initial weights of the queries.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.dropout import keep_factors
from pretrainkit.nn.fake import is_fake
from pretrainkit.nn.relative_bias import RelativeBias
from pretrainkit.nn.stacked_attention import Lengths, Stacks, are_short, stack

_QUERIES_PER_TILE = 128
_SCORES_AT_A_TIME = 1 << 17
"""Half of what a core's second cache holds."""


class PairLayout(ABC):
    """Where the examples of two streams lie, and which pairs of tokens see each other."""

    @abstractmethod
    def prepare(self, bias: RelativeBias | None, dtype: torch.dtype) -> Tensor | None:
        """What `attend` takes of the bias, once for all layers that share it.

        Args:
            bias: None in cross-attention.
            dtype: Of the queries to come.
        """

    @abstractmethod
    def attend(
        self, q_THK: Tensor | None, kv: Tensor, prepared: Tensor | None, *, dropout_rate: float, scale: float = 1.0
    ) -> Tensor:
        """softmax(scale q k + bias) v over the keys that each query sees.

        Args:
            q_THK: Queries; None: they are the first of the three in `kv`.
            kv: (S, 2, H, K) keys and values, or (T, 3, H, K) queries, keys and values.
            prepared: From `prepare`.
            dropout_rate: On the attention probabilities, in [0, 1).
            scale: Factor of the scores before the bias.

        Returns:
            (T, H, K). Zeros for queries that see no key.
        """


@dataclass(frozen=True, eq=False)
class RowPairs(PairLayout):
    """Rows of equal length, with padding."""

    num_rows: int
    num_queries: int
    num_keys: int
    is_visible_BQP: Tensor | None
    """bool: which keys each query sees; the first dimension may be 1; None: all."""

    def prepare(self, bias: RelativeBias | None, dtype: torch.dtype) -> Tensor | None:
        if bias is None and self.is_visible_BQP is None:
            return None
        shape = (1, 1, self.num_queries, self.num_keys)
        added = torch.zeros(shape, dtype=dtype, device=self._device()) if bias is None else self._bias(bias, dtype)
        if self.is_visible_BQP is None:
            return added
        # A softmax needs a key: queries that see none read all of them, and are put to zero afterwards.
        is_hidden = ~self.is_visible_BQP & self.is_visible_BQP.any(-1, keepdim=True)
        return added.masked_fill(is_hidden[:, None], -torch.inf)

    def attend(
        self, q_THK: Tensor | None, kv: Tensor, prepared: Tensor | None, *, dropout_rate: float, scale: float = 1.0
    ) -> Tensor:
        q_BHQK, k_BHPK, v_BHPK = self._rows(q_THK, kv)
        if prepared is not None:
            prepared = prepared.to(q_BHQK.dtype)
        mixed_BHQK = F.scaled_dot_product_attention(
            q_BHQK, k_BHPK, v_BHPK, attn_mask=prepared, dropout_p=dropout_rate, scale=scale
        )
        return self._stream(mixed_BHQK)

    def _rows(self, q_THK: Tensor | None, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, ., K)."""
        heads = kv.shape[2:]
        parts = kv.view(self.num_rows, self.num_keys, kv.shape[1], *heads).permute(2, 0, 3, 1, 4).unbind(0)
        q_BHQK = parts[0] if q_THK is None else q_THK.view(self.num_rows, self.num_queries, *heads).transpose(1, 2)
        return q_BHQK, parts[-2], parts[-1]

    def _stream(self, mixed_BHQK: Tensor) -> Tensor:
        mixed_BQHK = mixed_BHQK.transpose(1, 2)
        if self.is_visible_BQP is not None:
            mixed_BQHK = mixed_BQHK * self.is_visible_BQP.any(-1)[..., None, None]
        return mixed_BQHK.flatten(0, 1) if mixed_BQHK.is_contiguous() else mixed_BQHK.reshape(-1, *mixed_BQHK.shape[2:])

    def _bias(self, bias: RelativeBias, dtype: torch.dtype) -> Tensor:
        return bias(self.num_queries, self.num_keys).to(dtype)[None]

    def _device(self) -> torch.device:
        assert self.is_visible_BQP is not None
        return self.is_visible_BQP.device


@dataclass(frozen=True)
class Pair:
    """One example: where its queries and its keys lie in their streams."""

    queries: slice
    keys: slice
    num_prefix: int = 0
    """Causal layouts only: so many tokens at the start all see each other."""


@dataclass(frozen=True, eq=False)
class _Tile:
    queries: slice
    keys: slice
    first_query: int
    """Within the example, for the bias."""
    is_hidden_QP: Tensor | None
    """bool, of the last keys of the tile, as many as it has columns; None: nothing is hidden."""
    has_own_keys: bool
    """Whether no other tile reads them."""


@dataclass(frozen=True, eq=False)
class TiledPairs(PairLayout):
    """Examples of known lengths, one after another, without padding."""

    pairs: tuple[Pair, ...]
    """Of an example whose keys are an empty slice, the queries see nothing."""
    num_tokens: int
    """T."""
    is_causal: bool = False
    """Self-attention in which a token sees itself and those before it."""
    _made: dict[tuple[int, int, bool], Stacks] = field(default_factory=dict, init=False, repr=False)

    def prepare(self, bias: RelativeBias | None, dtype: torch.dtype) -> Tensor | None:
        if bias is None:
            return None
        longest = max((pair.keys.stop - pair.keys.start for pair in self.pairs), default=1)
        return bias(longest, longest)

    def attend(
        self, q_THK: Tensor | None, kv: Tensor, prepared: Tensor | None, *, dropout_rate: float, scale: float = 1.0
    ) -> Tensor:
        is_plain = prepared is None and not dropout_rate and kv.dtype in (torch.float32, torch.float64)
        if is_plain and self._lengths is not None and are_short(self._lengths):
            return self._stacks(len(kv), kv.shape[2], has_queries=q_THK is None).attend(q_THK, kv, scale)
        return _TiledAttention.apply(q_THK, kv, prepared, self._tiles, self.num_tokens, dropout_rate, scale)

    @cached_property
    def _tiles(self) -> "list[_Tile]":
        return _tiles(self.pairs, self.is_causal)

    @cached_property
    def _lengths(self) -> Lengths | None:
        """Of examples that see something; None: some share keys."""
        ends = [
            (pair.queries.start, pair.queries.stop, pair.keys.start, pair.keys.stop, pair.num_prefix)
            for pair in self.pairs
            if pair.keys.stop > pair.keys.start and pair.queries.stop > pair.queries.start
        ]
        ends_E5 = np.array(sorted(ends, key=lambda one: one[2]), np.int64).reshape(-1, 5)
        found = Lengths(
            ends_E5[:, 0], ends_E5[:, 1] - ends_E5[:, 0], ends_E5[:, 2], ends_E5[:, 3] - ends_E5[:, 2], ends_E5[:, 4]
        )
        shares_keys = (ends_E5[1:, 2] < ends_E5[:-1, 3]).any()
        return None if shares_keys else found

    def _stacks(self, num_asked: int, num_heads: int, *, has_queries: bool) -> Stacks:
        """Made once for all layers."""
        assert self._lengths is not None
        key = num_asked, num_heads, has_queries
        if key not in self._made:
            self._made[key] = stack(
                self._lengths, self.num_tokens, num_asked, num_heads, is_causal=self.is_causal, has_queries=has_queries
            )
        return self._made[key]


@lru_cache(maxsize=16)
def _hidden_after(num: int) -> Tensor:
    """bool (num, num): True above the diagonal."""
    return torch.ones(num, num, dtype=torch.bool).triu(1)


def _tiles(pairs: tuple[Pair, ...], is_causal: bool) -> list[_Tile]:
    tiles = []
    for pair in pairs:
        start, length, first_key = pair.queries.start, pair.queries.stop - pair.queries.start, pair.keys.start
        if pair.keys.stop == first_key:
            continue
        prefix = pair.num_prefix if is_causal else length
        if prefix:
            keys = slice(first_key, first_key + prefix) if is_causal else pair.keys
            tiles.append(_Tile(slice(start, start + prefix), keys, 0, None, prefix == length))
        for first in range(prefix, length, _QUERIES_PER_TILE):
            last = min(first + _QUERIES_PER_TILE, length)
            keys = slice(first_key, first_key + last)
            is_only = last - first == length
            tiles.append(_Tile(slice(start + first, start + last), keys, first, _hidden_after(last - first), is_only))
    return tiles


class _TiledAttention(torch.autograd.Function):
    """Attention tile by tile with its gradient written out: no padding, no copies of queries, keys or values."""

    @staticmethod
    def forward(
        ctx: Any,
        q_THK: Tensor | None,
        kv: Tensor,
        bias_HQP: Tensor | None,
        tiles: list[_Tile],
        num_tokens: int,
        dropout_rate: float,
        scale: float,
    ) -> Tensor:
        q_HTK, k_HSK, v_HSK = _by_head(q_THK, kv)
        make = torch.empty if sum(_size(tile.queries) for tile in tiles) == num_tokens else torch.zeros
        mixed_THK = make((num_tokens, *kv.shape[2:]), dtype=kv.dtype, device=kv.device)
        mixed_HTK = mixed_THK.transpose(0, 1)
        saved = []
        for tile in tiles:
            for heads in _head_groups(tile, q_HTK):
                q_HQK, k_HPK = q_HTK[heads, tile.queries], k_HSK[heads, tile.keys]
                share_HQP = _shares(q_HQK, k_HPK, _bias_of(tile, heads, bias_HQP), tile.is_hidden_QP, scale)
                saved.append(share_HQP)
                if dropout_rate:
                    keep_HQP = keep_factors(share_HQP.shape, dropout_rate)
                    saved.append(keep_HQP)
                    share_HQP = share_HQP * keep_HQP
                torch.bmm(share_HQP.to(kv.dtype), v_HSK[heads, tile.keys], out=mixed_HTK[heads, tile.queries])
        ctx.save_for_backward(q_THK, kv, *saved)
        ctx.tiles, ctx.has_dropout, ctx.scale = tiles, bool(dropout_rate), scale
        ctx.bias_like = None if bias_HQP is None else bias_HQP.new_empty(()).expand(bias_HQP.shape)
        return mixed_THK

    @staticmethod
    def backward(ctx: Any, grad_THK: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None, None, None]:
        q_THK, kv, *saved = ctx.saved_tensors
        is_covered = all(tile.has_own_keys for tile in ctx.tiles)
        is_covered &= sum(_size(tile.queries) for tile in ctx.tiles) == len(grad_THK)
        is_covered &= sum(_size(tile.keys) for tile in ctx.tiles) == len(kv)
        make = torch.empty_like if is_covered else torch.zeros_like
        grad_q_THK = None if q_THK is None else make(q_THK)
        grad_kv = make(kv)
        has_bias_grad = ctx.bias_like is not None and ctx.needs_input_grad[2]
        grad_bias_HQP = (
            torch.zeros_like(ctx.bias_like, memory_format=torch.contiguous_format) if has_bias_grad else None
        )
        q_HTK, k_HSK, v_HSK = _by_head(q_THK, kv)
        to_q_HTK, to_k_HSK, to_v_HSK = _by_head(grad_q_THK, grad_kv)
        grad_HTK = grad_THK.transpose(0, 1)
        rest = iter(saved)
        for tile in ctx.tiles:
            for heads in _head_groups(tile, q_HTK):
                q_HQK, above_HQK = q_HTK[heads, tile.queries], grad_HTK[heads, tile.queries]
                k_HPK, v_HPK = k_HSK[heads, tile.keys], v_HSK[heads, tile.keys]
                share_HQP = next(rest)
                grad_share_HQP = torch.bmm(above_HQK, v_HPK.mT).to(share_HQP.dtype)
                kept_HQP = share_HQP
                if ctx.has_dropout:
                    keep_HQP = next(rest)
                    kept_HQP = share_HQP * keep_HQP
                    grad_share_HQP.mul_(keep_HQP)
                _put_product(to_v_HSK[heads, tile.keys], kept_HQP.to(kv.dtype).mT, above_HQK, tile, 1.0)
                # Softmax backwards: share * (grad - sum(grad * share)); hidden pairs have share 0.
                grad_scores_HQP = torch._softmax_backward_data(
                    grad_share_HQP, share_HQP, -1, share_HQP.dtype, grad_input=grad_share_HQP
                )
                if grad_bias_HQP is not None:
                    _bias_of(tile, heads, grad_bias_HQP).add_(grad_scores_HQP)  # type: ignore[union-attr]
                low_HQP = grad_scores_HQP.to(kv.dtype)
                nothing = kv.new_empty(())
                torch.baddbmm(nothing, low_HQP, k_HPK, beta=0, alpha=ctx.scale, out=to_q_HTK[heads, tile.queries])
                _put_product(to_k_HSK[heads, tile.keys], low_HQP.mT, q_HQK, tile, ctx.scale)
        return grad_q_THK, grad_kv, grad_bias_HQP, None, None, None, None


def _head_groups(tile: _Tile, q_HTK: Tensor) -> list[slice]:
    """Heads that are worked on together: as many as the cache holds the scores of."""
    num_heads = len(q_HTK)
    if is_fake(q_HTK):
        return [slice(0, num_heads)]
    num = max(1, _SCORES_AT_A_TIME // (_size(tile.queries) * _size(tile.keys)))
    return [slice(first, min(first + num, num_heads)) for first in range(0, num_heads, num)]


def _shares(q_HQK: Tensor, k_HPK: Tensor, bias_HQP: Tensor | None, is_hidden_QP: Tensor | None, scale: float) -> Tensor:
    """Softmax over the keys, at least float32, (H, Q, P), some queries at a time."""
    num_queries, num_keys = q_HQK.shape[1], k_HPK.shape[1]
    if is_hidden_QP is not None or num_queries * num_keys <= _SCORES_AT_A_TIME or is_fake(q_HQK):
        scores_HQP = _scores(q_HQK, k_HPK, bias_HQP, scale)
        if is_hidden_QP is not None:
            scores_HQP[:, :, -is_hidden_QP.shape[1] :].masked_fill_(is_hidden_QP, -torch.inf)
        return torch.softmax(scores_HQP, -1, out=scores_HQP)
    dtype = torch.promote_types(q_HQK.dtype, torch.float32)
    share_HQP = q_HQK.new_empty((len(q_HQK), num_queries, num_keys), dtype=dtype)
    for first in range(0, num_queries, _QUERIES_PER_TILE):
        some = slice(first, first + _QUERIES_PER_TILE)
        scores_HQP = _scores(q_HQK[:, some], k_HPK, None if bias_HQP is None else bias_HQP[:, some], scale)
        torch.softmax(scores_HQP, -1, out=share_HQP[:, some])
    return share_HQP


def _put_product(out_HPK: Tensor, left_HPQ: Tensor, right_HQK: Tensor, tile: _Tile, scale: float) -> None:
    """Into the gradient of a tile's keys or values, or onto it where other tiles read them too."""
    out_HPK.baddbmm_(left_HPQ, right_HQK, beta=0 if tile.has_own_keys else 1, alpha=scale)


def _scores(q_HQK: Tensor, k_HPK: Tensor, bias_HQP: Tensor | None, scale: float) -> Tensor:
    """At least float32."""
    if bias_HQP is not None and bias_HQP.dtype == q_HQK.dtype:
        return torch.baddbmm(bias_HQP, q_HQK, k_HPK.mT, alpha=scale)
    scores_HQP = torch.baddbmm(q_HQK.new_empty(()), q_HQK, k_HPK.mT, beta=0, alpha=scale)
    if bias_HQP is not None:
        return scores_HQP.to(bias_HQP.dtype).add_(bias_HQP)
    return scores_HQP.to(torch.promote_types(scores_HQP.dtype, torch.float32))


def _bias_of(tile: _Tile, heads: slice, bias_HQP: Tensor | None) -> Tensor | None:
    if bias_HQP is None:
        return None
    last_query = tile.first_query + _size(tile.queries)
    return bias_HQP[heads, tile.first_query : last_query, : _size(tile.keys)]


def _size(tokens: slice) -> int:
    return tokens.stop - tokens.start


def _by_head(q_THK: Tensor | None, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of queries, keys and values with the head first; queries are in `kv` where not given."""
    parts = [part.transpose(0, 1) for part in kv.unbind(1)]
    return (parts[0] if q_THK is None else q_THK.transpose(0, 1)), parts[-2], parts[-1]


def visible_pairs(
    query_segment_BQ: Tensor, key_segment_BP: Tensor, *, is_causal: bool = False, is_prefix_BP: Tensor | None = None
) -> Tensor:
    """bool (B, Q, P): which keys each query of a row sees.

    Args:
        query_segment_BQ: Integer number of the example within its row; 0 is padding.
        key_segment_BP: The same for keys.
        is_causal: Queries see keys up to their own position.
        is_prefix_BP: Causal only, bool: tokens of a prefix, which all see each other.
    """
    visible_BQP = (query_segment_BQ[:, :, None] == key_segment_BP[:, None]) & (query_segment_BQ > 0)[:, :, None]
    if not is_causal:
        return visible_BQP
    position_P = torch.arange(key_segment_BP.shape[1], device=key_segment_BP.device)
    is_before = (position_P <= position_P[:, None])[None]
    if is_prefix_BP is not None:
        is_before = is_before | (is_prefix_BP[:, :, None] & is_prefix_BP[:, None])
    return visible_BQP & is_before


@dataclass(frozen=True, eq=False)
class FlexPairs(RowPairs):
    """Rows, through FlexAttention: blocks of pairs that do not see each other are skipped. It has no dropout."""

    block_mask: Any = None
    """Of `torch.nn.attention.flex_attention`, made from the same visibility."""

    def prepare(self, bias: RelativeBias | None, dtype: torch.dtype) -> Tensor | None:
        return None if bias is None else bias.by_distance(1 - self.num_queries, self.num_keys - 1)

    def attend(
        self, q_THK: Tensor | None, kv: Tensor, prepared: Tensor | None, *, dropout_rate: float, scale: float = 1.0
    ) -> Tensor:
        if dropout_rate:
            raise ValueError(f"FlexAttention has no dropout, but the rate is {dropout_rate}: use RowPairs")
        q_BHQK, k_BHPK, v_BHPK = self._rows(q_THK, kv)
        num_before = self.num_queries - 1

        def add_bias(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            assert prepared is not None
            return score + prepared[head, key - query + num_before]

        mixed_BHQK = _flex_attention(q_BHQK.device.type)(
            q_BHQK,
            k_BHPK,
            v_BHPK,
            score_mod=None if prepared is None else add_bias,
            block_mask=self.block_mask,
            scale=scale,
        )
        assert isinstance(mixed_BHQK, Tensor)  # a pair only where more was asked for
        return self._stream(mixed_BHQK)


def _flex_attention(device_type: str) -> Callable[..., Any]:
    """The fused kernel on a GPU, within a compiled block or on its own; elsewhere plain operations."""
    from torch.nn.attention.flex_attention import flex_attention

    if device_type != "cuda" or torch.compiler.is_compiling():
        return flex_attention
    return _compiled_flex_attention()


@cache
def _compiled_flex_attention() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flex_pairs(
    query_segment_BQ: Tensor, key_segment_BP: Tensor, *, is_causal: bool = False, is_prefix_BP: Tensor | None = None
) -> FlexPairs:
    """The layout of rows with these segments (see `visible_pairs`)."""
    from torch.nn.attention.flex_attention import create_block_mask

    num_rows, num_queries = query_segment_BQ.shape
    num_keys = key_segment_BP.shape[1]

    def is_visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        segment = query_segment_BQ[row, query]
        visible = (segment == key_segment_BP[row, key]) & (segment > 0)
        if not is_causal:
            return visible
        is_before = key <= query
        if is_prefix_BP is not None:
            is_before = is_before | (is_prefix_BP[row, query] & is_prefix_BP[row, key])
        return visible & is_before

    device = query_segment_BQ.device
    block_mask = create_block_mask(is_visible, num_rows, None, num_queries, num_keys, device=device.type)
    return FlexPairs(num_rows, num_queries, num_keys, None, block_mask)
