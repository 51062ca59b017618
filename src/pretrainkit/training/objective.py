"""The interface between a recipe and the trainer: an objective turns a batch into loss terms.

There are two kinds:

* `SeparableObjective` (bert, t5, pixel, fourm): every loss term is a sum over parts of the batch, so microbatches and
  ranks can be added up before one division.
* `CoupledObjective` (clip): the loss needs the embeddings of the whole batch of all ranks at once. The trainer embeds
  microbatch by microbatch, takes the gradient at the embeddings, and pushes it through each microbatch.

A batch is a dict of tensors on the model's device; a host batch is the same dict with NumPy arrays.
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
    """A loss (or metric) before division, so that it can be added up over microbatches and ranks."""

    total: Tensor
    """Scalar, float32."""
    weight: Tensor
    """Scalar, float32: the number of terms in `total` (possibly 0). On the same device or on the host."""

    def mean(self) -> Tensor:
        """Return total / weight, or 0 if the weight is 0."""
        return self.total / self.weight.clamp(min=torch.finfo(torch.float32).tiny)


def number_of(rows: Tensor) -> Tensor:
    """Return the number of rows as a float32 scalar, created on their device: a copy from the host would have to
    wait."""
    return torch.full((), len(rows), dtype=torch.float32, device=rows.device)


@dataclass(frozen=True)
class Cost:
    """Amount of work in a host batch, for throughput. Padding does not count, except in `slots`."""

    examples: int
    tokens: int
    """Real tokens (or patches), without padding."""
    slots: int
    """Tokens including padding, which the hardware computes on."""
    flops: float
    """FLOPs of the matrix products of one forward and backward pass over the real tokens (docs: performance, MFU)."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Other counts over the run by name, such as bad rows that were replaced."""


class Objective(ABC):
    """Interface that both kinds of objective share."""

    @property
    @abstractmethod
    def scales(self) -> dict[str, float]:
        """Map the name of each term to its factor in the training loss."""

    @abstractmethod
    def cost(self, batch: HostBatch) -> Cost:
        """Count the work of a host batch from its arrays. It is called for every microbatch, so it must be fast."""

    @abstractmethod
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Evaluate one microbatch without gradient. Returns loss terms and other metrics (accuracies), by metric
        name."""

    def after_update(self, model: nn.Module) -> None:  # noqa: B027 (optional)
        """Hook after each optimizer update, without gradient, such as to bring parameters back into their range. It
        must not wait for the device. Default: do nothing."""


class SeparableObjective(Objective):
    """A loss that adds up over microbatches.

    The training loss is the sum over terms of scale x total / weight, both added up over the batch of all ranks.
    """

    @property
    def logged(self) -> tuple[str, ...]:
        """Names of additional values of `losses` for the log, without gradient, such as the loss of each part of a
        mixture. Their weights may be 0. Default: none."""
        return ()

    @abstractmethod
    def weights(self, batch: Batch) -> dict[str, Tensor]:
        """Return the weight of every term in `scales` for this microbatch, computed from the batch alone: float32
        scalars on its device or on the host."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Return every term in `scales`, with the weights of `weights(batch)`, and the values named in `logged`. All
        are float32, independent of the model's dtype."""


class Embedded(NamedTuple):
    """Embeddings of a microbatch of b examples, or of the whole batch; row i belongs to example i."""

    vectors: dict[str, Tensor]
    """Embeddings by name, each (b, D). The loss is differentiated with respect to them."""
    labels: dict[str, Tensor]
    """Constants by name, each (b,) or (b, k): whatever else the loss needs to know about each example, such as which
    examples are equal."""


class CoupledObjective(Objective):
    """A loss over the embeddings of the whole batch of all ranks."""

    @abstractmethod
    def embed(self, model: nn.Module, batch: Batch) -> Embedded:
        """Embed one microbatch with one call of the model. Names, widths and dtypes are the same for all
        microbatches."""

    @abstractmethod
    def loss_from(
        self, model: nn.Module, vectors: dict[str, Tensor], labels: dict[str, Tensor], rows: slice
    ) -> dict[str, LossSum]:
        """Return the loss terms of this rank's rows against the embeddings of all ranks. Called outside of autocast.

        Args:
            model: Provides parameters of the loss itself (a temperature), which get their gradient here.
            vectors: Embeddings of all ranks, each (B_global, D), at least float32, in the order of the batch.
            labels: Labels from `embed`, of all ranks.
            rows: The rows of this rank, equally many on every rank. Terms are sums over these rows only, so that ranks
                can be added up.

        Returns:
            Every term in `scales`. Terms of scale 0 are for the log only and may have no gradient.
        """


class BlockwiseObjective(CoupledObjective):
    """A coupled loss that may be a sum over pairs of vectors. It then needs no rank that holds all vectors."""

    @abstractmethod
    def exchanged(self, world_size: int) -> tuple[str, str] | None:
        """Return two names if the only term with a scale is a sum over pairs of vectors with these names. Vectors of
        the first stay on their rank; blocks of the second are sent from rank to rank.

        Then `block_loss` and `block_terms` are used instead of `loss_from`, and no rank holds more than two blocks.
        None gathers all vectors on every rank.
        """

    @abstractmethod
    def block_loss(
        self, model: nn.Module, rows_bD: Tensor, columns_bD: Tensor, first_row: int, first_column: int
    ) -> Tensor:
        """Return the sum of the loss over all pairs of a row and a column, a scalar with gradient. `first_row` and
        `first_column` are the indices in the batch of all ranks of the first row and the first column."""

    @abstractmethod
    def block_terms(
        self, model: nn.Module, loss: Tensor, nearest_column_b: Tensor, nearest_row_b: Tensor, first_row: int
    ) -> dict[str, LossSum]:
        """Return the loss terms of this rank.

        Args:
            loss: Sum of `block_loss` over all blocks, without gradient.
            nearest_column_b: int64 index of the most similar column of each row of this rank.
            nearest_row_b: int64 index of the most similar row of each column of this rank.
            first_row: Index of the first row, and of the first column, of this rank.
        """


AnyObjective = SeparableObjective | CoupledObjective
