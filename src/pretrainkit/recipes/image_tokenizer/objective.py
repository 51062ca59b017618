"""Reconstruction, the quantizer's own loss, and what another network sees.

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
from pretrainkit.recipes.image_tokenizer.quantizers import Codebook, Met
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective, number_of

RECONSTRUCTION, COMMITMENT, PERCEPTUAL = "reconstruction_loss", "commitment_loss", "perceptual_loss"
USAGE, PERPLEXITY = "codebook_usage", "codebook_perplexity"
_RARE = 0.1
"""Of the average use: codes that are used less, such as those just revived, do not count."""


class ImageTokenizerObjective(SeparableObjective):
    """Every term is a mean over images. What codes met in a step is collected here, and moves them after its update."""

    def __init__(self, config: ImageTokenizerRun) -> None:
        self._config, self._model = config, config.model
        quantizer = config.model.quantizer
        self._learns_codes = quantizer.kind == "codebook" and not config.model.is_encoder_frozen
        self._commitment = quantizer.commitment_weight if quantizer.kind == "codebook" and self._learns_codes else 0.0
        self._met: Met | None = None
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
        """Names of two figures of the moving averages before the update: the share of codes that are in use, and how
        many equally frequent ones would be as hard to guess."""
        return (USAGE, PERPLEXITY) if self._learns_codes else ()

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return dict.fromkeys(self.scales, number_of(batch["key"]))

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        size = len(batch["image_size"]) if "image_size" in batch else None
        found: Pass = model(prepared(batch["image"], self._model, size), batch["key"])
        sums = self._sums(found, batch)
        codebook = self._codebook(model)
        if codebook is not None:
            met = codebook.met(found.quantized, batch["key"])
            self._met = met if self._met is None else self._met.join(met)
            sums |= {name: LossSum(value, torch.ones_like(value)) for name, value in in_use(codebook.use_K).items()}
        return sums

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """The loss terms, and what images lost: mean absolute and squared errors, PSNR and SSIM of pictures; shares of
        right pixels of classes and masks."""
        values = prepared(batch["image"], self._model)
        found: Pass = model(values, batch["key"], samples=True)
        self.seen(found)
        sums = self._sums(found, batch)
        weight = number_of(batch["key"])
        return sums | {
            name: LossSum(value_B.sum(), weight) for name, value_B in self.errors(found.image_BEHW, values).items()
        }

    def seen(self, found: Pass) -> None:
        """Told what every batch of `metrics` gave. Default: nothing is done with it."""

    def errors(self, made: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Each (B,), by name: what images lost in values as `model.prepared` gives them. What other networks see is
        measured where the config asks for it."""
        kind = self._model.domain.kind
        if kind == "classes":
            return {"pixel_accuracy": (made.argmax(1) == target).float().flatten(1).mean(1)}
        if kind == "mask":
            is_made, is_there = made > 0, target > 0.5
            both, either = (is_made & is_there).flatten(1).sum(1), (is_made | is_there).flatten(1).sum(1)
            accuracy_B = (is_made == is_there).float().flatten(1).mean(1)
            return {"pixel_accuracy": accuracy_B, "iou": both / either.clamp(min=1)}
        found = {"mae": reconstruction_loss(made, target, "l1"), "mse": reconstruction_loss(made, target, "mse")}
        if kind == "features":
            found["cosine_similarity"] = 1 - reconstruction_loss(made, target, "cosine_channels")
        if self._model.domain.is_flat:
            shown = made.float().clamp(-1, 1)
            found |= {"psnr": psnr(shown, target, 2.0), "ssim": ssim(shown, target, 2.0)}
            found["ms_ssim"] = ms_ssim(shown, target, 2.0)
            perceptual = self._config.objective.perceptual
            if self._perceptual is not None and perceptual.is_measured:
                with torch.no_grad(), in_float32(shown):
                    found[perceptual.metric] = self._perceptual(shown, target)
        return found

    @torch.no_grad()
    def after_update(self, model: nn.Module) -> None:
        """Move the codes, by what all microbatches and ranks met."""
        met, self._met = self._met, None
        codebook = self._codebook(model)
        if codebook is not None and met is not None:
            codebook.update(met.over_ranks(), self._config.revival_threshold)

    def cost(self, batch: HostBatch) -> Cost:
        num = len(batch["key"])
        size = len(batch["image_size"]) if "image_size" in batch else self._model.image_size
        num_tokens = num * (size // self._model.patch_size) ** 2 * self._model.quantizer.num_heads
        flops = num * _forward_backward_flops(self._model, size)
        return Cost(examples=num, tokens=num_tokens, slots=num_tokens, flops=flops)

    def _sums(self, found: Pass, batch: Batch) -> dict[str, LossSum]:
        weight = number_of(batch["key"])
        loss_B = reconstruction_loss(found.prediction_BEHW, found.target, self._config.objective.reconstruction)
        sums = {RECONSTRUCTION: LossSum(loss_B.sum(), weight)}
        if self._commitment:
            sums[COMMITMENT] = LossSum(found.quantized.distance_B.sum(), weight)
        if self._perceptual is not None and PERCEPTUAL in self.scales:
            sums[PERCEPTUAL] = LossSum(self._perceptual(found.prediction_BEHW, found.target).sum(), weight)
        return sums

    def _codebook(self, model: nn.Module) -> Codebook | None:
        tokenizer = unwrap(model)
        assert isinstance(tokenizer, ImageTokenizer)
        quantizer = tokenizer.quantizer
        return quantizer if self._learns_codes and isinstance(quantizer, Codebook) else None


def in_use(use_K: Tensor) -> dict[str, Tensor]:
    """Scalars by name: the share of codes that are not rare, and the perplexity."""
    share_K = use_K / use_K.sum().clamp(min=1e-20)
    entropy = -(share_K * share_K.clamp(min=1e-20).log()).sum()
    return {USAGE: (share_K * len(use_K) > _RARE).float().mean(), PERPLEXITY: entropy.exp()}


@cache
def _forward_backward_flops(config: ImageTokenizerModelConfig, size: int) -> float:
    """Matmul FLOPs of one image of `size` x `size` pixels: 2 per multiply-add of linear layers, convolutions and
    attention over places, three times for forward and backward. Counted by the layers of a model on "meta"."""
    with torch.device("meta"):
        model: Any = ImageTokenizer(config).to("meta")
    total = 0.0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal total
        weight = cast(Tensor, module.weight)
        places = output.numel() / (output.shape[-1] if isinstance(module, nn.Linear) else output.shape[1])
        total += 2.0 * weight.numel() * places

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
        if coder.kind == "vit":  # its attention has no layer of its own: scores and mixtures of P x P places
            total += coder.num_layers * 4.0 * (size // config.patch_size) ** 4 * coder.hidden_size
    return 3 * total
