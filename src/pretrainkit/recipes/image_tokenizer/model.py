"""Encoder, quantizer and decoder.

Dimensions: B images, C channels, E channels of the decoder's output, H x W pixels (for features: grid positions), D
width of latents, h x w grid positions.
Sources: 4M-21 (https://arxiv.org/abs/2406.09406), appendix on tokenizers; the released code of `apple/ml-4m`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.recipes.image_tokenizer.coders import ConvDecoder, ConvEncoder, MLPCoder, ViTDecoder, ViTEncoder
from pretrainkit.recipes.image_tokenizer.diffusion import DiffusionDecoder, UNet, UViT
from pretrainkit.recipes.image_tokenizer.model_config import (
    ConvCoderConfig,
    ImageTokenizerModelConfig,
    MLPCoderConfig,
    UNetConfig,
    ViTCoderConfig,
)
from pretrainkit.recipes.image_tokenizer.quantizers import Codebook, FiniteScalar, Memcodes, Quantized
from pretrainkit.training.optimizers.parameters import stacked_parameters

_QUANTIZERS: Mapping[str, Callable[[Any], Codebook | Memcodes | FiniteScalar]] = {
    "codebook": Codebook,
    "memcodes": Memcodes,
    "fsq": FiniteScalar,
}


class Pass(NamedTuple):
    """The results of a training pass."""

    prediction_BEHW: Tensor
    target: Tensor
    """Float (B, E, H, W), or classes int64 (B, H, W)."""
    quantized: Quantized
    image_BEHW: Tensor
    """The decoded image. For diffusion decoders this is the prediction unless `samples` was set."""


class ImageTokenizer(nn.Module):
    """Encoder, quantizer and decoder for images of one domain."""

    def __init__(self, config: ImageTokenizerModelConfig) -> None:
        """Create the model without initializing its weights; `build` does that."""
        super().__init__()
        self.config = config
        domain, quantizer = config.domain, config.quantizer
        self.class_table = None if domain.num_classes is None else nn.Embedding(domain.num_classes, domain.num_channels)
        self.encoder = _encoder(config)
        self.to_latents = nn.Conv2d(self.encoder.width, quantizer.width, 1)
        self.quantizer = _QUANTIZERS[quantizer.kind](quantizer)
        self.decoder = _decoder(config)
        self.from_codes = (
            None if isinstance(self.decoder, DiffusionDecoder) else nn.Conv2d(quantizer.width, self.decoder.width, 1)
        )
        for part in self._frozen():
            part.requires_grad_(False)

    def _frozen(self) -> list[nn.Module]:
        parts = (self.encoder, self.to_latents, self.quantizer, self.class_table)
        return [part for part in parts if part is not None] if self.config.is_encoder_frozen else []

    def train(self, mode: bool = True) -> "ImageTokenizer":
        """Set training or evaluation mode. Frozen parts stay in evaluation mode."""
        super().train(mode)
        for part in self._frozen():
            part.eval()
        return self

    def blocks(self) -> list[nn.Module]:
        return [*self.encoder.blocks(), *self.decoder.blocks()]

    def forward(self, values: Tensor, keys_B: Tensor, *, samples: bool = False) -> Pass:
        """Run a training pass.

        Args:
            values: The output of `prepared`.
            keys_B: int64 keys; the random numbers of an image depend only on its key.
            samples: A diffusion decoder also samples images. That happens inside of the forward pass because only there
                the weights of a sharded model are gathered.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.is_encoder_frozen):
            quantized = self.encode(values, keys_B)
        if isinstance(self.decoder, DiffusionDecoder):
            prediction, target = self.decoder.denoise(values, quantized.codes_BDhw, keys_B)
            image_BEHW = self.decode(quantized.codes_BDhw, keys_B) if samples else prediction
            return Pass(prediction, target, quantized, image_BEHW)
        image_BEHW = self.decode(quantized.codes_BDhw)
        return Pass(image_BEHW, values, quantized, image_BEHW)

    def encode(self, values: Tensor, keys_B: Tensor | None = None) -> Quantized:
        """Encode the output of `prepared` to ids and codes."""
        if self.class_table is not None:
            values = self.class_table(values).permute(0, 3, 1, 2)
        return self.quantizer(self.to_latents(self.encoder(values)), keys_B)

    def decode(
        self, codes_BDhw: Tensor, keys_B: Tensor | None = None, *, num_steps: int | None = None, guidance: float = 1.0
    ) -> Tensor:
        """Decode codes to float32 (B, E, H, W): values, or logits of classes and masks.

        The other arguments are those of `DiffusionDecoder.sample`. Keys of None are 0, 1, …; `num_steps` of None is
        `config.num_sampling_steps`."""
        if isinstance(self.decoder, DiffusionDecoder):
            if keys_B is None:
                keys_B = torch.arange(len(codes_BDhw), device=codes_BDhw.device)
            size = codes_BDhw.shape[-1] * self.config.patch_size
            return self.decoder.sample(codes_BDhw, keys_B, size, num_steps or self.config.num_sampling_steps, guidance)
        assert self.from_codes is not None
        return self.decoder(self.from_codes(codes_BDhw)).float()

    def shaped_ids(self, ids_BN: Tensor) -> Tensor:
        """Reshape ids (B, tokens) in row-major order to the square grids that the quantizer reads: (B, h, w), or (B,
        heads, h, w)."""
        num_heads = self.config.quantizer.num_heads
        side = round((ids_BN.shape[1] / num_heads) ** 0.5)
        return ids_BN.view(len(ids_BN), side, side) if num_heads == 1 else ids_BN.view(-1, num_heads, side, side)


def prepared(images: Tensor, config: ImageTokenizerModelConfig, size: int | None = None) -> Tensor:
    """Convert images to the model's input, on their device: float32 (B, C, H, W) with colours from -1 to 1 and masks 0
    or 1, or classes int64 (B, H, W) with 0 for none.

    Args:
        images: As read from files: uint8 (B, C, H, W) for colours, grey, normals and masks; float32 (B, C, H, W) for
            depth and features; int (B, H, W) for classes, 255 for none.
        size: Height and width in pixels to resize to. None: do not resize.
    """
    kind = config.domain.kind
    if kind == "classes":
        classes = images.long()
        if size is not None and size != images.shape[-1]:
            classes = F.interpolate(classes[:, None].float(), (size, size), mode="nearest-exact")[:, 0].long()
        return torch.where(classes == 255, 0, classes + 1)
    values = images.float()
    if config.domain.has_pixel_range:
        values = values / 127.5 - 1
    if size is not None and size != images.shape[-1]:
        if kind in ("mask", "depth"):
            return F.interpolate(values, (size, size), mode="nearest-exact")
        return F.interpolate(values, (size, size), mode="bilinear", antialias=True, align_corners=False)
    return values


def build(config: ImageTokenizerModelConfig) -> ImageTokenizer:
    """Return a model with weights initialized from torch's global generator: linear layers and convolutions
    Xavier-uniform (queries, keys and values separately), biases 0, norms the identity."""
    model = ImageTokenizer(config)
    if model.to_latents.weight.is_meta:
        return model
    stacked = stacked_parameters(model)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d):
            for part in module.weight.detach().view(len(module.weight), -1).chunk(stacked.get(module.weight, 1)):
                nn.init.xavier_uniform_(part)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if model.class_table is not None:
        nn.init.normal_(model.class_table.weight)
    model.quantizer.initialise()
    if isinstance(model.decoder, DiffusionDecoder):
        model.decoder.initialise_zeros()
    return model


def _encoder(config: ImageTokenizerModelConfig) -> ViTEncoder | ConvEncoder | MLPCoder:
    coder, num_channels = config.encoder, config.domain.num_channels
    if isinstance(coder, ViTCoderConfig):
        patch_size = 1 if config.domain.kind == "features" else config.patch_size
        return ViTEncoder(coder, num_channels, patch_size, config.grid)
    if isinstance(coder, ConvCoderConfig):
        return ConvEncoder(coder, num_channels)
    return MLPCoder(coder, num_in=num_channels)


def _decoder(config: ImageTokenizerModelConfig) -> ViTDecoder | ConvDecoder | MLPCoder | UNet | UViT:
    coder, domain = config.decoder, config.domain
    if isinstance(coder, ViTCoderConfig):
        patch_size = 1 if domain.kind == "features" else config.patch_size
        return ViTDecoder(coder, domain.num_outputs, patch_size, config.grid)
    if isinstance(coder, ConvCoderConfig):
        return ConvDecoder(coder, domain.num_outputs)
    if isinstance(coder, MLPCoderConfig):
        return MLPCoder(coder, num_out=domain.num_outputs)
    width, has_pixel_range = config.quantizer.width, domain.has_pixel_range
    if isinstance(coder, UNetConfig):
        return UNet(coder, domain.num_channels, width, has_pixel_range=has_pixel_range)
    return UViT(coder, domain.num_channels, width, has_pixel_range=has_pixel_range)
