"""Cross-entropy of the targets, either one term per modality or one term over all tokens.

Dimensions: n targets of one modality, V its vocabulary; B rows, N slots, S segments of a row, M modalities.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.nn.layouts import best_pairs
from pretrainkit.nn.linear_cross_entropy import TokenLoss
from pretrainkit.recipes.fourm.config import FourMModelConfig, FourMRun
from pretrainkit.recipes.fourm.inputs import read_batch
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective, number_of

TOKEN_LOSS = "token_loss"


class FourMObjective(SeparableObjective):
    """Loss of the 4M recipe. By modality: the mean over modalities of the mean over a modality's targets in the batch
    of all ranks; a modality without targets counts as 0. By token: the mean over all targets; the loss of each modality
    is logged."""

    def __init__(self, config: FourMRun) -> None:
        self._config = config
        self._targets = tuple(modality for modality in config.model.modalities if modality.is_target)
        self._by_modality = config.objective.loss == "modality"

    @property
    def scales(self) -> dict[str, float]:
        if not self._by_modality:
            return {TOKEN_LOSS: 1.0}
        weights = self._config.objective.modality_weights
        return {_term(m): weights.get(m.name, 1.0) / len(self._targets) for m in self._targets}

    @property
    def logged(self) -> tuple[str, ...]:
        return () if self._by_modality else tuple(_term(modality) for modality in self._targets)

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        counts = [number_of(batch[f"decoder_places/{modality.name}"]) for modality in self._targets]
        if self._by_modality:
            return {_term(modality): count for modality, count in zip(self._targets, counts, strict=True)}
        weighted = [n * self._token_weight(modality) for modality, n in zip(self._targets, counts, strict=True)]
        return {TOKEN_LOSS: torch.stack(weighted).sum()}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self._sums(self._forward(model, batch))

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Return the loss of each modality and over all tokens, and the accuracy of each modality."""
        token_losses = self._forward(model, batch)
        sums = self._sums(token_losses)
        if self._by_modality:
            sums[TOKEN_LOSS] = LossSum(*(torch.stack(parts).sum() for parts in zip(*sums.values(), strict=True)))
        for modality in self._targets:
            is_right_n = token_losses[modality.name].is_right_K
            sums[f"{modality.name}_accuracy"] = LossSum(is_right_n.sum().float(), number_of(is_right_n))
        return sums

    def cost(self, batch: HostBatch) -> Cost:
        return count_cost(self._config.model, batch)

    def _forward(self, model: nn.Module, batch: Batch) -> dict[str, TokenLoss]:
        config, is_compiled = self._config.model, self._config.parallel.compile == "on"
        width = config.hidden_size // config.num_heads
        layout = best_pairs(batch["encoder_length"], width, has_static_shapes=is_compiled)
        token_losses: dict[str, TokenLoss] = model(read_batch(batch, config, layout=layout))
        return token_losses

    def _sums(self, token_losses: dict[str, TokenLoss]) -> dict[str, LossSum]:
        nll = {_term(modality): token_losses[modality.name].nll_K for modality in self._targets}
        sums = {name: LossSum(nll_n.sum(), number_of(nll_n)) for name, nll_n in nll.items()}
        if self._by_modality:
            return sums
        weights = [self._token_weight(modality) for modality in self._targets]
        weighted = [[part * w for part, w in zip(parts, weights, strict=True)] for parts in zip(*sums.values())]
        token = LossSum(*(torch.stack(parts).sum() for parts in weighted))
        return {TOKEN_LOSS: token, **{name: LossSum(s.total.detach(), s.weight) for name, s in sums.items()}}

    def _token_weight(self, modality: Modality) -> float:
        """Return the weight of one target of the modality in the mean over tokens."""
        objective = self._config.objective
        weight = objective.modality_weights.get(modality.name, 1.0)
        return weight * (modality.vocab_size or 0) if objective.loss == "token_compat" else weight


def _term(modality: Modality) -> str:
    return f"{modality.name}_loss"


def count_cost(model: FourMModelConfig, batch: HostBatch) -> Cost:
    """Count examples, tokens, and matmul FLOPs of forward and backward over real tokens.

    2 FLOPs per multiply-add, backward = 2 x forward. Per token: 6 x the weights of a block. Per pair of query and key:
    12 x width. In the decoder a token has its own modality as keys: all tokens of an image, on average half of a
    sequence. The projection of the encoder's output, the embedding of pixels and vectors, and each head at its own
    targets are added. Slots are those of the budgets, filled or empty."""
    width = model.hidden_size
    feed_forward = (3 if model.gated else 2) * width * model.intermediate_size
    num_segments = 1 + max(int(batch[f"{side}_segment"].max(initial=0)) for side in ("encoder", "decoder"))
    inputs_BS = _lengths(model, batch, "encoder", num_segments).sum(-1)
    targets_BSM = _lengths(model, batch, "decoder", num_segments)
    targets_BS = targets_BSM.sum(-1)
    num_inputs, num_targets = float(inputs_BS.sum()), float(targets_BS.sum())
    seen_by_inputs = float((inputs_BS**2).sum())
    flops = model.num_encoder_layers * (6 * num_inputs * (4 * width**2 + feed_forward) + 12 * width * seen_by_inputs)
    flops += 6 * num_inputs * width**2
    if model.separate_targets:
        is_open_M = [modality.kind == "image" and not model.causal_targets for modality in model.modalities]
        seen_by_targets = float((targets_BSM**2 / np.where(is_open_M, 1, 2)).sum())
    else:
        seen_by_targets = float((targets_BS**2).sum()) / 2
    crossed = float((inputs_BS * targets_BS).sum())
    per_layer = 6 * num_targets * (6 * width**2 + feed_forward) + 6 * num_inputs * 2 * width**2
    per_layer += 12 * width * (seen_by_targets + crossed)
    flops += model.num_decoder_layers * per_layer
    for modality in model.modalities:
        if modality.is_input and modality.kind in ("pixels", "vectors"):
            values = modality.vector_width or (modality.num_channels or 0) * (modality.patch_size or 0) ** 2
            flops += 6.0 * len(batch[f"encoder_places/{modality.name}"]) * width * values
        if modality.is_target:
            flops += 6.0 * len(batch[f"decoder_places/{modality.name}"]) * width * (modality.vocab_size or 0)
    return Cost(
        examples=len(batch["encoder_length"]),
        tokens=int(num_inputs + num_targets),
        slots=batch["encoder_modality"].size + batch["decoder_modality"].size,
        flops=flops,
        notes={"input_tokens": int(num_inputs), "target_tokens": int(num_targets)},
    )


def _lengths(model: FourMModelConfig, batch: HostBatch, side: str, num_segments: int) -> NDArray[np.float64]:
    """Return the number of tokens of each modality in each segment of each row, (B, S, M)."""
    segment_BN = batch[f"{side}_segment"]
    is_real_BN = np.arange(segment_BN.shape[1]) < batch[f"{side}_length"][:, None]
    shape = (len(segment_BN), num_segments, len(model.modalities))
    digits = (is_real_BN.nonzero()[0], segment_BN[is_real_BN], batch[f"{side}_modality"][is_real_BN])
    counts = np.bincount(np.ravel_multi_index(digits, shape), minlength=math.prod(shape))
    return counts.reshape(shape).astype(np.float64)
