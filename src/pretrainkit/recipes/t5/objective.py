"""Target tokens given inputs: two sums with weights.

Dimensions: R rows, Q slots of a decoder row, K target tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.nn.layouts import best_pairs
from pretrainkit.recipes.t5.config import T5ModelConfig, T5Run
from pretrainkit.recipes.t5.inputs import T5Targets, read_batch, target_examples
from pretrainkit.recipes.t5.losses import (
    ACCURACY,
    CROSS_ENTROPY,
    PER_TOKEN,
    Z_LOSS,
    TokenLosses,
    component_sums,
    loss_sums,
    loss_weight,
    token_losses,
    token_sums,
)
from pretrainkit.recipes.t5.model import TokenScores
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective


class T5Objective(SeparableObjective):
    """The loss is (cross-entropy + z-loss) / what `objective.normalize_by` says, over the global batch."""

    def __init__(self, config: T5Run, components: Sequence[str] = ()) -> None:
        """`components`: names of those of the training mixture, whose losses and target tokens are logged one by one;
        batches then have `components`."""
        assert config.model.vocab_size is not None
        self._config = config
        self._vocab_size = config.model.vocab_size
        self._side = "encoder" if config.model.kind == "encoder_only" else "decoder"
        self._components = tuple(components)
        self._component_losses = tuple(f"loss/{name}" for name in components)

    @property
    def scales(self) -> dict[str, float]:
        return {CROSS_ENTROPY: 1.0, Z_LOSS: 1.0}

    @property
    def logged(self) -> tuple[str, ...]:
        is_per_token = self._config.objective.normalize_by == "real_target_tokens"
        return (*(() if is_per_token else (PER_TOKEN,)), ACCURACY, *self._component_losses)

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        weight = self._weight(batch)
        return {CROSS_ENTROPY: weight, Z_LOSS: weight}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        scores, targets = self._forward(model, batch)
        losses = self._token_losses(scores)
        found = self._loss_sums(losses, targets, batch)
        with torch.no_grad():
            notes = token_sums(losses, scores, targets)
            if self._components:
                notes |= component_sums(losses, targets, self._component_losses)
        return found | {name: notes[name] for name in self.logged}

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """The losses, and per target token: their sum, the negative log-likelihood, and the share of right guesses."""
        scores, targets = self._forward(model, batch)
        losses = self._token_losses(scores)
        found = self._loss_sums(losses, targets, batch) | token_sums(losses, scores, targets)
        weight_K = targets.weight_K
        found["nll_per_target_token"] = LossSum((scores.loss.nll_K * weight_K).sum(), weight_K.sum())
        return found

    def cost(self, batch: HostBatch) -> Cost:
        cost = count_cost(self._config.model, batch)
        if not self._components:
            return cost
        is_target = batch[f"{self._side}_loss_weights"] > 0
        counts = np.bincount(batch["components"][is_target], minlength=len(self._components)).tolist()
        names = [f"target_tokens/{name}" for name in self._components]
        return replace(cost, notes=dict(zip(names, counts, strict=True)))

    def _forward(self, model: nn.Module, batch: Batch) -> tuple[TokenScores, T5Targets]:
        config = self._config
        layout = best_pairs(
            batch[f"{self._side}_loss_weights"],
            has_dropout=model.training and config.model.dropout > 0,
            has_static_shapes=config.parallel.compile == "on",
        )
        inputs, targets = read_batch(batch, config.model.kind, layout=layout)
        has_logit_sum = config.objective.label_smoothing > 0
        return model(inputs, targets.token_K, has_logit_sum=has_logit_sum), targets

    def _loss_sums(self, losses: TokenLosses, targets: T5Targets, batch: Batch) -> dict[str, LossSum]:
        config = self._config
        return loss_sums(losses, targets, self._weight(batch), config.objective, config.data.batch_size)

    def _weight(self, batch: Batch) -> Tensor:
        weight_RQ = batch[f"{self._side}_loss_weights"]
        normalize_by = self._config.objective.normalize_by
        if "num_examples" in batch and (normalize_by == "none" or isinstance(normalize_by, float)):
            return batch["num_examples"].sum(dtype=torch.float32)  # rows hold several; a step has a known number
        return loss_weight(weight_RQ, target_examples(batch, self._side), self._config.objective)

    def _token_losses(self, scores: TokenScores) -> TokenLosses:
        objective = self._config.objective
        return token_losses(
            scores, self._vocab_size, label_smoothing=objective.label_smoothing, z_loss=objective.z_loss
        )


def count_cost(model: T5ModelConfig, batch: HostBatch) -> Cost:
    """Matmul FLOPs of forward and backward over real tokens: 6 per weight and token, 12 x inner width per pair."""
    width, inner = model.hidden_size, model.num_heads * model.head_size
    assert model.vocab_size is not None
    feed_forward = (len(model.activations) + 1) * width * model.intermediate_size
    lengths = {side: _lengths(batch, side) for side in ("encoder", "decoder") if f"{side}_input_tokens" in batch}
    flops, tokens, slots = 0.0, 0, 0
    for side, num_layers in (("encoder", model.num_encoder_layers), ("decoder", model.num_decoder_layers)):
        if num_layers is None:
            continue
        own = np.array(list(lengths[side].values()), np.float64)
        tokens += int(own.sum())
        slots += int(batch[f"{side}_input_tokens"].size)
        flops += 6 * num_layers * (4 * width * inner + feed_forward) * float(own.sum())
        seen = float((own**2).sum()) / (2 if side == "decoder" else 1)
        flops += 12 * num_layers * inner * seen
    if model.num_encoder_layers is not None and model.num_decoder_layers is not None:
        asked, asking = lengths["encoder"], lengths["decoder"]
        crossed = sum(length * asked.get(key, 0) for key, length in asking.items())
        both = 2 * width * inner * (sum(asked.values()) + sum(asking.values()))
        flops += model.num_decoder_layers * (6 * both + 12 * inner * crossed)
    side = "encoder" if model.kind == "encoder_only" else "decoder"
    flops += 6.0 * np.count_nonzero(batch[f"{side}_loss_weights"]) * width * model.vocab_size
    return Cost(examples=len(lengths[side]), tokens=tokens, slots=slots, flops=flops)


def _lengths(batch: HostBatch, side: str) -> dict[tuple[int, int], int]:
    """(row, number) to real tokens of each example."""
    if f"{side}_segment_ids" in batch:
        segments = np.asarray(batch[f"{side}_segment_ids"])
        row = np.broadcast_to(np.arange(len(segments))[:, None], segments.shape)
        keys, counts = np.unique(np.stack((row[segments > 0], segments[segments > 0])), axis=1, return_counts=True)
        return {(int(r), int(n)): int(count) for (r, n), count in zip(keys.T, counts, strict=True)}
    name = f"{side}_target_tokens" if f"{side}_target_tokens" in batch else f"{side}_input_tokens"
    is_token = np.asarray(batch[name]) != 0
    last = np.where(is_token.any(1), is_token.shape[1] - np.argmax(is_token[:, ::-1], axis=1), 0)
    return {(row, 1): int(length) for row, length in enumerate(last) if length}
