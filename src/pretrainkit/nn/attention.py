"""Self-attention within the examples of a stream of tokens, never across them.

Dimensions: T tokens of the stream, B examples, S slots of a padded row, H heads, K width of one head, D = H x K,
Q and P queries and keys of one tile.

A *layout* says where the examples lie in the stream. It is made once per batch and shared by all layers. All layouts
compute the same numbers:

* `PaddedLayout`: rows of equal length and `scaled_dot_product_attention`; runs everywhere and is the reference.
* `TiledLayout`: on a CPU. Each example for itself, so nothing is padded and its scores stay in the cache.
* `VarlenLayout`: half precision on CUDA, the variable-length flash kernel.
* `RowLayout` (row_layout.py): rows of an image's patches or a caption's tokens, of which one token is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.dropout import keep_factors
from pretrainkit.nn.rotary import Rotation, rotate
from pretrainkit.nn.stacked_attention import Lengths

_QUERIES_PER_TILE = 128
"""Of layers with a window: small enough to skip most of what is out of sight, large enough for fast products."""


_TILED_DTYPES = (torch.float32, torch.bfloat16)


class AttentionLayout(ABC):
    """Where the examples of a batch lie in its stream of tokens."""

    @abstractmethod
    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        """Attention of every token to the tokens of its own example.

        Args:
            qkv_T3HK: Queries, keys and values.
            window: Tokens seen around a token, half on each side; None: the whole example.
            dropout_rate: On the attention probabilities, in [0, 1).

        Returns:
            (T, H, K). Tokens that belong to no example give finite numbers without meaning.
        """

    def attends_from(self, x: Tensor) -> bool:
        """Whether `attend_from` serves such tensors; else all tokens are computed and the wanted ones selected."""
        return False

    def attend_from(
        self, q_WHK: Tensor, kv_T2HK: Tensor, wanted_W: Tensor, *, window: int | None, dropout_rate: float
    ) -> Tensor:
        """As `attend`, for the queries of some tokens only: (W, H, K).

        Args:
            q_WHK: Queries of the tokens `wanted_W`, which ascend.
            kv_T2HK: Keys and values of all tokens.
            wanted_W: int64 indices into the stream.
            window: As for `attend`.
            dropout_rate: As for `attend`.

        Only where `attends_from` says so.
        """
        raise TypeError(f"{type(self).__name__} computes the queries of all tokens; ask attends_from first")


@dataclass(frozen=True, eq=False)
class PaddedLayout(AttentionLayout):
    """Examples in rows of S slots."""

    num_rows: int
    length: int
    is_real_BS: Tensor | None
    """bool: slots that hold a token; None: all."""
    token_BS: Tensor | None = None
    """int64: the token in each slot (any, where there is none); None: the stream is the rows one after another."""
    slot_T: Tensor | None = None
    """int64: row x S + slot of each token; None as for `token_BS`."""

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        rows = qkv_T3HK if self.token_BS is None else qkv_T3HK[self.token_BS.flatten()]
        heads, width = qkv_T3HK.shape[2:]
        rows_BS3HK = rows.view(self.num_rows, self.length, 3, heads, width)
        q_BHSK, k_BHSK, v_BHSK = (part.transpose(1, 2) for part in rows_BS3HK.unbind(2))
        visible = self._visible(window, qkv_T3HK.device)
        mixed_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK, attn_mask=visible, dropout_p=dropout_rate)
        mixed_SHK = mixed_BHSK.transpose(1, 2).reshape(self.num_rows * self.length, heads, width)
        return mixed_SHK if self.slot_T is None else mixed_SHK[self.slot_T]

    def _visible(self, window: int | None, device: torch.device) -> Tensor | None:
        """bool (B or 1, 1, S, S): which keys each query sees; None: all."""
        visible = None
        if self.is_real_BS is not None:
            visible = self.is_real_BS[:, None, None, :]
        if window is not None and self.length > window // 2 + 1:
            slot_S = torch.arange(self.length, device=device)
            distance_SS = (slot_S[:, None] - slot_S).abs()
            is_near_SS = distance_SS <= window // 2
            # A query without any visible key has no softmax, so empty slots see themselves.
            visible = is_near_SS[None, None] if visible is None else visible & is_near_SS | (distance_SS == 0)
        return visible


@dataclass(frozen=True, eq=False)
class Tile:
    """Queries of one example and the keys they can see, as ranges of the queries and of the stream."""

    queries: slice
    keys: slice
    is_hidden_QP: Tensor | None
    """bool: pairs out of the window; None: all are in sight."""


@dataclass(frozen=True, eq=False)
class TiledLayout(AttentionLayout):
    """Examples of known lengths, one after another."""

    lengths: tuple[int, ...]
    """On the host; they add up to T."""
    padded: PaddedLayout = field(init=False)
    """The same, for other dtypes and for torch.compile. Made ahead, because a compiled block cannot make it."""

    def __post_init__(self) -> None:
        cu_seqlens = torch.tensor((0, *self.lengths)).cumsum(0)
        padded = padded_layout(cu_seqlens, max(self.lengths), sum(self.lengths))
        object.__setattr__(self, "padded", padded)

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        if not self.is_tiled(qkv_T3HK):
            return self.padded.attend(qkv_T3HK, window=window, dropout_rate=dropout_rate)
        tiles = _whole_tiles(self.lengths) if window is None else _window_tiles(self.lengths, window // 2)
        return _TiledAttention.apply(None, qkv_T3HK, tiles, window is None, dropout_rate)

    def attend_from(
        self, q_WHK: Tensor, kv_T2HK: Tensor, wanted_W: Tensor, *, window: int | None, dropout_rate: float
    ) -> Tensor:
        tiles = self._tiles_of(wanted_W, window)
        return _TiledAttention.apply(q_WHK, kv_T2HK, tiles, True, dropout_rate)

    def attends_from(self, x: Tensor) -> bool:
        return self.is_tiled(x)

    def is_tiled(self, x: Tensor) -> bool:
        """Whether tiles are used for such tensors; else padded rows are."""
        return x.device.type == "cpu" and x.dtype in _TILED_DTYPES and not torch.compiler.is_compiling()

    def _tiles_of(self, wanted_W: Tensor, window: int | None) -> tuple[Tile, ...]:
        tiles = []
        for first, num, start, length, _ in zip(*(part.tolist() for part in self._lengths_of(wanted_W)), strict=True):
            hidden = None
            if window is not None:
                hidden = (wanted_W[first : first + num, None] - torch.arange(start, start + length)).abs() > window // 2
            tiles.append(Tile(slice(first, first + num), slice(start, start + length), hidden))
        return tuple(tiles)

    def _lengths_of(self, wanted_W: Tensor) -> Lengths:
        """Of the examples that have wanted tokens."""
        whole = _whole_lengths(self.lengths)
        last_B = np.searchsorted(wanted_W.numpy(), whole.first_key_E + whole.num_keys_E)
        num_B = np.diff(last_B, prepend=0)
        asked = Lengths(last_B - num_B, num_B, *whole[2:])
        return Lengths(*(part[num_B > 0] for part in asked))


@lru_cache(maxsize=8)
def _whole_lengths(lengths: tuple[int, ...]) -> Lengths:
    """Of the examples that have tokens."""
    num_E = np.array([length for length in lengths if length], np.int64)
    first_E = num_E.cumsum() - num_E
    return Lengths(first_E, num_E, first_E, num_E, np.zeros_like(num_E))


@lru_cache(maxsize=8)
def _whole_tiles(lengths: tuple[int, ...]) -> tuple[Tile, ...]:
    tiles, start = [], 0
    for length in lengths:
        tokens = slice(start, start + length)
        tiles.append(Tile(tokens, tokens, None))
        start += length
    return tuple(tiles)


@lru_cache(maxsize=8)
def _window_tiles(lengths: tuple[int, ...], reach: int) -> tuple[Tile, ...]:
    tiles, start = [], 0
    for length in lengths:
        for first in range(0, length, _QUERIES_PER_TILE):
            last = min(first + _QUERIES_PER_TILE, length)
            key_first, key_last = max(0, first - reach), min(length, last + reach)
            is_all_near = max(key_last - 1 - first, last - 1 - key_first) <= reach
            hidden = (
                None if is_all_near else _out_of_window(last - first, key_last - key_first, first - key_first, reach)
            )
            queries, keys = slice(start + first, start + last), slice(start + key_first, start + key_last)
            tiles.append(Tile(queries, keys, hidden))
        start += length
    return tuple(tiles)


@lru_cache(maxsize=256)
def _out_of_window(num_queries: int, num_keys: int, offset: int, reach: int) -> Tensor:
    """bool (Q, P): True where query `offset + i` is more than `reach` away from key j."""
    return (torch.arange(num_queries)[:, None] + offset - torch.arange(num_keys)).abs() > reach


class _TiledAttention(torch.autograd.Function):
    """Attention tile by tile with its gradient written out: no padding, no copies of queries, keys or values.

    Queries come on their own, or with keys and values in one tensor. `has_own_keys`: no two tiles share a key.
    """

    @staticmethod
    def forward(
        ctx: Any, q_QHK: Tensor | None, kv: Tensor, tiles: Sequence[Tile], has_own_keys: bool, dropout_rate: float
    ) -> Tensor:
        q_HQK, k_HTK, v_HTK = _by_head(q_QHK, kv)
        num_heads, num_queries, width = q_HQK.shape
        mixed_QHK = kv.new_empty(num_queries, num_heads, width)
        nothing = kv.new_empty(())
        saved = []
        for tile in tiles:
            keys_HKP = k_HTK[:, tile.keys].transpose(1, 2)
            scores_HQP = torch.baddbmm(nothing, q_HQK[:, tile.queries], keys_HKP, beta=0, alpha=width**-0.5).float()
            if tile.is_hidden_QP is not None:
                scores_HQP.masked_fill_(tile.is_hidden_QP, -torch.inf)
            share_HQP = torch.softmax(scores_HQP, -1)
            saved.append(share_HQP)
            if dropout_rate:
                keep_HQP = keep_factors(share_HQP.shape, dropout_rate)
                saved.append(keep_HQP)
                share_HQP = share_HQP * keep_HQP
            mixed_QHK[tile.queries] = torch.bmm(share_HQP.to(kv.dtype), v_HTK[:, tile.keys]).transpose(0, 1)
        ctx.save_for_backward(q_QHK, kv, *saved)
        ctx.tiles, ctx.has_own_keys, ctx.has_dropout = tiles, has_own_keys, bool(dropout_rate)
        return mixed_QHK

    @staticmethod
    def backward(ctx: Any, grad_QHK: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        q_QHK, kv, *saved = ctx.saved_tensors
        grad_q_QHK = None if q_QHK is None else torch.empty_like(q_QHK)
        grad_kv = torch.zeros_like(kv)
        q_HQK, k_HTK, v_HTK = _by_head(q_QHK, kv)
        to_q_HQK, to_k_HTK, to_v_HTK = _by_head(grad_q_QHK, grad_kv)
        grad_HQK = grad_QHK.transpose(0, 1)
        nothing = kv.new_empty(())
        put = Tensor.copy_ if ctx.has_own_keys else Tensor.add_
        scale = kv.shape[-1] ** -0.5
        rest = iter(saved)
        for tile in ctx.tiles:
            above_HQK, keys_HPK = grad_HQK[:, tile.queries], k_HTK[:, tile.keys]
            share_HQP = next(rest)
            grad_share_HQP = torch.bmm(above_HQK, v_HTK[:, tile.keys].transpose(1, 2)).float()
            kept_HQP = share_HQP
            if ctx.has_dropout:
                keep_HQP = next(rest)
                kept_HQP = share_HQP * keep_HQP
                grad_share_HQP.mul_(keep_HQP)
            put(to_v_HTK[:, tile.keys], torch.bmm(kept_HQP.to(kv.dtype).transpose(1, 2), above_HQK))
            # Softmax backwards: share * (grad - sum(grad * share)); pairs out of the window have share 0.
            grad_scores_HQP = torch._softmax_backward_data(grad_share_HQP, share_HQP, -1, torch.float32).to(kv.dtype)
            to_q_HQK[:, tile.queries] = torch.baddbmm(nothing, grad_scores_HQP, keys_HPK, beta=0, alpha=scale)
            turned_HPQ = grad_scores_HQP.transpose(1, 2)
            put(
                to_k_HTK[:, tile.keys],
                torch.baddbmm(nothing, turned_HPQ, q_HQK[:, tile.queries], beta=0, alpha=scale),
            )
        return grad_q_QHK, grad_kv, None, None, None


def _by_head(q_QHK: Tensor | None, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of queries, keys and values with the head first; queries are in `kv`, (T, 3, H, K), where not given."""
    parts = [part.transpose(0, 1) for part in kv.unbind(1)]
    return (parts[0] if q_QHK is None else q_QHK.transpose(0, 1)), parts[-2], parts[-1]


@dataclass(frozen=True, eq=False)
class VarlenLayout(AttentionLayout):
    """Examples one after another on a GPU; what is behind the last one belongs to no example."""

    cu_seqlens: Tensor
    """int32 (B + 1,): where each example starts; the last entry is repeated by unused examples."""
    max_length: int
    """Of an example. A Python number, so that shapes do not depend on the data."""
    num_tokens: int
    """T, with the unused tokens at the end."""
    padded: PaddedLayout = field(init=False)
    """The same, where the kernel cannot be used."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "padded", padded_layout(self.cu_seqlens, self.max_length, self.num_tokens))

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        # The flash kernel takes half precision only and no dropout.
        if dropout_rate or qkv_T3HK.dtype not in (torch.bfloat16, torch.float16):
            return self.padded.attend(qkv_T3HK, window=window, dropout_rate=dropout_rate)
        from torch.nn.attention.varlen import varlen_attn

        reach = (-1, -1) if window is None else (window // 2, window // 2)
        q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
        ends, longest = self.cu_seqlens, self.max_length
        mixed_THK = varlen_attn(q_THK, k_THK, v_THK, ends, ends, longest, longest, window_size=reach)
        assert isinstance(mixed_THK, Tensor)  # a pair only where more was asked for
        return mixed_THK


def padded_layout(cu_seqlens: Tensor, max_length: int, num_tokens: int) -> PaddedLayout:
    """The rows of a stream. No step waits for the device.

    Args:
        cu_seqlens: Integer (B + 1,), as in `VarlenLayout`.
        max_length: Slots per row, at least the longest example.
        num_tokens: T, maybe more than the examples hold.
    """
    starts_B = cu_seqlens[:-1].long()
    lengths_B = cu_seqlens[1:].long() - starts_B
    slot_S = torch.arange(max_length, device=cu_seqlens.device)
    is_real_BS = slot_S < lengths_B[:, None]
    token_BS = (starts_B[:, None] + slot_S).clamp(max=num_tokens - 1)
    token_T = torch.arange(num_tokens, device=cu_seqlens.device)
    row_T = torch.searchsorted(cu_seqlens[1:].long(), token_T, right=True).clamp(max=len(starts_B) - 1)
    slot_T = row_T * max_length + (token_T - starts_B[row_T]).clamp(0, max_length - 1)
    # A row without any token sees itself: a softmax needs a key.
    is_real_BS = is_real_BS | (lengths_B == 0)[:, None]
    return PaddedLayout(len(starts_B), max_length, is_real_BS, token_BS, slot_T)


class SelfAttention(nn.Module):
    """Multi-head attention; queries, keys and values come from one matrix, in this order from top to bottom."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        has_bias: bool,
        dropout_rate: float,
        window: int | None = None,
    ) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.window = window
        self.qkv = nn.Linear(width, 3 * width, bias=has_bias)
        self.out = nn.Linear(width, width, bias=has_bias)

    def stacked_layers(self) -> dict[str, int]:
        return {"qkv": 3}

    def forward(
        self,
        x_TD: Tensor,
        layout: AttentionLayout,
        rotation: Rotation | None = None,
        wanted_W: Tensor | None = None,
    ) -> Tensor:
        """(T, D) to (T, D), or to (W, D): only of the tokens `wanted_W` (int64, ascending)."""
        num_tokens, width = x_TD.shape
        heads = (self.num_heads, width // self.num_heads)
        rate = self.dropout_rate if self.training else 0.0
        if wanted_W is not None and layout.attends_from(x_TD):
            weight, bias = self.qkv.weight, self.qkv.bias
            q_WHK = F.linear(x_TD[wanted_W], weight[:width], None if bias is None else bias[:width]).unflatten(1, heads)
            kv_TE = F.linear(x_TD, weight[width:], None if bias is None else bias[width:])
            kv_T2HK = kv_TE.unflatten(1, (2, *heads))
            if rotation is not None:
                q_WHK = rotate(q_WHK, Rotation(rotation.cos_TJ[wanted_W], rotation.sin_TJ[wanted_W]))
                kv_T2HK = torch.stack((rotate(kv_T2HK[:, 0], rotation), kv_T2HK[:, 1]), dim=1)
            mixed = layout.attend_from(q_WHK, kv_T2HK, wanted_W, window=self.window, dropout_rate=rate)
            return self.out(mixed.flatten(1))
        qkv_T3HK = self.qkv(x_TD).view(num_tokens, 3, *heads)
        if rotation is not None:
            qk_T2HK = rotate(qkv_T3HK[:, :2], rotation)
            qkv_T3HK = torch.cat((qk_T2HK, qkv_T3HK[:, 2:]), dim=1)
        mixed = self.out(layout.attend(qkv_T3HK, window=self.window, dropout_rate=rate).flatten(1))
        return mixed if wanted_W is None else mixed[wanted_W]
