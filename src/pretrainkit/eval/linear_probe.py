"""Classifiers on frozen features: linear layers, several at once, each with its own learning rate; nearest neighbours;
a linear layer that is fitted until convergence.

Dimensions: B images of an update, R rows of a chunk, N images or examples, F or D width of the features, C classes (1
for numbers), L learning rates, Q images to classify, K neighbours.

Sources: the linear probing of Cui et al. 2022, https://arxiv.org/abs/2112.09331: LARS, warm-up and cosine on a layer
with bias; features are neither normalized nor extended. Neighbours: Wu et al. 2018, section 3.4,
https://arxiv.org/abs/1805.01978: each of the K nearest by cosine votes for its class with the weight
exp(cosine / temperature).
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.eval.probe_config import ProbeConfig
from pretrainkit.eval.retrieval import normalised, whole_numbers
from pretrainkit.training.optimizers.config import ScheduleConfig
from pretrainkit.training.optimizers.per_tensor import Lars
from pretrainkit.training.optimizers.schedule import lr_factor

_LOGITS_BYTES = 128 * 2**20
"""Maximum size of the logits of a chunk."""
_SMALLEST_DEVIATION = 1e-6
_MOST_ITERATIONS = 300


class Scores(NamedTuple):
    """Accuracies for one learning rate, in percent."""

    acc1: float
    acc5: float


class Heads(nn.Module):
    """L linear layers that read the same features and start with equal weights, initialized like `nn.Linear`.

    A zero bias would have the norm 0, and LARS would use the unscaled learning rate for it in the first update.
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
        """Return logits (B, L, C)."""
        logits = F.linear(features_BF, torch.cat(list(self.weights)), torch.cat(list(self.biases)))
        return logits.unflatten(1, (len(self.weights), self.num_classes))

    def rows_at_once(self) -> int:
        """Return the number of rows whose logits have at most the size of a chunk."""
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
    """Train one layer for each learning rate, on the same batches and independently of one another.

    `batches` yields features float32 (B, F) and labels int64 (B,) of `num_steps` updates. Warm-up, momentum, decay and
    seed come from `config`.
    """
    heads = Heads(num_features, num_classes, len(learning_rates), config.seed).to(device)
    groups = [
        {"params": [weight, bias], "lr": lr} for weight, bias, lr in zip(heads.weights, heads.biases, learning_rates)
    ]
    optimizer = Lars(groups, lr=learning_rates[0], momentum=config.momentum, weight_decay=config.weight_decay)
    schedule = ScheduleConfig(name="cosine", warmup_share=config.warmup_share)
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
    """Return the accuracies of each layer. Of equally likely classes the first one counts as more likely."""
    num_right_L2 = torch.zeros(len(heads.weights), 2, dtype=torch.int64, device=features_NF.device)
    at_once = heads.rows_at_once()
    for features_RF, label_R in zip(features_NF.split(at_once), label_N.split(at_once)):
        logits_RLC = heads(features_RF)
        index_RL1 = label_R[:, None, None].expand(-1, logits_RLC.shape[1], 1)
        own_RL1 = logits_RLC.gather(2, index_RL1)
        # Classes before the right one: those with a higher logit, or with the same logit and a lower number.
        is_before = (logits_RLC > own_RL1) | (
            (logits_RLC == own_RL1) & (torch.arange(heads.num_classes, device=logits_RLC.device) < index_RL1)
        )
        rank_RL = is_before.sum(2).where(own_RL1[..., 0].isfinite(), heads.num_classes)  # diverged: never right
        num_right_L2 += torch.stack([(rank_RL < 1).sum(0), (rank_RL < 5).sum(0)], dim=1)
    return [Scores(*(100 * num / len(label_N) for num in nums)) for nums in num_right_L2.tolist()]


@torch.no_grad()
def knn_accuracy(
    query_QF: Tensor,
    query_label_Q: Tensor,
    train_NF: Tensor,
    train_label_N: Tensor,
    *,
    num_classes: int,
    num_neighbours: int = 20,
    temperature: float = 0.07,
    megabytes: int = 128,
) -> float:
    """Return the percentage of queries whose class gets the most votes; in a tie the class with the lower number wins.

    Of equally near training images the first ones vote. If there are fewer training images than neighbours, all vote.
    """
    num_neighbours = min(num_neighbours, len(train_NF))
    query, train = (whole_numbers(normalised(vectors)) for vectors in (query_QF, train_NF))
    unit = float(query.norm(dim=1).max() * train.norm(dim=1).max())
    at_once = max(1, megabytes * 2**20 // (20 * len(train_NF)))
    num_right = 0
    for rows in torch.arange(len(query), device=query.device).split(at_once):
        score_QN = query[rows] @ train.T
        # All images above the score of the last neighbour vote, and the first of those with this score, until K have
        # voted.
        last_Q1 = score_QN.topk(num_neighbours, dim=1).values[:, -1:]
        is_above_QN, is_equal_QN = score_QN > last_Q1, score_QN == last_Q1
        num_left_Q1 = num_neighbours - is_above_QN.sum(1, keepdim=True)
        votes_QN = is_above_QN | (is_equal_QN & (is_equal_QN.cumsum(1) <= num_left_Q1))
        voter_QK = votes_QN.nonzero()[:, 1].view(len(rows), num_neighbours)
        weight_QK = (score_QN.gather(1, voter_QK) / unit / temperature - 1 / temperature).exp()
        total_QC = torch.zeros(len(rows), num_classes, dtype=weight_QK.dtype, device=query.device)
        total_QC.scatter_add_(1, train_label_N[voter_QK], weight_QK)
        num_right += int((total_QC.argmax(1) == query_label_Q[rows]).sum())
    return 100 * num_right / len(query)


def fit_linear(x_ND: Tensor, label_N: Tensor, num_classes: int, l2: float) -> tuple[Tensor, Tensor]:
    """Fit a multinomial logistic regression, or a ridge regression if the labels are numbers. Uses no random numbers.

    Args:
        x_ND: Features, on any device; the computation is on the CPU in float64.
        label_N: int64 numbers of classes, or floating-point numbers.
        l2: Half of it times the squared weights (not biases) of standardized features is added to the mean loss, which
            for numbers is half of the squared error.

    Returns:
        (C, D) weights and (C,) biases for the features as passed, float32 on the CPU.
    """
    x_ND, label_N = x_ND.detach().cpu().double(), label_N.cpu()
    mean_D, deviation_D = x_ND.mean(0), x_ND.std(0, correction=0).clamp(min=_SMALLEST_DEVIATION)
    x_ND = (x_ND - mean_D) / deviation_D
    if label_N.is_floating_point():
        weight_CD, bias_C = _ridge(x_ND, label_N.double(), l2)
    else:
        weight_CD, bias_C = _logistic(x_ND, label_N, num_classes, l2)
    weight_CD = weight_CD / deviation_D
    return weight_CD.float(), (bias_C - weight_CD @ mean_D).float()


def _ridge(x_ND: Tensor, label_N: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    mean = label_N.mean()
    gram_DD = x_ND.T @ x_ND / len(x_ND) + l2 * torch.eye(x_ND.shape[1], dtype=x_ND.dtype)
    weight_D = torch.linalg.solve(gram_DD, x_ND.T @ (label_N - mean) / len(x_ND))
    return weight_D[None], mean[None]


def _logistic(x_ND: Tensor, label_N: Tensor, num_classes: int, l2: float) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        weight_CD = torch.zeros(num_classes, x_ND.shape[1], dtype=x_ND.dtype, requires_grad=True)
        bias_C = torch.zeros(num_classes, dtype=x_ND.dtype, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight_CD, bias_C], max_iter=_MOST_ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            total = F.cross_entropy(F.linear(x_ND, weight_CD, bias_C), label_N) + l2 / 2 * weight_CD.square().sum()
            total.backward()
            return total

        optimizer.step(loss)
    return weight_CD.detach(), bias_C.detach()
