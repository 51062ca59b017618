"""Cross-entropy of a linear layer's outputs against target ids.

On a CPU it processes a part of the vocabulary at a time. Elsewhere it creates several float32 matrices of logits unless
it is compiled (`LinearCrossEntropy`).

Dimensions: K predictions, D width, V vocabulary.
"""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import activation_dtype
from pretrainkit.nn.cpu.cross_entropy import chunked_cross_entropy, lookup_in_head
from pretrainkit.nn.cpu.dispatch import chunks_vocabulary


class TokenLoss(NamedTuple):
    """Loss and statistics of each prediction."""

    nll_K: Tensor
    """float32: minus the natural log of the probability of the target."""
    is_right_K: Tensor
    """bool: True if no other id has a higher logit. No gradient."""
    log_sum_K: Tensor
    """float32: log of the sum of the exponentials of all logits, the normalizer of the softmax."""


def linear_cross_entropy(x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_K: Tensor) -> TokenLoss:
    """Return the cross-entropy of softmax(x W^T + b) at `target_K`, integer ids in [0, V). `bias_V` is optional. x is
    float of any precision; the loss is float32."""
    target_K = target_K.long()
    if chunks_vocabulary(weight_VD):
        x_KD = x_KD.to(activation_dtype(x_KD))
        return TokenLoss(*chunked_cross_entropy(x_KD, weight_VD, bias_V, target_K))
    logits_KV = linear_logits(x_KD, weight_VD, bias_V)
    nll_K = F.cross_entropy(logits_KV, target_K, reduction="none")
    with torch.no_grad():
        is_right_K = logits_KV.gather(1, target_K[:, None])[:, 0] >= logits_KV.amax(1)
    return TokenLoss(nll_K, is_right_K, logits_KV.logsumexp(1))


class LinearCrossEntropy(nn.Module):
    """`linear_cross_entropy` as a module, compiled together with a model's blocks (`pretrainkit.dist.parallelize`).

    If compiled, at most two matrices (K, V) exist at a time, in the type of the product and not wider: the logits,
    which are kept for the backward pass, and their gradient there.
    """

    is_compiled_apart: ClassVar[bool] = True

    def forward(self, x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_K: Tensor) -> TokenLoss:
        return linear_cross_entropy(x_KD, weight_VD, bias_V, target_K)


def tied_lookup(weight_VD: Tensor, ids_T: Tensor) -> tuple[Tensor, Tensor]:
    """Look up ids in an embedding table shared with the head. Returns the rows (T, D), and the table for the head."""
    if chunks_vocabulary(weight_VD) and torch.is_grad_enabled():
        return lookup_in_head(weight_VD, ids_T)
    return F.embedding(ids_T, weight_VD), weight_VD


def linear_logits(x_KD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """Return x W^T + b in float32, (K, V)."""
    return F.linear(x_KD, weight_VD, None if bias_V is None else bias_V.to(x_KD.dtype)).float()
