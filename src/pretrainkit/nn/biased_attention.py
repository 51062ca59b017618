"""Attention with an additive bias between two streams of tokens, within pairs of examples and never across them.

Dimensions: T query tokens, S key tokens (the same stream in self-attention), H heads, K width of one head, Q and P
queries and keys of one row, B rows.

As in `pretrainkit.nn.attention`, a *layout* has the positions of the examples. It is created once per batch and shared
by all layers; all layouts compute the same numbers:

* `RowPairs`: rows and `scaled_dot_product_attention` with one additive mask; works everywhere and is the reference.
* `TiledPairs` (cpu/attention.py): each example separately, without padding.
* `FlexPairs` (cuda/attention.py): FlexAttention, which skips blocks of pairs that do not see each other.

Without a scale, scores are plain dot products: T5 includes the scale in the initial weights of the queries.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.relative_bias import RelativeBias


class PairLayout(ABC):
    """Positions of the examples of two streams, and the pairs of tokens that attend to each other."""

    @abstractmethod
    def prepare(self, bias: RelativeBias | None, dtype: torch.dtype) -> Tensor | None:
        """Prepare the bias for `attend` (None in cross-attention), once for all layers that share it; `dtype` is the
        dtype of the queries."""

    @abstractmethod
    def attend(
        self, q_THK: Tensor | None, kv: Tensor, prepared: Tensor | None, *, dropout_rate: float, scale: float = 1.0
    ) -> Tensor:
        """Compute softmax(scale q k + bias) v over the keys that each query sees.

        Args:
            q_THK: Queries; None: they are the first of the three parts of `kv`.
            kv: (S, 2, H, K) keys and values, or (T, 3, H, K) queries, keys and values.
            dropout_rate: Dropout rate of the attention probabilities, in [0, 1).
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
    """bool: True for keys that a query sees; the first dimension may be 1; None: all."""

    def prepare(self, bias: RelativeBias | None, dtype: torch.dtype) -> Tensor | None:
        added = None if bias is None else bias(self.num_queries, self.num_keys).to(dtype)[None]
        visible = self.is_visible_BQP
        if visible is None:
            return added
        if added is None:
            added = torch.zeros((1, 1, self.num_queries, self.num_keys), dtype=dtype, device=visible.device)
        # A softmax needs a key, so queries that see no key read all of them, and their outputs are set to zero
        # afterwards.
        is_hidden = ~visible & visible.any(-1, keepdim=True)
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
        """Return queries, keys and values, each (B, H, ., K)."""
        heads = kv.shape[2:]
        # (B, P, 2 or 3, H, K) to keys and values, possibly with queries first, each (B, H, P, K): views, no copies.
        parts = kv.view(self.num_rows, self.num_keys, kv.shape[1], *heads).permute(2, 0, 3, 1, 4).unbind(0)
        q_BHQK = parts[0] if q_THK is None else q_THK.view(self.num_rows, self.num_queries, *heads).transpose(1, 2)
        return q_BHQK, parts[-2], parts[-1]

    def _stream(self, mixed_BHQK: Tensor) -> Tensor:
        mixed_BQHK = mixed_BHQK.transpose(1, 2)
        if self.is_visible_BQP is not None:
            mixed_BQHK = mixed_BQHK * self.is_visible_BQP.any(-1)[..., None, None]
        return mixed_BQHK.flatten(0, 1) if mixed_BQHK.is_contiguous() else mixed_BQHK.reshape(-1, *mixed_BQHK.shape[2:])


def visible_pairs(
    query_segment_BQ: Tensor, key_segment_BP: Tensor, *, is_causal: bool = False, is_prefix_BP: Tensor | None = None
) -> Tensor:
    """Return which keys each query of a row sees, bool (B, Q, P).

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
