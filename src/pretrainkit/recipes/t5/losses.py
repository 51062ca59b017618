"""The loss of target tokens: cross-entropy with label smoothing, and the z-loss; and what it is divided by.

Dimensions: K target tokens, G numbers of examples, V vocabulary.
Source: T5X (`t5x/losses.py`). The constant that it subtracts with label smoothing makes a perfect prediction score 0.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pretrainkit.recipes.t5.config import T5ObjectiveConfig
from pretrainkit.recipes.t5.inputs import T5Targets
from pretrainkit.recipes.t5.model import TokenScores
from pretrainkit.training.objective import LossSum

CROSS_ENTROPY, Z_LOSS = "cross_ent_loss", "z_loss"
PER_TOKEN, ACCURACY = "loss_per_nonpadding_target_token", "accuracy"


class TokenLosses(NamedTuple):
    """Of each target token, float32, before weights."""

    cross_entropy_K: Tensor
    z_K: Tensor


def token_losses(scores: TokenScores, vocab_size: int, *, label_smoothing: float, z_loss: float) -> TokenLosses:
    """Both losses of each token; the training loss is their sum.

    With probability 1 - s on the target and q = s / (V - 1) on every other token, the cross-entropy is logsumexp(x) -
    (1 - s - q) x_target - q sum(x), less the entropy of that distribution. s is `label_smoothing`, in [0, 1); where it
    is not 0, `scores` have `logit_sum_K`. `z_loss` is the factor of logsumexp(x) ** 2.
    """
    log_sum_K = scores.loss.log_sum_K
    z_K = z_loss * log_sum_K.square() if z_loss else torch.zeros_like(log_sum_K)
    if not label_smoothing:
        return TokenLosses(scores.loss.nll_K, z_K)
    if scores.logit_sum_K is None:
        raise ValueError(f"label_smoothing is {label_smoothing}, but the model was not asked for the sum of its logits")
    other = label_smoothing / (vocab_size - 1)
    target_logit_K = log_sum_K - scores.loss.nll_K
    soft_K = log_sum_K - (1 - label_smoothing - other) * target_logit_K - other * scores.logit_sum_K
    return TokenLosses(soft_K - smoothed_entropy(label_smoothing, vocab_size), z_K)


def smoothed_entropy(label_smoothing: float, vocab_size: int) -> float:
    """Of the smoothed target, in nats."""
    kept, other = 1 - label_smoothing, label_smoothing / (vocab_size - 1)
    return -(kept * math.log(kept) + (vocab_size - 1) * other * math.log(other + 1e-20))


def loss_sums(
    losses: TokenLosses, targets: T5Targets, weight: Tensor, config: T5ObjectiveConfig, examples_per_step: int
) -> dict[str, LossSum]:
    """Both losses, to be added over microbatches and ranks; the training loss of a step is the sum of their means.
    `weight` is that of `loss_weight`; `examples_per_step` are in the batches of all microbatches and ranks."""
    weight_K = targets.weight_K
    if config.normalize_by == "average_per_sequence":
        weight_K = share_of_example(targets)
    scale = loss_scale(config, examples_per_step)
    return {
        CROSS_ENTROPY: LossSum((losses.cross_entropy_K * weight_K).sum() * scale, weight),
        Z_LOSS: LossSum((losses.z_K * weight_K).sum() * scale, weight),
    }


def token_sums(losses: TokenLosses, scores: TokenScores, targets: T5Targets) -> dict[str, LossSum]:
    """Per target token, without gradient: both losses together, and the share of right guesses."""
    weight_K = targets.weight_K
    both_K = (losses.cross_entropy_K + losses.z_K).detach()
    total = weight_K.sum()
    return {
        PER_TOKEN: LossSum((both_K * weight_K).sum(), total),
        ACCURACY: LossSum((scores.loss.is_right_K * weight_K).sum(), total),
    }


def component_sums(losses: TokenLosses, targets: T5Targets, names: Sequence[str]) -> dict[str, LossSum]:
    """Both losses together per target token of each component, by the name of its metric; without gradient."""
    if targets.component_K is None:
        raise ValueError(f"the batch does not say which of {len(names)} components its examples are of")
    both_K = (losses.cross_entropy_K + losses.z_K).detach()
    totals = _sum_by_example(both_K * targets.weight_K, targets.component_K, len(names))
    weights = _sum_by_example(targets.weight_K, targets.component_K, len(names))
    return {name: LossSum(*pair) for name, *pair in zip(names, totals.unbind(), weights.unbind(), strict=True)}


def loss_weight(weight_RQ: Tensor, example_RQ: Tensor, config: T5ObjectiveConfig) -> Tensor:
    """What a microbatch adds to the divisor of the loss, a float32 scalar, from the loss weights of all its target
    positions and from `target_examples`."""
    if config.normalize_by == "real_target_tokens":
        return weight_RQ.sum(dtype=torch.float32)
    if config.normalize_by == "average_per_sequence":
        sums = _sum_by_example(weight_RQ.float().flatten(), example_RQ.flatten(), _num_groups(example_RQ))
        return (sums > 0).sum(dtype=torch.float32)
    # Divided by nothing or by a number: `loss_scale` makes up for this count of the examples of a step.
    num = weight_RQ.numel() if config.normalize_by == "total_target_tokens" else len(weight_RQ)
    return torch.full((), num, dtype=torch.float32, device=weight_RQ.device)


def loss_scale(config: T5ObjectiveConfig, examples_per_step: int) -> float:
    """The factor of both sums where `loss_weight` counts examples, but the divisor is none or a number."""
    if config.normalize_by == "none":
        return float(examples_per_step)
    if isinstance(config.normalize_by, float):
        return examples_per_step / config.normalize_by
    return 1.0


def share_of_example(targets: T5Targets) -> Tensor:
    """float32 (K,): the weights of each example scaled to a sum of 1."""
    sums = _sum_by_example(targets.weight_K, targets.example_K, targets.num_groups)
    return targets.weight_K / sums[targets.example_K].clamp(min=torch.finfo(torch.float32).tiny)


def log_likelihoods(scores: TokenScores, targets: T5Targets) -> Tensor:
    """float32 (G,): of each example's whole target, without smoothing and z-loss; 0 for numbers no example has."""
    return _sum_by_example(-scores.loss.nll_K * targets.weight_K, targets.example_K, targets.num_groups)


def _sum_by_example(value: Tensor, example: Tensor, num_groups: int) -> Tensor:
    return value.new_zeros(num_groups).index_add(0, example, value)


def _num_groups(example_RQ: Tensor) -> int:
    return len(example_RQ) * (example_RQ.shape[1] + 1)
