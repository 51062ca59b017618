"""Masked words and sentence order: two sums with weights.

Dimensions: B examples, K predictions, D width, V vocabulary, L layers.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.recipes.bert.config import AnyModelConfig, BertModelConfig, BertRun
from pretrainkit.recipes.bert.inputs import BertTargets, read_batch
from pretrainkit.recipes.bert.model import BertOutputs, is_local
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective


class BertObjective(SeparableObjective):
    """Mean masked-word cross-entropy plus mean sentence-order cross-entropy, each over the batch of all ranks."""

    def __init__(self, config: BertRun) -> None:
        self._config = config
        self._scales = {"masked_lm_loss": config.objective.masked_lm_weight}
        if config.objective.sentence_order:
            self._scales["next_sentence_loss"] = config.objective.sentence_order_weight

    @property
    def scales(self) -> dict[str, float]:
        return dict(self._scales)

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        weights = {"masked_lm_loss": batch["masked_lm_weights"].sum(dtype=torch.float32)}
        if "next_sentence_loss" in self._scales:
            weights["next_sentence_loss"] = _count(batch["next_sentence_label"])
        return weights

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self._loss_sums(*self._forward(model, batch))

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Return the losses and the accuracies: over predicted tokens, and over examples with two segments."""
        outputs, targets = self._forward(model, batch)
        sums = self._loss_sums(outputs, targets)
        assert outputs.masked_lm is not None
        weight_K = targets.weight_K.float()
        sums["masked_lm_accuracy"] = LossSum((outputs.masked_lm.is_right_K * weight_K).sum(), weight_K.sum())
        if "next_sentence_loss" in sums and outputs.sentence_order_B2 is not None:
            is_right_B = outputs.sentence_order_B2.argmax(1) == targets.is_swapped_B
            is_pair_B = _has_two_segments(batch)
            sums["next_sentence_accuracy"] = LossSum((is_right_B & is_pair_B).sum().float(), is_pair_B.sum().float())
        return sums

    def cost(self, batch: HostBatch) -> Cost:
        """Count the examples, tokens and FLOPs of one forward and backward pass over real tokens and predictions.

        2 FLOPs per multiply-add, backward = 2 x forward, matrix products only: per block 6 x its weights per token and
        12 D t^2 for the attention of an example of t tokens (12 D t w with a window of w < t); per prediction 6 (D V +
        D^2); per example 6 (D^2 + 2 D) for sentence order. Lookups, norms and computation on padding are not counted.
        """
        config = self._config
        model = config.model
        width, vocab_size = model.hidden_size, model.vocab_size or 0
        lengths_B = np.asarray(batch["lengths"], np.float64)
        num_predictions = float(np.count_nonzero(batch["masked_lm_weights"]))
        flops = encoder_flops(model, lengths_B)
        flops += 6 * num_predictions * (width * vocab_size + width**2)
        if config.objective.sentence_order:
            flops += 6 * len(lengths_B) * (width**2 + 2 * width)
        return Cost(
            examples=int(np.count_nonzero(lengths_B)),
            tokens=int(lengths_B.sum()),
            slots=int(batch["input_ids"].size),
            flops=flops,
        )

    def _forward(self, model: nn.Module, batch: Batch) -> tuple[BertOutputs, BertTargets]:
        inputs, targets = read_batch(batch, self._config.data.max_seq_length)
        return model(inputs, targets.token_K), targets

    def _loss_sums(self, outputs: BertOutputs, targets: BertTargets) -> dict[str, LossSum]:
        assert outputs.masked_lm is not None
        weight_K = targets.weight_K.float()
        sums = {"masked_lm_loss": LossSum((outputs.masked_lm.nll_K * weight_K).sum(), weight_K.sum())}
        if "next_sentence_loss" in self._scales:
            assert outputs.sentence_order_B2 is not None
            assert targets.is_swapped_B is not None
            logits_B2 = outputs.sentence_order_B2.float()
            total = F.cross_entropy(logits_B2, targets.is_swapped_B.long(), reduction="sum")
            sums["next_sentence_loss"] = LossSum(total, _count(logits_B2))
        return sums


def _count(rows: Tensor) -> Tensor:
    """Return the number of rows as a float32 scalar on their device. Copying it from the host would cause a
    synchronization."""
    return torch.full((), len(rows), dtype=torch.float32, device=rows.device)


def _has_two_segments(batch: Batch) -> Tensor:
    """Return bool (B,), True for examples with a real token of type 1."""
    types = batch["token_type_ids"] != 0
    if "cu_seqlens" not in batch:
        return (types & batch["input_mask"].bool()).any(1)
    # Number of tokens of type 1 before each boundary; it increases within examples that have such tokens.
    num_before = F.pad(types.long().cumsum(0), (1, 0))[batch["cu_seqlens"].long()]
    return num_before.diff() > 0


def encoder_flops(model: AnyModelConfig, lengths_B: np.ndarray) -> float:
    """Count the FLOPs of the blocks alone, for examples of `lengths_B` tokens; see `BertObjective.cost`."""
    width, inner = model.hidden_size, model.intermediate_size
    lengths_B = np.asarray(lengths_B, np.float64)
    if isinstance(model, BertModelConfig):
        weights_per_block = 4 * width**2 + 2 * width * inner
        num_local, window = 0, 0
    else:
        weights_per_block = 4 * width**2 + 3 * width * inner
        num_local = sum(is_local(model, layer) for layer in range(model.num_layers))
        window = model.local_window + 1  # half before a token, half after, and itself
    seen_globally = float((lengths_B**2).sum())
    seen_locally = float((lengths_B * np.minimum(lengths_B, window)).sum())
    flops = 6 * model.num_layers * weights_per_block * float(lengths_B.sum())
    return flops + 12 * width * ((model.num_layers - num_local) * seen_globally + num_local * seen_locally)
