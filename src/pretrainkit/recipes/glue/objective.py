"""Cross-entropy of classes, or squared error of numbers: one sum with a weight.

Dimensions: B examples, C classes (1 where a number is asked for).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.model import encoder_of
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective


class GlueObjective(SeparableObjective):
    """The mean over the examples of the global batch that have a label."""

    def __init__(self, config: GlueRun) -> None:
        self._max_length = config.data.max_seq_length
        self._num_outputs = max(1, len(config.model.classes or ()))
        self._name = "cross_entropy" if config.model.classes else "squared_error"
        self._encoder, self._encoder_config = encoder_of(config.model)

    @property
    def scales(self) -> dict[str, float]:
        return {self._name: 1.0}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {self._name: _has_label(batch["label"]).sum(dtype=torch.float32)}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return {self._name: self._loss(self.outputs(model, batch), batch["label"])}

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """The loss, and of classes the share of right answers."""
        outputs_BC, label_B = self.outputs(model, batch), batch["label"]
        found = {self._name: self._loss(outputs_BC, label_B)}
        if label_B.dtype == torch.int64:
            is_right_B = outputs_BC.argmax(1) == label_B
            found["accuracy"] = LossSum(is_right_B.sum().float(), found[self._name].weight)
        return found

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B, C) float32."""
        outputs_BC: Tensor = model(batch, self._max_length)
        return outputs_BC.float()

    def _loss(self, outputs_BC: Tensor, label_B: Tensor) -> LossSum:
        has_label_B = _has_label(label_B)
        if label_B.dtype == torch.int64:
            total = F.cross_entropy(outputs_BC, label_B, reduction="sum", ignore_index=-1)
        else:
            error_B = outputs_BC[:, 0] - torch.where(has_label_B, label_B, outputs_BC[:, 0].detach())
            total = error_B.square().sum()
        return LossSum(total, has_label_B.sum(dtype=torch.float32))

    def cost(self, batch: HostBatch) -> Cost:
        lengths_B = batch["lengths"]
        config: Any = self._encoder_config
        return Cost(
            examples=len(lengths_B),
            tokens=int(lengths_B.sum()),
            slots=int(batch["input_ids"].size),
            flops=self._encoder.text_encoder_flops(config, lengths_B),
        )


def _has_label(label_B: Tensor) -> Tensor:
    return label_B >= 0 if label_B.dtype == torch.int64 else ~label_B.isnan()
