"""Contrastive losses over rows of similarities, computed for a few rows at a time to save memory.

Dimensions: b rows (queries) of this rank, M columns (keys) to compare with, D embedding width, C rows of one chunk.

The loss is a sum over rows, so the gradient of each chunk of rows is computed in the forward pass, while its logits
are in memory. The logits are neither stored nor computed twice. Besides the gradients, memory holds one C x M matrix at
a time for the plain loss, and at most five with smoothing, duplicates or the sigmoid. Row n is pair `first_row + n` of
the batch, column m is pair `first_column + m`.

Sources: InfoNCE as in CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020); mixed targets as in ZeroVL (Cui et
al. 2022, https://arxiv.org/abs/2112.09331); SigLIP (Zhai et al. 2023, https://arxiv.org/abs/2303.15343).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import in_float32
from pretrainkit.dist.compiled import vary

Duplicates = Literal["negatives", "ignore", "positives"]


@dataclass(frozen=True)
class Matches:
    """Targets of each row. Indices and groups refer to the whole batch of B pairs."""

    first_column: int
    """Pair of the first column."""
    num_columns: int
    """Number of columns, M."""
    duplicates: Duplicates = "negatives"
    """Treatment of pairs of the same group; see `ClipObjectiveConfig`."""
    groups_B: tuple[Tensor, ...] = ()
    """Integer tensors (B,). Pairs with an equal number in any of them are duplicates."""
    partner_B: Tensor | None = None
    """int64 (B,) the pair with which each pair is mixed; None: no mixup."""
    share: Tensor | None = None
    """Scalar: weight of the pair itself in its target. Its partner has the rest."""

    def targets(self, pairs_C: Tensor) -> list[tuple[Tensor | float, Tensor]]:
        """Return (weight, int64 (C,) pairs) for each part of the target of these pairs."""
        if self.partner_B is None or self.share is None:
            return [(1.0, pairs_C)]
        return [(self.share, pairs_C), (1 - self.share, self.partner_B[pairs_C])]

    def main_target(self, pairs_C: Tensor) -> Tensor:
        """Return int64 (C,), the part of the target with the largest weight."""
        if self.partner_B is None or self.share is None:
            return pairs_C
        return torch.where(self.share >= 0.5, pairs_C, self.partner_B[pairs_C])

    def same(self, pairs_C: Tensor) -> Tensor:
        """Return bool (C, M), True if a column is a duplicate of a pair, or the pair itself."""
        columns = slice(self.first_column, self.first_column + self.num_columns)
        is_same_CM = torch.zeros(len(pairs_C), self.num_columns, dtype=torch.bool, device=pairs_C.device)
        for group_B in self.groups_B:
            is_same_CM |= group_B[pairs_C][:, None] == group_B[columns]
        return is_same_CM

    def ignored(self, pairs_C: Tensor) -> Tensor | None:
        """Return bool (C, M), True for columns that are neither targets nor negatives; None: there are none."""
        if self.duplicates != "ignore":
            return None
        targets = [target_C for _, target_C in self.targets(pairs_C)]
        is_ignored_CM = torch.stack([self.same(target_C) for target_C in targets]).any(0)
        for target_C in targets:
            is_ignored_CM.scatter_(1, self.column(target_C), False)
        return is_ignored_CM

    def column(self, pairs_C: Tensor) -> Tensor:
        """Return (C, 1), the column of each pair."""
        return (pairs_C - self.first_column)[:, None]


class RowScores(NamedTuple):
    """Scores of a chunk of rows: scalars, summed over the rows."""

    loss: Tensor
    hard_loss: Tensor
    """Loss with each pair itself as its only target, without label smoothing. 0 without mixup and for the sigmoid."""
    num_right: Tensor
    """Number of rows whose most similar column is the main target."""


def _num_right(logits_CM: Tensor, pairs_C: Tensor, matches: Matches) -> Tensor:
    """Return the number of rows whose best column is the main target. Of equal logits, the first counts, so that
    collapsed embeddings do not count as right."""
    best_C1 = logits_CM.argmax(1, keepdim=True)
    main_C = matches.main_target(pairs_C)
    if matches.duplicates == "positives":
        return matches.same(main_C).gather(1, best_C1).sum().to(logits_CM.dtype)
    return (best_C1 == matches.column(main_C)).sum().to(logits_CM.dtype)


@dataclass(frozen=True)
class SoftmaxScore:
    """Cross-entropy of the softmax over columns."""

    matches: Matches
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over all columns that are not ignored."""

    def __call__(self, logits_CM: Tensor, pairs_C: Tensor) -> tuple[RowScores, Tensor]:
        matches, smoothing = self.matches, self.label_smoothing
        ignored_CM = matches.ignored(pairs_C)
        if ignored_CM is not None:
            logits_CM.masked_fill_(ignored_CM, -torch.inf)
        num_right = _num_right(logits_CM, pairs_C, matches)
        wanted = [(weight, *self._target(logits_CM, pair_C)) for weight, pair_C in matches.targets(pairs_C)]
        target_logit_C = sum(weight * logit_C for weight, logit_C, _ in wanted)
        smooth_CM: Tensor | float = 1 / matches.num_columns
        if ignored_CM is not None:
            smooth_CM = (~ignored_CM).to(logits_CM.dtype)
            smooth_CM /= smooth_CM.sum(1, keepdim=True)
        if smoothing:
            finite_CM = logits_CM if ignored_CM is None else logits_CM.masked_fill(ignored_CM, 0.0)
            target_logit_C = (1 - smoothing) * target_logit_C + smoothing * (finite_CM * smooth_CM).sum(1)

        # The memory of the logits is now reused for their exponentials, then the probabilities, then the slope.
        largest_C1 = logits_CM.amax(1, keepdim=True)
        logits_CM.sub_(largest_C1).exp_()
        sum_C1 = logits_CM.sum(1, keepdim=True)
        log_sum_C = (largest_C1 + sum_C1.log())[:, 0]
        slope_CM = logits_CM.div_(sum_C1)
        for weight, _, where in wanted:  # d loss / d logits = probabilities - target
            weight = (1 - smoothing) * weight
            if where.dtype == torch.bool:
                slope_CM -= weight * where.to(slope_CM.dtype) / where.sum(1, keepdim=True)
            elif torch.compiler.is_compiling():  # the compiler fuses this with the rest, and needs no atomic additions
                is_target_CM = torch.arange(matches.num_columns, device=where.device) == where
                slope_CM -= weight * is_target_CM
            else:
                slope_CM.scatter_add_(1, where, torch.ones_like(sum_C1).mul_(-weight))
        if smoothing:
            slope_CM -= smoothing * smooth_CM
        loss = (log_sum_C - target_logit_C).sum()
        has_hard_loss = matches.partner_B is not None
        hard_loss = (log_sum_C - wanted[0][1]).sum() if has_hard_loss else torch.zeros_like(loss)
        return RowScores(loss, hard_loss, num_right), slope_CM

    def _target(self, logits_CM: Tensor, pairs_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return (C,) the mean logit of each row's target columns, and the columns: indices (C, 1), or bool (C, M)."""
        if self.matches.duplicates != "positives":
            column_C1 = self.matches.column(pairs_C)
            return logits_CM.gather(1, column_C1)[:, 0], column_C1
        same_CM = self.matches.same(pairs_C)
        return (logits_CM * same_CM).sum(1) / same_CM.sum(1), same_CM


@dataclass(frozen=True)
class SigmoidScore:
    """Binary cross-entropy of each row and column, which match or do not match."""

    matches: Matches
    has_targets: bool = True
    """False if no column is the target of a row."""

    def __call__(self, logits_CM: Tensor, pairs_C: Tensor) -> tuple[RowScores, Tensor]:
        matches = self.matches
        if not self.has_targets:
            loss = F.softplus(logits_CM).sum()
            return RowScores(loss, torch.zeros_like(loss), torch.zeros_like(loss)), logits_CM.sigmoid_()
        ignored_CM = matches.ignored(pairs_C)
        if ignored_CM is not None:
            logits_CM.masked_fill_(ignored_CM, -torch.inf)
        num_right = _num_right(logits_CM, pairs_C, matches)
        sign_CM = torch.ones_like(logits_CM)
        if matches.duplicates == "positives":
            sign_CM.masked_fill_(matches.same(pairs_C), -1.0)
        else:
            sign_CM.scatter_(1, matches.column(pairs_C), -1.0)
        logits_CM.mul_(sign_CM)
        loss = F.softplus(logits_CM).sum()
        return RowScores(loss, torch.zeros_like(loss), num_right), logits_CM.sigmoid_().mul_(sign_CM)


Score = SoftmaxScore | SigmoidScore
"""Function that scores the logits (C, M) of rows. It also returns the derivative of the loss with respect to the
logits, which may use their memory."""


class ScoreProducts(nn.Module):
    """Converts products of queries and keys (C, M) to logits, and scores them. The result uses the memory of the
    products.

    It is compiled if the blocks of the model are (`pretrainkit.dist.parallelize`). It then reads the products twice and
    writes the slope once. Without compilation, the operations pass over the matrix at least eleven times.
    """

    is_compiled_apart: ClassVar[bool] = True

    def forward(
        self, score: Score, products_CM: Tensor, scale: Tensor, bias: Tensor | None, pairs_C: Tensor
    ) -> tuple[RowScores, Tensor]:
        logits_CM = products_CM.mul_(scale)
        if bias is not None:
            logits_CM.add_(bias)
        return score(logits_CM, pairs_C)


def score_rows(
    queries_bD: Tensor,
    keys_MD: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    score: Score,
    *,
    score_products: Callable[..., tuple[RowScores, Tensor]],
    first_row: int,
    megabytes: int,
) -> RowScores:
    """Return the scores of all rows. The gradient flows from `loss` to queries, keys, scale and bias.

    Args:
        queries_bD: Float32 or float64.
        keys_MD: Tensor of the same dtype. If it is detached, its gradient is not computed.
        scale: Scalar; logits are scale x (query . key) + bias.
        bias: Scalar, or None.
        score: Function that scores rows.
        score_products: The model's `ScoreProducts`.
        first_row: Pair of the first query.
        megabytes: Maximum size of the logits of a chunk. A chunk has at least one row.
    """
    bytes_per_row = len(keys_MD) * queries_bD.element_size()
    num_rows = max(1, megabytes * 10**6 // max(1, bytes_per_row))
    inputs: Sequence[Tensor | None] = (queries_bD, keys_MD, scale, bias)
    if not torch.is_grad_enabled():
        inputs = [None if tensor is None else tensor.detach() for tensor in inputs]
    with in_float32(queries_bD):
        return RowScores(*_RowsByChunks.apply(*inputs, score, score_products, first_row, num_rows))


class _RowsByChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries_bD: Tensor,
        keys_MD: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        score: Score,
        score_products: Callable[..., tuple[RowScores, Tensor]],
        first_row: int,
        num_rows: int,
    ) -> tuple[Tensor, ...]:
        needs_queries, needs_keys, needs_scale, needs_bias = ctx.needs_input_grad[:4]
        grad_queries_bD = torch.empty_like(queries_bD) if needs_queries or needs_scale else None
        grad_keys_MD = torch.zeros_like(keys_MD) if needs_keys else None
        grad_bias = torch.zeros_like(scale) if needs_bias else None
        sums = [torch.zeros_like(scale) for _ in RowScores._fields]
        detached_bias = None if bias is None else bias.detach()  # evaluation then uses the same compiled code
        for start in range(0, len(queries_bD), num_rows):
            chunk_CD = queries_bD[start : start + num_rows]
            products_CM = chunk_CD @ keys_MD.t()
            pairs_C = torch.arange(start, start + len(chunk_CD), device=queries_bD.device) + first_row
            vary(products_CM, pairs_C)
            scores, slope_CM = score_products(score, products_CM, scale.detach(), detached_bias, pairs_C)
            for whole, part in zip(sums, scores, strict=True):
                whole += part
            if grad_queries_bD is not None:
                torch.mm(slope_CM, keys_MD, out=grad_queries_bD[start : start + num_rows])
            if grad_keys_MD is not None:
                grad_keys_MD.addmm_(slope_CM.t(), chunk_CD)
            if grad_bias is not None:
                grad_bias += slope_CM.sum()
            del products_CM, slope_CM  # free the memory before the next chunk
        # logits = scale x q . k, so the derivative with respect to the scale is the sum of slope x (q . k), or of the
        # gradient of q times q.
        grad_scale = (grad_queries_bD * queries_bD).sum() if needs_scale and grad_queries_bD is not None else None
        for grad in (grad_queries_bD, grad_keys_MD):
            if grad is not None:
                grad.mul_(scale)
        ctx.save_for_backward(grad_queries_bD if needs_queries else None, grad_keys_MD, grad_scale, grad_bias)
        ctx.mark_non_differentiable(*sums[1:])
        return tuple(sums)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if saved is None else saved * grad for saved in ctx.saved_tensors), None, None, None, None
