"""Attention within rows of equal length: the patches of images, or captions followed by padding.

Dimensions: T tokens of the stream, B rows, S slots of a row, H heads, K width of one head.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.attention import AttentionLayout


@dataclass(frozen=True, eq=False)
class RowLayout(AttentionLayout):
    """B rows of S slots. The stream consists of the rows one after another, or only of real tokens (`without_padding`).

    `attend_from` requires exactly one token of each row, in the order of the rows.
    """

    num_rows: int
    length: int
    is_causal: bool = False
    """True if a token attends only to itself and the tokens before it."""
    num_real_B: Tensor | None = None
    """int64, from 1 to S: number of tokens of each row, before its padding; None: all slots are tokens."""
    token_N: Tensor | None = None
    """int64 (B x S,): token in each slot (any token in padding); None: the stream contains the padding."""
    slot_T: Tensor | None = None
    """int64: row x S + slot of each token; None as for `token_N`."""

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        _refuse_window(window)
        q_BHSK, k_BHSK, v_BHSK = self._by_row(qkv_T3HK)
        visible = None if self.is_causal else self._visible()  # a causal token never sees the padding after it
        mixed_BHSK = F.scaled_dot_product_attention(
            q_BHSK, k_BHSK, v_BHSK, attn_mask=visible, dropout_p=dropout_rate, is_causal=self.is_causal
        )
        mixed_NHK = mixed_BHSK.transpose(1, 2).flatten(0, 1)
        if self.slot_T is None or self.token_N is None:
            return mixed_NHK
        return _FromSlots.apply(mixed_NHK, self.slot_T)

    def attend_from(
        self, q_WHK: Tensor, kv_T2HK: Tensor, query_W: Tensor, *, window: int | None, dropout_rate: float
    ) -> Tensor:
        _refuse_window(window)
        k_BHSK, v_BHSK = self._by_row(kv_T2HK)
        if not self.is_causal:
            visible = self._visible()
        else:  # slots up to the query; each row has one
            slot_B = query_W if self.slot_T is None else self.slot_T[query_W]
            visible = (_slots(self.length, slot_B) <= (slot_B % self.length)[:, None])[:, None, None]
        mixed_BH1K = F.scaled_dot_product_attention(
            q_WHK[:, :, None], k_BHSK, v_BHSK, attn_mask=visible, dropout_p=dropout_rate
        )
        return mixed_BH1K[:, :, 0]

    def _by_row(self, parts_TNHK: Tensor) -> tuple[Tensor, ...]:
        """Return each of the N parts (such as keys and values) as rows, (B, H, S, K)."""
        rows = parts_TNHK
        if self.token_N is not None and self.slot_T is not None:
            rows = _IntoSlots.apply(rows, self.token_N, self.slot_T)
        rows = rows.view(self.num_rows, self.length, *parts_TNHK.shape[1:])
        return tuple(part.transpose(1, 2) for part in rows.unbind(2))

    def is_real(self) -> Tensor | None:
        """Return bool (B, S), True for slots that hold a token; None: all do."""
        return None if self.num_real_B is None else _slots(self.length, self.num_real_B) < self.num_real_B[:, None]

    def _visible(self) -> Tensor | None:
        """Return bool (B, 1, 1, S), the same for all heads and queries."""
        is_real_BS = self.is_real()
        return None if is_real_BS is None else is_real_BS[:, None, None]


def without_padding(layout: RowLayout) -> tuple[RowLayout, Tensor]:
    """Return the layout of the real tokens alone, and their int64 indices (T,) into the rows one after another.

    The number of tokens becomes a shape, so this is for layouts on a CPU. Elsewhere it would wait for the device.
    """
    is_real_BS = layout.is_real()
    if is_real_BS is None:
        raise ValueError("the rows have no padding: num_real_B is None")
    slot_T = is_real_BS.flatten().nonzero()[:, 0]
    # A slot of padding gets the token before it, which attention masks; no row starts with padding.
    token_N = (is_real_BS.flatten().cumsum(0) - 1).clamp_(min=0)
    stream = RowLayout(layout.num_rows, layout.length, layout.is_causal, layout.num_real_B, token_N, slot_T)
    return stream, slot_T


def _slots(length: int, like: Tensor) -> Tensor:
    return torch.arange(length, device=like.device)


def _refuse_window(window: int | None) -> None:
    if window is not None:
        raise ValueError(f"a window of {window} tokens is not supported for rows")


class _IntoSlots(torch.autograd.Function):
    """Map tokens to rows with padding. Padding gets no gradient from attention, so a token's gradient is its slot's."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, token_N: Tensor, slot_T: Tensor) -> Tensor:
        ctx.save_for_backward(slot_T)
        return tokens.index_select(0, token_N)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slot_T,) = ctx.saved_tensors
        return grad.index_select(0, slot_T), None, None


class _FromSlots(torch.autograd.Function):
    """Map rows with padding to tokens."""

    @staticmethod
    def forward(ctx: Any, slots: Tensor, slot_T: Tensor) -> Tensor:
        ctx.save_for_backward(slot_T)
        ctx.num_slots = len(slots)
        return slots.index_select(0, slot_T)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (slot_T,) = ctx.saved_tensors
        return grad.new_zeros(ctx.num_slots, *grad.shape[1:]).index_copy_(0, slot_T, grad), None
