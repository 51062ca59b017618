"""The objective: reconstruction loss, commitment loss and perceptual loss.

Dimensions: B images, K codes.
"""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from pretrainkit.dist.autocast import in_float32
from pretrainkit.dist.parallelize import unwrap
from pretrainkit.recipes.image_tokenizer.config import ImageTokenizerRun
from pretrainkit.recipes.image_tokenizer.losses import Perceptual, ms_ssim, psnr, reconstruction_loss, ssim
from pretrainkit.recipes.image_tokenizer.model import ImageTokenizer, Pass, prepared
from pretrainkit.recipes.image_tokenizer.model_config import ImageTokenizerModelConfig
from pretrainkit.recipes.image_tokenizer.quantizers import Codebook, CodeStatistics
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective, number_of

RECONSTRUCTION, COMMITMENT, PERCEPTUAL = "reconstruction_loss", "commitment_loss", "perceptual_loss"
USAGE, PERPLEXITY = "codebook_usage", "codebook_perplexity"
_RARE = 0.1
"""A code counts as used if its use is above this share of the average use. Codes just revived are below it."""


class ImageTokenizerObjective(SeparableObjective):
    """Every loss term is a mean over images. The objective also collects codebook statistics of a step, and updates the
    codebook after the optimizer's update."""

    def __init__(self, config: ImageTokenizerRun) -> None:
        self._config, self._model = config, config.model
        quantizer = config.model.quantizer
        self._learns_codes = quantizer.kind == "codebook" and not config.model.is_encoder_frozen
        self._commitment = quantizer.commitment_weight if quantizer.kind == "codebook" and self._learns_codes else 0.0
        self._statistics: CodeStatistics | None = None
        perceptual = config.objective.perceptual
        self._perceptual = Perceptual(perceptual) if perceptual.is_used else None

    @property
    def scales(self) -> dict[str, float]:
        scales, objective = {RECONSTRUCTION: 1.0}, self._config.objective
        if self._commitment:
            scales[COMMITMENT] = self._commitment * objective.commitment_scale
        if objective.perceptual.weight:
            scales[PERCEPTUAL] = objective.perceptual.weight
        return scales

    @property
    def logged(self) -> tuple[str, ...]:
        """Names of two metrics of the codebook before the update: the share of codes that are in use, and the
        perplexity of their use."""
        return (USAGE, PERPLEXITY) if self._learns_codes else ()

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return dict.fromkeys(self.scales, number_of(batch["key"]))

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        size = len(batch["image_size"]) if "image_size" in batch else None
        result: Pass = model(prepared(batch["image"], self._model, size), batch["key"])
        sums = self._sums(result, batch)
        codebook = self._codebook(model)
        if codebook is not None:
            statistics = codebook.statistics(result.quantized, batch["key"])
            self._statistics = statistics if self._statistics is None else self._statistics.join(statistics)
            sums |= {name: LossSum(value, torch.ones_like(value)) for name, value in in_use(codebook.use_K).items()}
        return sums

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Return the loss terms and the errors of reconstructions: the pixel accuracy of classes and masks, and the IoU
        of masks; for other images mean absolute and squared errors, with PSNR, SSIM and MS-SSIM for pictures, and the
        cosine similarity for features."""
        values = prepared(batch["image"], self._model)
        result: Pass = model(values, batch["key"], samples=True)
        self.seen(result)
        sums = self._sums(result, batch)
        weight = number_of(batch["key"])
        return sums | {
            name: LossSum(value_B.sum(), weight) for name, value_B in self.errors(result.image_BEHW, values).items()
        }

    def seen(self, result: Pass) -> None:
        """Receive the result of every batch of `metrics`. Subclasses override it; here it does nothing."""

    def errors(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the errors of reconstructions by name, (B,) each, in the values of `model.prepared`. The perceptual
        distance is included if the config sets `is_measured`."""
        kind = self._model.domain.kind
        if kind == "classes":
            return {"pixel_accuracy": (prediction.argmax(1) == target).float().flatten(1).mean(1)}
        if kind == "mask":
            is_predicted, is_inside = prediction > 0, target > 0.5
            intersection, union = (
                (is_predicted & is_inside).flatten(1).sum(1),
                (is_predicted | is_inside).flatten(1).sum(1),
            )
            accuracy_B = (is_predicted == is_inside).float().flatten(1).mean(1)
            return {"pixel_accuracy": accuracy_B, "iou": intersection / union.clamp(min=1)}
        values = {
            "mae": reconstruction_loss(prediction, target, "l1"),
            "mse": reconstruction_loss(prediction, target, "mse"),
        }
        if kind == "features":
            values["cosine_similarity"] = 1 - reconstruction_loss(prediction, target, "cosine_channels")
        if self._model.domain.has_pixel_range:
            shown = prediction.float().clamp(-1, 1)
            values |= {"psnr": psnr(shown, target, 2.0), "ssim": ssim(shown, target, 2.0)}
            values["ms_ssim"] = ms_ssim(shown, target, 2.0)
            perceptual = self._config.objective.perceptual
            if self._perceptual is not None and perceptual.is_measured:
                with torch.no_grad(), in_float32(shown):
                    values[perceptual.metric] = self._perceptual(shown, target)
        return values

    @torch.no_grad()
    def after_update(self, model: nn.Module) -> None:
        """Update the codebook with the statistics of all microbatches and ranks."""
        statistics, self._statistics = self._statistics, None
        codebook = self._codebook(model)
        if codebook is not None and statistics is not None:
            codebook.update(statistics.over_ranks(), self._config.revival_threshold)

    def cost(self, batch: HostBatch) -> Cost:
        num = len(batch["key"])
        size = len(batch["image_size"]) if "image_size" in batch else self._model.image_size
        num_tokens = num * (size // self._model.patch_size) ** 2 * self._model.quantizer.num_heads
        flops = num * _forward_backward_flops(self._model, size)
        return Cost(examples=num, tokens=num_tokens, slots=num_tokens, flops=flops)

    def _sums(self, result: Pass, batch: Batch) -> dict[str, LossSum]:
        weight = number_of(batch["key"])
        loss_B = reconstruction_loss(result.prediction_BEHW, result.target, self._config.objective.reconstruction)
        sums = {RECONSTRUCTION: LossSum(loss_B.sum(), weight)}
        if self._commitment:
            sums[COMMITMENT] = LossSum(result.quantized.distance_B.sum(), weight)
        if self._perceptual is not None and PERCEPTUAL in self.scales:
            sums[PERCEPTUAL] = LossSum(self._perceptual(result.prediction_BEHW, result.target).sum(), weight)
        return sums

    def _codebook(self, model: nn.Module) -> Codebook | None:
        tokenizer = unwrap(model)
        assert isinstance(tokenizer, ImageTokenizer)
        quantizer = tokenizer.quantizer
        return quantizer if self._learns_codes and isinstance(quantizer, Codebook) else None


def in_use(use_K: Tensor) -> dict[str, Tensor]:
    """Return two scalars by name: the share of codes that are in use, and the perplexity."""
    share_K = use_K / use_K.sum().clamp(min=1e-20)
    entropy = -(share_K * share_K.clamp(min=1e-20).log()).sum()
    return {USAGE: (share_K * len(use_K) > _RARE).float().mean(), PERPLEXITY: entropy.exp()}


@cache
def _forward_backward_flops(config: ImageTokenizerModelConfig, size: int) -> float:
    """Return the matmul FLOPs for one image of `size` x `size` pixels: 2 per multiply-add of linear layers,
    convolutions and attention, times three for forward and backward. Hooks count them on a meta-device model."""
    with torch.device("meta"):
        model: Any = ImageTokenizer(config).to("meta")
    total = 0.0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal total
        weight = cast(Tensor, module.weight)
        num_positions = output.numel() / (output.shape[-1] if isinstance(module, nn.Linear) else output.shape[1])
        total += 2.0 * weight.numel() * num_positions

    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            module.register_forward_hook(count)
    is_of_features = config.domain.kind == "features"
    side, grid = (config.grid, config.grid) if is_of_features else (size, size // config.patch_size)
    values = torch.zeros(1, config.domain.num_channels, side, side, device="meta")
    codes = torch.zeros(1, config.quantizer.width, grid, grid, device="meta")
    with torch.no_grad():
        model.to_latents(model.encoder(values))
        if model.from_codes is None:
            model.decoder(values, torch.zeros(1, device="meta"), codes)
        else:
            model.decoder(model.from_codes(codes))
    for coder in (config.encoder, config.decoder):
        if coder.kind == "vit":  # hooks do not see attention: its scores and weighted sums are P x P for P positions
            total += coder.num_layers * 4.0 * (size // config.patch_size) ** 4 * coder.hidden_size
    return 3 * total
