"""A linear head on the first slot of each word.

Dimensions: B examples, T slots, W words of all examples, D width, C classes.
"""

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.dropout import dropout
from pretrainkit.recipes.glue.kinds.labelled import Arrays
from pretrainkit.recipes.glue.model import HeadedEncoder
from pretrainkit.recipes.glue.objective import GlueObjective, Outputs
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch, HostBatch, LossSum

_NAME = "cross_entropy"


class TagHead(HeadedEncoder):
    """Encoder, dropout, linear."""

    def __init__(self, encoder: TextEncoder, num_classes: int, dropout_rate: float) -> None:
        super().__init__(encoder, nn.Linear(encoder.width, num_classes), dropout_rate)
        encoder.freeze_pooling()

    def forward(self, batch: Batch, max_length: int) -> Outputs:
        """(W, C) logits; the batch has `word_begins`."""
        x_WD = self.encoder.token_features(batch, max_length)[batch["word_begins"]]
        return (self.head(dropout(x_WD, self.dropout_rate, is_training=self.training)),)


class TagObjective(GlueObjective):
    """Cross-entropy: the mean over the words of the global batch that have a label."""

    @property
    def scales(self) -> dict[str, float]:
        return {_NAME: 1.0}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {_NAME: (batch["label"] >= 0).sum(dtype=torch.float32)}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return {_NAME: self._loss(self.outputs(model, batch)[0], batch["label"])}

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """The loss, and the share of right answers."""
        (outputs_WC,), label_W = self.outputs(model, batch), batch["label"]
        loss = self._loss(outputs_WC, label_W)
        return {_NAME: loss, "accuracy": LossSum((outputs_WC.argmax(1) == label_W).sum().float(), loss.weight)}

    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        return by_words(outputs, batch)

    def _loss(self, outputs_WC: Tensor, label_W: Tensor) -> LossSum:
        total = F.cross_entropy(outputs_WC, label_W, reduction="sum", ignore_index=-1)
        return LossSum(total, (label_W >= 0).sum(dtype=torch.float32))


def by_words(outputs: Outputs, batch: HostBatch) -> list[Arrays]:
    """Outputs with an entry for each word, cut by example."""
    ends = np.concatenate([[0], np.cumsum(batch["num_words"])]).tolist()
    arrays = [one.cpu().numpy() for one in outputs]
    return [tuple(array[begin:end] for array in arrays) for begin, end in pairwise(ends)]
