"""The objective: reconstruct the pixels of hidden patches.

Dimensions: K patches to predict, F = S * 3 values of a patch with S pixels.
"""

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.recipes.pixel.config import NUM_CHANNELS, PixelRun
from pretrainkit.recipes.pixel.model import block_flops
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective

TERM = "masked_patch_loss"
_EPSILON = 1e-6
"""Epsilon that is added to the variance of a patch."""


class PixelObjective(SeparableObjective):
    """Mean squared error of hidden patches, averaged over all hidden text and end patches of the batch of all ranks."""

    def __init__(self, config: PixelRun) -> None:
        self._config = config

    @property
    def scales(self) -> dict[str, float]:
        return {TERM: 1.0}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {TERM: self._weights(batch).sum()}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return {TERM: _mean_over(self._errors(model, batch), self._weights(batch))}

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Return the loss, the losses of patches with ink and of single-colour patches (blank and end patches)
        separately, and, with `normalize_target`, `blind_loss`: the loss of predicting each patch by its own mean."""
        error_K = self._errors(model, batch)
        weight_K, patches = batch["target_weights"], batch["target_patches"]
        has_ink_K = _has_ink(patches, self._config.model.patch_size)
        sums = {
            TERM: _mean_over(error_K, self._weights(batch)),
            "inked_patch_loss": _mean_over(error_K, weight_K * has_ink_K),
            "blank_patch_loss": _mean_over(error_K, weight_K * (1 - has_ink_K)),
        }
        if self._config.objective.normalize_target:
            sums["blind_loss"] = _mean_over(self._target(patches).square().mean((1, 2)), weight_K)
        return sums

    def cost(self, batch: HostBatch) -> Cost:
        """Return examples, patches and FLOPs of a forward and backward pass over real patches.

        Only matrix products count: 2 FLOPs per multiply-add, backward = 2 x forward. They are `block_flops` of the
        encoder (visible tokens) and the decoder (all tokens), the embedding of visible patches in three colours, the
        projection of visible tokens to the decoder's width, and the prediction of hidden patches. The last
        block counts in full although it skips tokens.
        """
        model = self._config.model
        lengths_B = np.diff(batch["starts"]).astype(np.float64)
        visible_B = np.diff(batch["visible_starts"]).astype(np.float64)
        num_targets = float(batch["target_weights"].sum())
        flops = block_flops(model.num_layers, model.hidden_size, model.intermediate_size, visible_B)
        flops += block_flops(
            model.decoder_num_layers, model.decoder_hidden_size, model.decoder_intermediate_size, lengths_B
        )
        flops += 6 * model.patch_values * model.hidden_size * (float(visible_B.sum()) - len(visible_B))
        flops += 6 * model.hidden_size * model.decoder_hidden_size * float(visible_B.sum())
        flops += 6 * model.decoder_hidden_size * model.patch_values * num_targets
        return Cost(
            examples=len(batch["lengths"]),
            tokens=int(batch["lengths"].sum(dtype=np.int64)),
            slots=len(batch["positions"]) - len(lengths_B),
            flops=flops,
        )

    def _weights(self, batch: Batch) -> Tensor:
        """Return the weight of each hidden patch in the loss, float32 (K,)."""
        weight_K, blank = batch["target_weights"], self._config.objective.blank_weight
        if blank == 1:
            return weight_K
        has_ink_K = _has_ink(batch["target_patches"], self._config.model.patch_size)
        return weight_K * (has_ink_K + blank * (1 - has_ink_K))

    def _errors(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error of each hidden patch, float32 (K,)."""
        predicted_KF = model(batch, self._config.data.max_patches)
        predicted_KSC = predicted_KF.float().unflatten(1, (-1, NUM_CHANNELS))
        return (predicted_KSC - self._target(batch["target_patches"])).square().mean((1, 2))

    def _target(self, patches: Tensor) -> Tensor:
        return target_pixels(
            patches, self._config.model.patch_size, is_normalized=self._config.objective.normalize_target
        )


def target_pixels(patches: Tensor, patch_size: int, *, is_normalized: bool) -> Tensor:
    """Return the values to predict, float32 (K, S, 1) for grey or (K, S, 3) for coloured patches, S = patch_size^2.

    Args:
        patches: uint8 (K, S) for grey or (K, S * 3) for coloured patches.
        is_normalized: Standardize each patch, with the unbiased variance of all its values in three colours. Otherwise
            values are in [0, 1].
    """
    values_KSC = patches.float().div(255).unflatten(1, (patch_size**2, -1))
    if not is_normalized:
        return values_KSC
    mean_K11 = values_KSC.mean((1, 2), keepdim=True)
    centred_KSC = values_KSC - mean_K11
    num = patch_size**2 * NUM_CHANNELS  # grey values count once per colour, as in the original
    variance_K11 = centred_KSC.square().mean((1, 2), keepdim=True) * (num / (num - 1))
    return centred_KSC * torch.rsqrt(variance_K11 + _EPSILON)


def _has_ink(patches: Tensor, patch_size: int) -> Tensor:
    """Return 1 for patches, uint8 (K, F), with more than one colour and 0 for others, float32 (K,)."""
    values_KSC = patches.unflatten(1, (patch_size**2, -1))
    return (values_KSC != values_KSC[:, :1]).any(2).any(1).float()


def _mean_over(values_K: Tensor, weight_K: Tensor) -> LossSum:
    return LossSum((values_K * weight_K).sum(), weight_K.sum())
