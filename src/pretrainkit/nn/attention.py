"""Self-attention within the examples of a stream of tokens, never across them.

Dimensions: T tokens of the stream, B examples, S slots of a padded row, H heads, K width of one head, D = H x K.

A *layout* has the positions of the examples in the stream. It is created once per batch and shared by all layers. All
layouts compute the same numbers:

* `PaddedLayout`: rows of equal length and `scaled_dot_product_attention`; works everywhere and is the reference.
* `RowLayout` (row_layout.py): rows of an image's patches or a caption's tokens.
* `ReadLayout`: any layout, in a block of whose outputs only some are needed.
* `TiledLayout` (cpu/attention.py): each example separately, without padding.
* `VarlenLayout` (cuda/attention.py): half precision, the variable-length flash kernel.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.compiled import vary
from pretrainkit.nn.cpu.dispatch import drops_padding
from pretrainkit.nn.rotary import Rotation, rotate


class AttentionLayout(ABC):
    """Positions of the examples of a batch in its stream of tokens."""

    @abstractmethod
    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        """Compute the attention of every token to the tokens of its own example.

        Args:
            qkv_T3HK: Queries, keys and values.
            window: Number of tokens seen around a token, half on each side; None: the whole example.
            dropout_rate: Dropout rate of the attention probabilities, in [0, 1).

        Returns:
            (T, H, K). Tokens that belong to no example give finite numbers without meaning.
        """

    def attend_from(
        self, q_WHK: Tensor, kv_T2HK: Tensor, query_W: Tensor, *, window: int | None, dropout_rate: float
    ) -> Tensor | None:
        """Attend like `attend`, but only with the queries `q_WHK` of some tokens. `query_W` has the int64 indices of
        these tokens, ascending. Returns (W, H, K), or None if this layout can only compute all tokens."""
        return None

    def query_rows(self, x_TD: Tensor) -> Tensor:
        """Return the rows of `x_TD` that belong to query tokens. Default: all rows."""
        return x_TD

    def reading(self, read_R: Tensor) -> "ReadLayout":
        """Return the layout of a block whose outputs are needed only at these int64 indices into the stream.

        The block then computes only these tokens, with the same numbers and less work. `ReadLayout.read` puts its
        outputs into the order of `read_R`.
        """
        if drops_padding(read_R):
            return ReadLayout(self, *read_R.unique(return_inverse=True))
        vary(read_R)
        return ReadLayout(self, read_R, None)


@dataclass(frozen=True, eq=False)
class ReadLayout(AttentionLayout):
    """A layout in which only some tokens are queries; see `AttentionLayout.reading`."""

    layout: AttentionLayout
    """Layout of all tokens."""
    query_W: Tensor
    """int64: indices into the stream of the query tokens."""
    place_R: Tensor | None
    """int64: place in `query_W` of each token that is read; None: the tokens of `query_W` are read in order."""

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        rest: dict[str, Any] = {"window": window, "dropout_rate": dropout_rate}
        some = self.layout.attend_from(self.query_rows(qkv_T3HK[:, 0]), qkv_T3HK[:, 1:], self.query_W, **rest)
        return self.query_rows(self.layout.attend(qkv_T3HK, **rest)) if some is None else some

    def query_rows(self, x_TD: Tensor) -> Tensor:
        return x_TD.index_select(0, self.query_W)

    def read(self, x_WD: Tensor) -> Tensor:
        """Return a block's outputs in the order in which they are read, (R, D)."""
        return x_WD if self.place_R is None else x_WD.index_select(0, self.place_R)


@dataclass(frozen=True, eq=False)
class PaddedLayout(AttentionLayout):
    """Examples in rows of S slots."""

    num_rows: int
    length: int
    is_real_BS: Tensor | None
    """bool: True for slots that hold a token; None: all."""
    token_BS: Tensor | None = None
    """int64: token in each slot (any token in empty slots); None: the stream consists of the rows one after another."""
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
        """Return which keys each query sees, bool (B or 1, 1, S, S); None: all."""
        visible = None
        if self.is_real_BS is not None:
            visible = self.is_real_BS[:, None, None, :]
        if window is not None and self.length > window // 2 + 1:
            slot_S = torch.arange(self.length, device=device)
            distance_SS = (slot_S[:, None] - slot_S).abs()
            is_near_SS = distance_SS <= window // 2
            # A query without any visible key has no softmax, so empty slots attend to themselves.
            visible = is_near_SS[None, None] if visible is None else visible & is_near_SS | (distance_SS == 0)
        return visible


def padded_layout(cu_seqlens: Tensor, max_length: int, num_tokens: int) -> PaddedLayout:
    """Return the layout of a stream. `cu_seqlens` is integer (B + 1,) as in `VarlenLayout`, `max_length` the number of
    slots per row, at least the longest example, and `num_tokens` is T, which may be more than the examples contain.
    Nothing waits for the device."""
    starts_B = cu_seqlens[:-1].long()
    lengths_B = cu_seqlens[1:].long() - starts_B
    slot_S = torch.arange(max_length, device=cu_seqlens.device)
    is_real_BS = slot_S < lengths_B[:, None]
    token_BS = (starts_B[:, None] + slot_S).clamp(max=num_tokens - 1)
    token_T = torch.arange(num_tokens, device=cu_seqlens.device)
    row_T = torch.searchsorted(cu_seqlens[1:].long(), token_T, right=True).clamp(max=len(starts_B) - 1)
    slot_T = row_T * max_length + (token_T - starts_B[row_T]).clamp(0, max_length - 1)
    # A row without any token attends to itself, because a softmax needs a key.
    is_real_BS = is_real_BS | (lengths_B == 0)[:, None]
    return PaddedLayout(len(starts_B), max_length, is_real_BS, token_BS, slot_T)


class SelfAttention(nn.Module):
    """Multi-head attention. One matrix computes queries, keys and values, in this order from top to bottom."""

    def __init__(
        self, width: int, num_heads: int, *, has_bias: bool, dropout_rate: float, window: int | None = None
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

    def forward(self, x_TD: Tensor, layout: AttentionLayout, rotation: Rotation | None = None) -> Tensor:
        """Map (T, D) to (T, D)."""
        qkv_T3HK = self.qkv(x_TD).unflatten(1, (3, self.num_heads, -1))
        if rotation is not None:
            qkv_T3HK = torch.cat((rotate(qkv_T3HK[:, :2], rotation), qkv_T3HK[:, 2:]), dim=1)
        rate = self.dropout_rate if self.training else 0.0
        return self.out(layout.attend(qkv_T3HK, window=self.window, dropout_rate=rate).flatten(1))
