"""Linear layers on frozen features, several at once, each with its own learning rate.

Dimensions: B images of an update, R rows of a chunk, N images, F width of the features, C classes, L learning rates.

Source: specification 13, which is the linear probing of Cui et al. 2022, https://arxiv.org/abs/2112.09331: LARS,
warm-up and cosine on a layer with bias, features neither normalised nor augmented with anything.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.eval.probe_config import ProbeConfig
from pretrainkit.training.optimizers.config import ScheduleConfig
from pretrainkit.training.optimizers.per_tensor import Lars
from pretrainkit.training.optimizers.schedule import lr_factor

_LOGITS_BYTES = 128 * 2**20
"""Of a chunk."""


class Scores(NamedTuple):
    """Of one learning rate, in percent."""

    acc1: float
    acc5: float


class Heads(nn.Module):
    """L linear layers that read the same features and start alike, as `nn.Linear` does.

    A bias that started at 0 would have the norm 0, for which LARS takes the bare learning rate in the first update.
    """

    def __init__(self, num_features: int, num_classes: int, num_heads: int, seed: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        bound = 1 / math.sqrt(num_features)
        generator = torch.Generator().manual_seed(seed)
        weight_CF = torch.empty(num_classes, num_features).uniform_(-bound, bound, generator=generator)
        bias_C = torch.empty(num_classes).uniform_(-bound, bound, generator=generator)
        self.weights = nn.ParameterList(weight_CF.clone() for _ in range(num_heads))
        self.biases = nn.ParameterList(bias_C.clone() for _ in range(num_heads))

    def forward(self, features_BF: Tensor) -> Tensor:
        """(B, L, C)"""
        logits = F.linear(features_BF, torch.cat(list(self.weights)), torch.cat(list(self.biases)))
        return logits.unflatten(1, (len(self.weights), self.num_classes))

    def rows_at_once(self) -> int:
        """So many rows have logits of a bounded size."""
        return max(1, _LOGITS_BYTES // (4 * len(self.weights) * self.num_classes))


def train_heads(
    batches: Iterable[tuple[Tensor, Tensor]],
    num_steps: int,
    num_features: int,
    num_classes: int,
    learning_rates: tuple[float, ...],
    config: ProbeConfig,
    device: torch.device,
) -> Heads:
    """Train one layer for each learning rate; they see the same batches and do not influence one another.

    Args:
        batches: Features float32 (B, F) and labels int64 (B,) of each update, `num_steps` of them.
        num_steps: Updates.
        num_features: F.
        num_classes: C.
        learning_rates: After warm-up.
        config: Warm-up, momentum, decay, seed.
        device: Where the layers live.
    """
    heads = Heads(num_features, num_classes, len(learning_rates), config.seed).to(device)
    groups = [
        {"params": [weight, bias], "lr": lr} for weight, bias, lr in zip(heads.weights, heads.biases, learning_rates)
    ]
    optimizer = Lars(groups, lr=learning_rates[0], momentum=config.momentum, weight_decay=config.weight_decay)
    schedule = ScheduleConfig(name="cosine", num_warmup_steps=round(config.warmup_share * num_steps))
    for step, (features_BF, label_B) in enumerate(batches):
        factor = lr_factor(schedule, num_steps, step)
        for group, lr in zip(optimizer.param_groups, learning_rates):
            group["lr"] = lr * factor
        optimizer.zero_grad(set_to_none=True)
        at_once = heads.rows_at_once()
        for features_RF, label_R in zip(features_BF.split(at_once), label_B.split(at_once)):
            logits_RLC = heads(features_RF)
            losses = F.cross_entropy(
                logits_RLC.flatten(0, 1), label_R.repeat_interleave(logits_RLC.shape[1]), reduction="sum"
            )
            (losses / len(features_BF)).backward()
        optimizer.step()
    return heads


@torch.no_grad()
def score_heads(heads: Heads, features_NF: Tensor, label_N: Tensor) -> list[Scores]:
    """Accuracy of each layer. Of equally likely classes the first counts as likelier."""
    num_right_L2 = torch.zeros(len(heads.weights), 2, dtype=torch.int64, device=features_NF.device)
    at_once = heads.rows_at_once()
    for features_RF, label_R in zip(features_NF.split(at_once), label_N.split(at_once)):
        logits_RLC = heads(features_RF)
        index_RL1 = label_R[:, None, None].expand(-1, logits_RLC.shape[1], 1)
        own_RL1 = logits_RLC.gather(2, index_RL1)
        is_before = (logits_RLC > own_RL1) | (
            (logits_RLC == own_RL1) & (torch.arange(heads.num_classes, device=logits_RLC.device) < index_RL1)
        )
        rank_RL = is_before.sum(2).where(own_RL1[..., 0].isfinite(), heads.num_classes)  # diverged: never right
        num_right_L2 += torch.stack([(rank_RL < 1).sum(0), (rank_RL < 5).sum(0)], dim=1)
    return [Scores(*(100 * num / len(label_N) for num in nums)) for nums in num_right_L2.tolist()]
