"""A text encoder under a head, and what the losses of all kinds of tasks have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.nn.initialise import initialise_layer
from pretrainkit.recipes.capabilities import EncodesText
from pretrainkit.recipes.glue.config import GlueRun, encoder_of
from pretrainkit.recipes.glue.kinds.labelled import Arrays
from pretrainkit.recipes.registry import able
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective

Outputs = tuple[Tensor, ...]


class HeadedEncoder(nn.Module, ABC):
    """What is trained."""

    def __init__(self, encoder: TextEncoder, head: nn.Module, dropout_rate: float) -> None:
        """`dropout_rate` is of the encoder's features in front of the head."""
        super().__init__()
        self.encoder, self.head, self.dropout_rate = encoder, head, dropout_rate

    def blocks(self) -> list[nn.Module]:
        """The submodules to compile, shard and recompute one by one."""
        return self.encoder.blocks()

    def initialise_head(self, scale: float) -> None:
        """Weights of linear layers from a normal distribution of this scale, cut at two scales."""
        for module in self.head.modules():
            initialise_layer(module, scale)

    @abstractmethod
    def forward(self, batch: Batch, max_length: int) -> Outputs:
        """What the loss is taken of; see `ReadExamples.build` for the batch. No example is longer than `max_length`."""


class GlueObjective(SeparableObjective):
    """A loss on what a head says."""

    terms: tuple[str, ...]
    """Names of the loss terms, all with factor 1."""
    options: Mapping[str, Any] = {}
    """Of the model's `forward`."""

    def __init__(self, config: GlueRun) -> None:
        self._max_length = config.data.max_seq_length
        self._encoder, self._encoder_config = encoder_of(config.model)

    @property
    def scales(self) -> dict[str, float]:
        return dict.fromkeys(self.terms, 1.0)

    def outputs(self, model: nn.Module, batch: Batch) -> Outputs:
        """What the model gives; numbers that are no indices in float32."""
        found: Outputs = model(batch, self._max_length, **self.options)
        return tuple(one.float() if one.is_floating_point() else one for one in found)

    @abstractmethod
    def totals(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        """The sum of each loss term."""

    def num_right(self, outputs: Outputs, batch: Batch) -> Tensor | None:
        """How many answers are right, float32, of as many as the loss is of; None: that is not the question."""
        return None

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self._sums(self.outputs(model, batch), batch)

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """The losses, and of classes the share of right answers."""
        outputs = self.outputs(model, batch)
        found = self._sums(outputs, batch)
        if (num_right := self.num_right(outputs, batch)) is not None:
            found["accuracy"] = LossSum(num_right, found[self.terms[0]].weight)
        return found

    def _sums(self, outputs: Outputs, batch: Batch) -> dict[str, LossSum]:
        weights = self.weights(batch)
        return {name: LossSum(total, weights[name]) for name, total in self.totals(outputs, batch).items()}

    @abstractmethod
    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        """The outputs for each example of the batch, as `Labelled.said` wants them."""

    def cost(self, batch: HostBatch) -> Cost:
        lengths_B, config = batch["lengths"], self._encoder_config
        num_tokens, encoder = int(lengths_B.sum()), able(self._encoder, EncodesText)
        return Cost(len(lengths_B), num_tokens, num_tokens, encoder.text_encoder_flops(config, lengths_B))
