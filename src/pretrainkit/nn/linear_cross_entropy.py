"""Cross-entropy of a linear layer's outputs against target ids, without keeping more than it must.

Dimensions: K predictions, D width, V vocabulary, C entries of one chunk of the vocabulary.

A CPU takes a path of its own: the vocabulary goes by in chunks that stay in the cache (matrix products with
30 000 columns run at two thirds of the speed there), exp(logits - their maximum) replace each chunk's logits, and the
backward pass multiplies those directly: softmax over V = what is kept * a factor of the chunk. Elsewhere plain logits
and `F.cross_entropy` in float32, which torch.compile fuses.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK, _LOGITS = 2000, 1 << 21
"""Entries at least, and logits about, of a chunk: they stay in the cache."""


class TokenLoss(NamedTuple):
    """What became of each prediction."""

    nll_K: Tensor
    """float32: minus the natural log of the probability of the target."""
    is_right_K: Tensor
    """bool: no other id has a higher logit. No gradient."""
    log_sum_K: Tensor
    """float32: log of the sum of the exponentials of all logits, which normalises them."""


class _ChunkedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_K: Tensor) -> Any:
        dtype = x_KD.dtype
        size = max(_CHUNK, _LOGITS // max(1, len(x_KD)))
        starts, exponentials = range(0, len(weight_VD), size), []
        found_N3K = weight_VD.new_zeros(len(starts), 3, len(x_KD), dtype=torch.float32)
        for start, found_3K in zip(starts, found_N3K, strict=True):
            weight_CD = weight_VD[start : start + size]
            bias_C = None if bias_V is None else bias_V[start : start + size]
            if dtype == torch.float32:
                logits_KC = F.linear(x_KD, weight_CD, bias_C)
            else:
                logits_KC = F.linear(x_KD, weight_CD.to(dtype)).float()
                logits_KC = logits_KC if bias_C is None else logits_KC.add_(bias_C)
            _exponentials(logits_KC, target_K, found_3K, start)
            exponentials.append(logits_KC)
        max_NK, sum_NK, target_logit_NK = found_N3K.unbind(1)
        max_K, target_logit_K = max_NK.amax(0), target_logit_NK.sum(0)
        # Of each chunk, relative to the largest logit of all, so that large logits cost no precision.
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
        grad_x_KD = weight_VD[target_K].mul_(-grad_nll_K[:, None])
        grad_weight_VD = torch.empty_like(weight_VD)
        grad_bias_V = weight_VD.new_empty(len(weight_VD)) if ctx.has_bias else None
        grad_K = grad_nll_K + grad_log_sum_K  # of the log-sum, which is in both
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


def _exponentials(logits_KC: Tensor, target_K: Tensor, found_3K: Tensor, first: int) -> None:
    """Logits to exp(x - max), and maxima, sums, and the logits of targets (left as they are where the target is none of
    these entries, which begin with id `first`) into `found_3K`."""
    num = logits_KC.shape[1]
    is_here_K = (target_K >= first) & (target_K < first + num)
    entry_K = logits_KC.gather(1, (target_K - first).clamp(0, num - 1)[:, None])[:, 0]
    torch.where(is_here_K, entry_K, found_3K[2], out=found_3K[2])
    torch.amax(logits_KC, 1, out=found_3K[0])
    shift_K = found_3K[0].clamp(min=torch.finfo(torch.float32).min)  # where all are minus infinity
    torch.sum(logits_KC.sub_(shift_K[:, None]).exp_(), 1, out=found_3K[1])


def linear_cross_entropy(x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_K: Tensor) -> TokenLoss:
    """Cross-entropy of softmax(x W^T + b) at `target_K`.

    Args:
        x_KD: Float, any precision; the loss is float32.
        weight_VD: W.
        bias_V: Added to the logits; None: nothing.
        target_K: Integer ids in [0, V).
    """
    target_K = target_K.long()
    if torch.is_autocast_enabled("cpu") and x_KD.device.type == "cpu":
        x_KD = x_KD.to(torch.get_autocast_dtype("cpu"))
    is_float32_cpu = weight_VD.device.type == "cpu" and weight_VD.dtype == torch.float32
    if is_float32_cpu and not torch.compiler.is_compiling():
        return TokenLoss(*_ChunkedLinearCrossEntropy.apply(x_KD, weight_VD, bias_V, target_K))
    logits_KV = linear_logits(x_KD, weight_VD, bias_V)
    nll_K = F.cross_entropy(logits_KV, target_K, reduction="none")
    target_logit_K = logits_KV.gather(1, target_K[:, None])[:, 0]
    with torch.no_grad():
        is_right_K = target_logit_K >= logits_KV.amax(1)
    return TokenLoss(nll_K, is_right_K, nll_K + target_logit_K)


def linear_logits(x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """x W^T + b in float32, (K, V)."""
    return F.linear(x_KD, weight_VD, None if bias_V is None else bias_V.to(x_KD.dtype)).float()
