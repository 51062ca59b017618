"""The seam between a recipe and the trainer: an objective turns a batch into loss terms.

Two kinds, and the type says which.

* `SeparableObjective` (bert, t5, pixel, fourm): every loss term is a sum over parts of the batch, so microbatches and
  ranks can be added up before one division.
* `CoupledObjective` (clip): the loss needs the embeddings of the whole global batch at once; the trainer embeds
  microbatch by microbatch, takes the gradient at the embeddings and replays each microbatch through it.

A batch is a dict of tensors on the model's device; its host twin is the same dict of NumPy arrays.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]
HostBatch = dict[str, np.ndarray]


class LossSum(NamedTuple):
    """A loss (or metric) not divided yet, so it can be added across microbatches and ranks."""

    total: Tensor
    """Scalar, float32."""
    weight: Tensor
    """Scalar, float32: the number of terms in `total` (maybe 0). On the same device or on the host."""

    def mean(self) -> Tensor:
        """total / weight, and 0 where the weight is 0."""
        return self.total / self.weight.clamp(min=torch.finfo(torch.float32).tiny)


def number_of(rows: Tensor) -> Tensor:
    """float32 scalar on their device. Filled there: to copy a number from the host would wait for the device."""
    return torch.full((), len(rows), dtype=torch.float32, device=rows.device)


@dataclass(frozen=True)
class Cost:
    """What a host batch holds, for throughput: real work only, padding never counts."""

    examples: int
    tokens: int
    """Real tokens (or patches), without padding."""
    slots: int
    """Tokens including padding, i.e. what the hardware computes on."""
    flops: float
    """Matmul FLOPs of one forward and backward pass over the real tokens (docs: performance, MFU)."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Other things to count over the run by name, such as bad rows that were replaced."""


class Objective(ABC):
    """What both kinds share."""

    @property
    @abstractmethod
    def scales(self) -> dict[str, float]:
        """Term name to its factor in the training loss."""

    @abstractmethod
    def cost(self, batch: HostBatch) -> Cost:
        """Counted on the host from the arrays alone, for every microbatch of every step: it must be cheap."""

    @abstractmethod
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Evaluation of one microbatch without gradient: the loss terms and more (accuracies), by metric name."""

    def after_update(self, model: nn.Module) -> None:  # noqa: B027 (optional)
        """Called after each optimizer update, without gradient: to bring parameters back into their range. Must not
        wait for the device. Default: nothing."""


class SeparableObjective(Objective):
    """A loss that adds up over microbatches.

    The training loss is the sum over terms of scale x (total over the global batch) / (weight over the global batch).
    """

    @property
    def logged(self) -> tuple[str, ...]:
        """What `losses` gives besides its terms, for the log alone and without gradient, such as the loss of each part
        of a mixture; its weights may be 0. Default: nothing."""
        return ()

    @abstractmethod
    def weights(self, batch: Batch) -> dict[str, Tensor]:
        """The weight of every term of `scales` for this microbatch, from the batch alone: float32 scalars on its device
        or on the host."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Every term of `scales`; each weight equals that of `weights(batch)`. Float32 whatever the model's dtype. And
        what `logged` names."""


class Embedded(NamedTuple):
    """What a microbatch of b examples, or the whole batch, becomes before the loss; row i belongs to example i."""

    vectors: dict[str, Tensor]
    """By name, each (b, D): what the loss is differentiated at."""
    labels: dict[str, Tensor]
    """By name, each (b,) or (b, k): whatever else the loss must know of every example, such as which ones are the same;
    constants."""


class CoupledObjective(Objective):
    """A loss over the embeddings of the whole global batch."""

    @abstractmethod
    def embed(self, model: nn.Module, batch: Batch) -> Embedded:
        """One microbatch through the model, with one call of it. Names, widths and dtypes are the same for all."""

    @abstractmethod
    def loss_from(
        self, model: nn.Module, vectors: dict[str, Tensor], labels: dict[str, Tensor], rows: slice
    ) -> dict[str, LossSum]:
        """The loss terms of this rank's rows against all embeddings of the global batch. Outside of autocast.

        Args:
            model: For parameters of the loss itself (a temperature); they get their gradient here.
            vectors: Of the whole global batch, each (B_global, D), at least float32, in global example order.
            labels: As `embed` gave them, of the whole global batch.
            rows: Which rows are this rank's, as many on every rank; the terms sum over those rows only, so ranks add
                up.

        Returns:
            Every term of `scales`. Those of scale 0 are for the log only and may be without gradient.
        """

    def exchanged(self, world_size: int) -> tuple[str, str] | None:
        """Return the names of the vectors whose rows stay on their rank, and of those whose blocks go from rank to rank
        to meet them, if the only term with a scale is a sum over pairs of the two. Default: None, which gathers all
        vectors on every rank. With names, `block_loss`, `block_nearest` and `block_terms` are used in place of
        `loss_from`, and no rank holds more than two blocks."""
        return None

    def block_loss(
        self, model: nn.Module, rows_bD: Tensor, columns_bD: Tensor, first_row: int, first_column: int
    ) -> Tensor:
        """Return the sum of the loss over all pairs of a row and a column, a scalar with gradient. `first_row`,
        `first_column`: indices of the first of each in the global batch."""
        raise NotImplementedError

    def block_terms(
        self, model: nn.Module, loss: Tensor, nearest_column_b: Tensor, nearest_row_b: Tensor, first_row: int
    ) -> dict[str, LossSum]:
        """Return the terms of this rank.

        Args:
            loss: Sum of `block_loss` over all blocks, without gradient.
            nearest_column_b: int64 index of the most similar column of each row of this rank.
            nearest_row_b: int64 index of the most similar row of each column of this rank.
            first_row: Index of the first row, and of the first column, of this rank.
        """
        raise NotImplementedError


AnyObjective = SeparableObjective | CoupledObjective
