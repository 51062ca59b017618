"""A linear head on an encoder's vector of each example: classes, or a number.

Dimensions: B examples, C classes (1 where a number is asked for).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.dropout import dropout
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Arrays
from pretrainkit.recipes.glue.model import HeadedEncoder
from pretrainkit.recipes.glue.objective import GlueObjective, Outputs
from pretrainkit.recipes.glue.pooling import Pooling, pooled, pooled_width
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch, HostBatch, LossSum


class TextHead(HeadedEncoder):
    """Encoder, dropout, linear."""

    def __init__(
        self,
        encoder: TextEncoder,
        num_outputs: int,
        dropout_rate: float,
        pooling: Pooling | None = None,
        *,
        is_pair: bool = False,
    ) -> None:
        """
        Args:
            encoder: Gives features.
            num_outputs: C.
            dropout_rate: Of the vector in front of the head.
            pooling: In place of the encoder's own, which then is not trained.
            is_pair: Whether an example has two texts.
        """
        self.head: nn.Linear
        width = pooled_width(encoder.width, pooling, is_pair=is_pair)
        super().__init__(encoder, nn.Linear(width, num_outputs), dropout_rate)
        self.pooling = pooling
        if pooling is not None:
            encoder.freeze_pooling()

    def vectors(self, batch: Batch, max_length: int) -> Tensor:
        """(B, D), or of `pooled_width`: what stands for each example."""
        if self.pooling is None:
            return self.encoder(batch, max_length)
        return pooled(self.encoder.token_features(batch, max_length), batch, self.pooling)

    def forward(self, batch: Batch, max_length: int) -> Outputs:
        """(B, C) logits, or (B, 1) numbers; see `TextEncoder` for the batch."""
        x_BD = self.vectors(batch, max_length)
        return (self.head(dropout(x_BD, self.dropout_rate, is_training=self.training)),)


class TextObjective(GlueObjective):
    """Cross-entropy of classes, or squared error of numbers: the mean over the examples of the global batch that have a
    label."""

    def __init__(self, config: GlueRun) -> None:
        super().__init__(config)
        self._name = "cross_entropy" if config.model.classes else "squared_error"

    @property
    def scales(self) -> dict[str, float]:
        return {self._name: 1.0}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {self._name: _has_label(batch["label"]).sum(dtype=torch.float32)}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return {self._name: self._loss(self.outputs(model, batch)[0], batch["label"])}

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """The loss, and of classes the share of right answers."""
        (outputs_BC,), label_B = self.outputs(model, batch), batch["label"]
        found = {self._name: self._loss(outputs_BC, label_B)}
        if label_B.dtype == torch.int64:
            is_right_B = outputs_BC.argmax(1) == label_B
            found["accuracy"] = LossSum(is_right_B.sum().float(), found[self._name].weight)
        return found

    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        return [(row,) for row in outputs[0].cpu().numpy()]

    def _loss(self, outputs_BC: Tensor, label_B: Tensor) -> LossSum:
        has_label_B = _has_label(label_B)
        if label_B.dtype == torch.int64:
            total = F.cross_entropy(outputs_BC, label_B, reduction="sum", ignore_index=-1)
        else:
            error_B = outputs_BC[:, 0] - torch.where(has_label_B, label_B, outputs_BC[:, 0].detach())
            total = error_B.square().sum()
        return LossSum(total, has_label_B.sum(dtype=torch.float32))


def _has_label(label_B: Tensor) -> Tensor:
    return label_B >= 0 if label_B.dtype == torch.int64 else ~label_B.isnan()
