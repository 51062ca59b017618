"""Attention of many short examples on a CPU, several of them and all heads in each matrix product.

One example at a time, a product of some dozen tokens costs more to call than to compute. Here examples of about the
same size are padded to the same size and lie on each other: a *stack*. The rows of all stacks are gathered once and put
back once; everything between is contiguous.

Dimensions: T tokens that ask, S tokens that are asked, H heads, K width of one head, E examples; G examples of a stack,
Q queries and P keys of each; R rows (a token and a head) of all stacks end to end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SCORES_AT_A_TIME = 1 << 18
"""A quarter of a MB for each of the arrays that a stack takes at a time."""
_MOST_SCORES = 1 << 17
"""Of one example; it is as well off alone from 2 ** 14 on."""
_USUAL_SCORES = 1 << 14
_PADDED_TO = np.array([*range(0, 64, 8), *range(64, 128, 16), *range(128, 513, 32)])
"""Sizes; what is larger has a stack of its own."""


class Lengths(NamedTuple):
    """Examples: where their queries and their keys begin in the streams, and how many there are."""

    first_query_E: NDArray[np.int64]
    num_queries_E: NDArray[np.int64]
    first_key_E: NDArray[np.int64]
    num_keys_E: NDArray[np.int64]
    num_prefix_E: NDArray[np.int64]
    """Causal only: so many tokens at the start all see each other."""


def are_short(lengths: Lengths) -> bool:
    """Whether stacks are faster for these examples than one after another."""
    scores_E = lengths.num_queries_E * lengths.num_keys_E
    return len(scores_E) > 1 and bool(scores_E.max() <= _MOST_SCORES and scores_E.mean() <= _USUAL_SCORES)


@dataclass(frozen=True, eq=False)
class _Stack:
    queries: slice
    """Of the R rows of queries."""
    keys: slice
    """Of the R rows of keys, and of those of values."""
    num: int
    """G x H."""
    hidden: Tensor | None
    """float32 (G x H, Q, P): 0 or minus infinity, which is added to scores; None: all pairs see each other."""

    def queries_of(self, rows_RK: Tensor) -> Tensor:
        """(G x H, Q, K)."""
        return rows_RK[self.queries].view(self.num, -1, rows_RK.shape[1])

    def keys_of(self, rows_RK: Tensor) -> Tensor:
        """(G x H, P, K)."""
        return rows_RK[self.keys].view(self.num, -1, rows_RK.shape[1])


@dataclass(frozen=True, eq=False)
class Stacks:
    """Examples of two streams, stacked for a number of heads. Rows are numbered as in (tokens x heads, K)."""

    stacks: tuple[_Stack, ...]
    asking_R: Tensor
    """int64: which of the T x H rows each row of queries is; any where it is padding."""
    padding: Tensor
    """int64: the rows of queries that are padding."""
    mixed_slots: Tensor
    """int64 (T x H,): the row of queries of each; R, behind the last one, where it has none."""
    queries_R: Tensor
    """int64: rows of queries in the tensor that holds them: q (T, H, K), or kv (T, 3, H, K)."""
    keys_R: Tensor
    """int64: rows of keys in kv; values are H further."""
    kv_slots: Tensor
    """int64: of each row of kv, its row among keys, then values, or queries, then keys, then values; behind the last
    one where it has none."""
    num_heads: int
    has_queries: bool
    """Whether kv has queries too."""

    def attend(self, q_THK: Tensor | None, kv: Tensor, scale: float) -> Tensor:
        """softmax(scale q k) v, (T, H, K). Zeros for queries that see no key."""
        found: Tensor = _StackedAttention.apply(q_THK, kv, self, scale)
        return found


def stack(
    lengths: Lengths, num_tokens: int, num_asked: int, num_heads: int, *, is_causal: bool, has_queries: bool
) -> Stacks:
    """
    Args:
        lengths: Examples with at least one query and one key. No two share a query or a key.
        num_tokens: T.
        num_asked: S.
        num_heads: H.
        is_causal: A query sees keys up to its own number, and those of its prefix.
        has_queries: Queries lie in one tensor with keys and values; T = S.
    """
    stacks, padding = [], []
    asking, asked = _Rows(num_tokens, num_heads), _Rows(num_asked, num_heads)
    for own, num_queries, num_keys in _groups(lengths, num_heads):
        query_Q, key_P = np.arange(num_queries), np.arange(num_keys)
        is_query_GQ = query_Q < lengths.num_queries_E[own, None]
        is_key_GP = key_P < lengths.num_keys_E[own, None]
        is_seen = is_key_GP[:, None]
        if is_causal:
            prefix_G11 = lengths.num_prefix_E[own, None, None]
            is_seen = is_seen & (key_P <= np.maximum(query_Q[:, None], prefix_G11 - 1))
        queries, row_GHQ = asking.add(lengths.first_query_E[own, None] + query_Q, is_query_GQ)
        keys, _ = asked.add(lengths.first_key_E[own, None] + key_P, is_key_GP)
        padding.append(row_GHQ[np.broadcast_to(~is_query_GQ[:, None], row_GHQ.shape)])
        hidden = None if is_seen.all() else _hidden(is_seen, len(own), num_heads, num_queries)
        stacks.append(_Stack(queries, keys, len(own) * num_heads, hidden))
    asking_R, asked_R = asking.sources(), asked.sources()
    key_slots_SH, slots_TH = asked.slots(), asking.slots()
    num_parts, num_queries = (3, asking.num) if has_queries else (2, 0)
    ends = [num_queries, num_queries + asked.num]
    last = ends[1] + asked.num
    parts = [np.where(key_slots_SH == asked.num, last, key_slots_SH + end) for end in ends]
    if has_queries:
        parts.insert(0, np.where(slots_TH == asking.num, last, slots_TH))
    keys_R = _within(asked_R, num_heads, num_parts) + (num_parts - 2) * num_heads
    return Stacks(
        tuple(stacks),
        asking_R=torch.from_numpy(asking_R),
        padding=torch.from_numpy(np.concatenate(padding)),
        mixed_slots=torch.from_numpy(slots_TH.reshape(-1)),
        queries_R=torch.from_numpy(_within(asking_R, num_heads, 3) if has_queries else asking_R),
        keys_R=torch.from_numpy(keys_R),
        kv_slots=torch.from_numpy(np.stack(parts, axis=1).reshape(-1)),
        num_heads=num_heads,
        has_queries=has_queries,
    )


def _within(row_R: NDArray[np.int64], num_heads: int, num_parts: int) -> NDArray[np.int64]:
    """Rows of the first part of a tensor that has several for each token."""
    return row_R + row_R // num_heads * ((num_parts - 1) * num_heads)


def _groups(lengths: Lengths, num_heads: int) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """Numbers of examples, and the queries and keys that they are padded to."""
    sizes_E2 = np.stack([_padded(lengths.num_queries_E), _padded(lengths.num_keys_E)], axis=1)
    sizes, group_E = np.unique(sizes_E2, axis=0, return_inverse=True)
    for number, (num_queries, num_keys) in enumerate(sizes.tolist()):
        own = np.flatnonzero(group_E.reshape(-1) == number)
        at_once = max(1, _SCORES_AT_A_TIME // (num_heads * num_queries * num_keys))
        for first in range(0, len(own), at_once):
            yield own[first : first + at_once], num_queries, num_keys


def _padded(lengths_E: NDArray[np.int64]) -> NDArray[np.int64]:
    place_E = np.minimum(np.searchsorted(_PADDED_TO, lengths_E), len(_PADDED_TO) - 1)
    return np.maximum(_PADDED_TO[place_E], lengths_E)


def _hidden(is_seen: NDArray[np.bool_], num: int, num_heads: int, num_queries: int) -> Tensor:
    num_keys = is_seen.shape[-1]
    added = np.where(is_seen, np.float32(0), np.float32(-np.inf))
    whole = np.broadcast_to(added[:, None], (num, num_heads, num_queries, num_keys))
    return torch.from_numpy(whole.copy().reshape(-1, num_queries, num_keys))


class _Rows:
    """The rows of all stacks of one stream."""

    def __init__(self, num_tokens: int, num_heads: int) -> None:
        self.num = 0
        """R."""
        self._slots_TH = np.full((num_tokens, num_heads), -1)
        self._sources: list[NDArray[np.int64]] = []

    def add(self, token_GQ: NDArray[np.int64], is_real_GQ: NDArray[np.bool_]) -> tuple[slice, NDArray[np.int64]]:
        """The rows of one more stack, and (G, H, Q) their numbers."""
        num_heads = self._slots_TH.shape[1]
        token_GQ = np.where(is_real_GQ, token_GQ, 0)
        self._sources.append((token_GQ[:, None] * num_heads + np.arange(num_heads)[:, None]).reshape(-1))
        rows = slice(self.num, self.num + token_GQ.size * num_heads)
        row_GHQ = np.arange(rows.start, rows.stop).reshape(len(token_GQ), num_heads, -1)
        self._slots_TH[token_GQ[is_real_GQ]] = row_GHQ.swapaxes(1, 2)[is_real_GQ]
        self.num = rows.stop
        return rows, row_GHQ

    def sources(self) -> NDArray[np.int64]:
        """(R,) token x H + head of each row."""
        return np.concatenate(self._sources)

    def slots(self) -> NDArray[np.int64]:
        """(T, H) the row of each token and head, R where it has none."""
        return np.where(self._slots_TH < 0, self.num, self._slots_TH)


class _StackedAttention(torch.autograd.Function):
    """With its gradient written out."""

    @staticmethod
    def forward(ctx: Any, q_THK: Tensor | None, kv: Tensor, plan: Stacks, scale: float) -> Tensor:
        width = kv.shape[-1]
        kv_rows = kv.reshape(-1, width)
        q_rows = kv_rows if q_THK is None else q_THK.reshape(-1, width)
        q_RK = q_rows.index_select(0, plan.queries_R)
        k_RK = kv_rows.index_select(0, plan.keys_R)
        v_RK = kv_rows.index_select(0, plan.keys_R + plan.num_heads)
        mixed_RK = _with_nothing(q_RK, len(q_RK))
        nothing, shares = kv.new_empty(()), []
        for one in plan.stacks:
            q, k, v = one.queries_of(q_RK), one.keys_of(k_RK), one.keys_of(v_RK)
            added, beta = (nothing, 0) if one.hidden is None else (one.hidden.to(q.dtype), 1)
            share = torch.baddbmm(added, q, k.mT, beta=beta, alpha=scale)
            torch.softmax(share, -1, out=share)
            torch.bmm(share, v, out=one.queries_of(mixed_RK))
            shares.append(share)
        ctx.save_for_backward(q_RK, k_RK, v_RK, *shares)
        ctx.plan, ctx.scale, ctx.kv_shape = plan, scale, kv.shape
        return mixed_RK.index_select(0, plan.mixed_slots).view(-1, plan.num_heads, width)

    @staticmethod
    def backward(ctx: Any, grad_THK: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        q_RK, k_RK, v_RK, *shares = ctx.saved_tensors
        plan, width = ctx.plan, q_RK.shape[1]
        grad_RK = grad_THK.reshape(-1, width).index_select(0, plan.asking_R).index_fill_(0, plan.padding, 0)
        num_queries, num_keys = (len(q_RK) if plan.has_queries else 0), len(k_RK)
        found = _with_nothing(q_RK, num_queries + 2 * num_keys)
        to_q_RK = found[:num_queries] if plan.has_queries else _with_nothing(q_RK, len(q_RK))
        to_k_RK, to_v_RK = found[num_queries:-1].split(num_keys)
        nothing = q_RK.new_empty(())
        for one, share in zip(plan.stacks, shares, strict=True):
            q, k, v, above = one.queries_of(q_RK), one.keys_of(k_RK), one.keys_of(v_RK), one.queries_of(grad_RK)
            torch.bmm(share.mT, above, out=one.keys_of(to_v_RK))
            grad_share = torch.bmm(above, v.mT)
            # Softmax backwards: share * (grad - sum(grad * share)); hidden pairs have share 0.
            grad_scores = torch._softmax_backward_data(grad_share, share, -1, share.dtype, grad_input=grad_share)
            torch.baddbmm(nothing, grad_scores, k, beta=0, alpha=ctx.scale, out=one.queries_of(to_q_RK))
            torch.baddbmm(nothing, grad_scores.mT, q, beta=0, alpha=ctx.scale, out=one.keys_of(to_k_RK))
        grad_kv = found.index_select(0, plan.kv_slots).view(ctx.kv_shape)
        if plan.has_queries:
            return None, grad_kv, None, None
        return to_q_RK.index_select(0, plan.mixed_slots).view(grad_THK.shape), grad_kv, None, None


def _with_nothing(like_RK: Tensor, num: int) -> Tensor:
    """(num + 1, K): uninitialised rows, and zeros behind them."""
    found = like_RK.new_empty(num + 1, like_RK.shape[1])
    found[num] = 0
    return found
