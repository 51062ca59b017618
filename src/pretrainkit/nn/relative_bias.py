"""T5's relative position bias: a learned number per head and bucket of distances, added to attention scores.

Dimensions: H heads, N buckets, Q queries, P keys, R = Q + P - 1 distances from -(Q - 1) to P - 1 (key minus query).
Source: Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 2.1. Buckets are finer for short distances.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn


def distance_buckets(distance: Tensor, *, num_buckets: int, max_distance: int, is_bidirectional: bool) -> Tensor:
    """Return the bucket of each distance (position of the key minus that of the query), int64 of the same shape.

    All distances from `max_distance` on share the last bucket of their side. With `is_bidirectional`, later keys use
    the upper half of the buckets; otherwise all later keys are in bucket 0.
    """
    if is_bidirectional:
        side = num_buckets // 2
        first, away = torch.where(distance > 0, side, 0), distance.abs()
    else:
        side = num_buckets
        first, away = torch.zeros_like(distance, dtype=torch.int64), (-distance).clamp(min=0)
    num_exact = side // 2
    # float32, as in the released code: its rounding decides at the limits of the buckets.
    share = (away.clamp(min=1).float() / num_exact).log() / math.log(max_distance / num_exact)
    far = (num_exact + (share * (side - num_exact)).long()).clamp(max=side - 1)
    return first + torch.where(away < num_exact, away.long(), far)


class _Diagonals(torch.autograd.Function):
    """bias[h, q, p] = by_distance[h, p - q + Q - 1]. The backward pass sums each diagonal without indexing."""

    @staticmethod
    def forward(ctx: Any, by_distance_HR: Tensor, num_queries: int) -> Tensor:
        num_keys = by_distance_HR.shape[1] - num_queries + 1
        ctx.num_queries = num_queries
        # Windows of P distances, each shifted by one. The first window is that of the last query, hence the flip.
        return by_distance_HR.unfold(1, num_keys, 1).flip(1)

    @staticmethod
    def backward(ctx: Any, grad_HQP: Tensor) -> tuple[Tensor, None]:
        num_heads, num_queries, num_keys = grad_HQP.shape
        # Reading rows of length P + Q as rows of length P + Q - 1 shifts each query's keys by one more to the right.
        skewed = grad_HQP.new_zeros(num_heads, num_queries, num_keys + num_queries)
        skewed[:, :, :num_keys] = grad_HQP.flip(1)
        num_distances = num_keys + num_queries - 1
        return skewed.flatten(1)[:, : num_queries * num_distances].unflatten(1, (num_queries, -1)).sum(1), None


class RelativeBias(nn.Module):
    """Table of biases of one stack of layers, or of one layer."""

    def __init__(self, num_heads: int, *, num_buckets: int, max_distance: int, is_bidirectional: bool) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.is_bidirectional = is_bidirectional
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads))

    def by_distance(self, first: int, last: int) -> Tensor:
        """Return the biases for the distances first, first + 1, ..., last, (H, last - first + 1)."""
        distance_R = torch.arange(first, last + 1, device=self.weight.device)
        bucket_R = distance_buckets(
            distance_R,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            is_bidirectional=self.is_bidirectional,
        )
        return self.weight[bucket_R].t().contiguous()

    def forward(self, num_queries: int, num_keys: int) -> Tensor:
        """Return the biases (H, Q, P) of queries and keys that start at the same position."""
        return _Diagonals.apply(self.by_distance(1 - num_queries, num_keys - 1), num_queries)
