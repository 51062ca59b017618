"""Cross-entropy of a linear layer's outputs on a CPU, a part of the vocabulary at a time.

The vocabulary is processed in chunks that stay in the cache (matrix products with 30,000 columns run at two thirds of
the speed there). exp(logits - their maximum) replaces each chunk's logits, and the backward pass multiplies these
directly: softmax over V = stored exponentials * a factor of the chunk. Measurements: benchmarks/RESULTS.md, section
"By hand".

Dimensions: K predictions, D width, V vocabulary, C entries of one chunk of the vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK, _LOGITS = 2000, 1 << 21
"""Minimum number of entries, and approximate number of logits, of a chunk, so that it stays in the cache."""


def chunked_cross_entropy(
    x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_K: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parts of `TokenLoss` for logits x W^T + b and int64 targets; W is float32."""
    parts: tuple[Tensor, Tensor, Tensor] = _ChunkedCrossEntropy.apply(x_KD, weight_VD, bias_V, target_K)
    return parts


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_K: Tensor) -> Any:
        dtype = x_KD.dtype
        size = max(_CHUNK, _LOGITS // max(1, len(x_KD)))
        starts, exponentials = range(0, len(weight_VD), size), []
        stats_N3K = weight_VD.new_zeros(len(starts), 3, len(x_KD), dtype=torch.float32)
        for start, stats_3K in zip(starts, stats_N3K, strict=True):
            weight_CD = weight_VD[start : start + size]
            bias_C = None if bias_V is None else bias_V[start : start + size]
            if dtype == torch.float32:
                logits_KC = F.linear(x_KD, weight_CD, bias_C)
            else:
                logits_KC = F.linear(x_KD, weight_CD.to(dtype)).float()
                logits_KC = logits_KC if bias_C is None else logits_KC.add_(bias_C)
            _exponentials(logits_KC, target_K, stats_3K, start)
            exponentials.append(logits_KC)
        max_NK, sum_NK, target_logit_NK = stats_N3K.unbind(1)
        max_K, target_logit_K = max_NK.amax(0), target_logit_NK.sum(0)
        # Factors of chunks are relative to the largest logit of all, so that large logits lose no precision.
        factor_NK = (max_NK - max_K).exp_()
        sum_K = (sum_NK * factor_NK).sum(0)
        is_right_K = target_logit_K >= max_K
        ctx.save_for_backward(x_KD, weight_VD, target_K, factor_NK / sum_K, *exponentials)
        ctx.starts, ctx.has_bias = starts, bias_V is not None
        ctx.mark_non_differentiable(is_right_K)
        log_K = sum_K.log_()
        return max_K - target_logit_K + log_K, is_right_K, max_K + log_K

    @staticmethod
    def backward(ctx: Any, grad_nll_K: Tensor, _grad_is_right: Tensor, grad_log_sum_K: Tensor) -> Any:
        x_KD, weight_VD, target_K, share_NK, *exponentials = ctx.saved_tensors
        # The target's own part of the gradient is -1 x its row of W; softmax adds the rest chunk by chunk.
        grad_x_KD = weight_VD[target_K].mul_(-grad_nll_K[:, None])
        grad_weight_VD = torch.empty_like(weight_VD)
        grad_bias_V = weight_VD.new_empty(len(weight_VD)) if ctx.has_bias else None
        grad_K = grad_nll_K + grad_log_sum_K  # gradient of the log-sum, which is part of both outputs
        for start, chunk_KC, share_K in zip(ctx.starts, exponentials, share_NK, strict=True):
            stop = min(start + ctx.starts.step, len(weight_VD))
            factor_K = grad_K * share_K
            low_KC = chunk_KC.to(x_KD.dtype)
            weight_DC = weight_VD[start:stop].to(x_KD.dtype).t()
            grad_x_KD.addcmul_(F.linear(low_KC, weight_DC), factor_K[:, None])
            scaled_KD = (x_KD * factor_K[:, None]).to(x_KD.dtype)
            if x_KD.dtype == torch.float32:
                torch.mm(low_KC.t(), scaled_KD, out=grad_weight_VD[start:stop])
            else:
                grad_weight_VD[start:stop] = low_KC.t() @ scaled_KD
            if grad_bias_V is not None:
                torch.mv(chunk_KC.t(), factor_K, out=grad_bias_V[start:stop])
        grad_weight_VD.index_add_(0, target_K, x_KD * -grad_nll_K[:, None])
        if grad_bias_V is not None:
            grad_bias_V.index_add_(0, target_K, -grad_nll_K)
        return grad_x_KD.to(x_KD.dtype), grad_weight_VD, grad_bias_V, None


def _exponentials(logits_KC: Tensor, target_K: Tensor, stats_3K: Tensor, first: int) -> None:
    """Replace logits by exp(x - max), and write maxima, sums, and the logits of targets into `stats_3K`. The entries
    start with id `first`; logits of targets outside of them do not change."""
    num = logits_KC.shape[1]
    is_here_K = (target_K >= first) & (target_K < first + num)
    # Targets in other chunks are clamped to an arbitrary entry of this one, whose value is not used below.
    entry_K = logits_KC.gather(1, (target_K - first).clamp(0, num - 1)[:, None])[:, 0]
    torch.where(is_here_K, entry_K, stats_3K[2], out=stats_3K[2])
    torch.amax(logits_KC, 1, out=stats_3K[0])
    shift_K = stats_3K[0].clamp(min=torch.finfo(torch.float32).min)  # if all logits are minus infinity
    torch.sum(logits_KC.sub_(shift_K[:, None]).exp_(), 1, out=stats_3K[1])


def lookup_in_head(weight_VD: Tensor, ids_T: Tensor) -> tuple[Tensor, Tensor]:
    """Look up rows of the head's matrix. Returns the rows, and the matrix for the head.

    The gradient of the rows is added to the head's in place, which saves a table of zeros and a sum: 6 % of a step of 4
    layers of width 256, 3 % of 12 layers of width 768.
    """
    result: tuple[Tensor, Tensor] = _LookupInHead.apply(weight_VD, ids_T)
    return result


class _LookupInHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VD: Tensor, ids_T: Tensor) -> Any:
        ctx.save_for_backward(ids_T)
        return F.embedding(ids_T, weight_VD), weight_VD.view_as(weight_VD)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor, grad_VD: Tensor) -> Any:
        # Sum per id first, like the gradient of an embedding, so that rounding is the same.
        ids_U, index_T = ctx.saved_tensors[0].unique(return_inverse=True)
        sum_UD = grad_TD.new_zeros(len(ids_U), grad_TD.shape[1]).index_add_(0, index_T, grad_TD)
        # Nothing else holds this tensor: the head created it for this node, or it is zeros if nothing was predicted.
        return grad_VD.index_add_(0, ids_U, sum_UD), None
