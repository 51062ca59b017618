"""Encode images to ids and decode ids to images with a trained tokenizer; convert values to files and pictures.

Dimensions: B images, N tokens of an image, C channels, E channels of a decoder's output, H x W pixels.
"""

from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit import rng
from pretrainkit.errors import DataError
from pretrainkit.recipes.capabilities import DecodeOptions
from pretrainkit.recipes.image_tokenizer.model import ImageTokenizer, prepared
from pretrainkit.recipes.image_tokenizer.model_config import Domain

_DEPTH_REACH = 2.5
"""Pictures of depth show values up to this many standard deviations from the mean."""
_HUE_STEP = 0.61803398875
"""Step of hue from one class to the next: the golden ratio, so that neighbouring numbers get different colours."""


class ImageCodec:
    """Encode images of one domain to ids and decode ids, on one device, in batches. Encoding is deterministic."""

    def __init__(self, model: ImageTokenizer, device: torch.device, batch_size: int = 64) -> None:
        """Take a model in evaluation mode, and move it to the device."""
        self._model, self._device, self._batch_size = model.to(device), device, batch_size
        self.config, self.domain = model.config, model.config.domain
        self.vocab_size, self.num_tokens = self.config.vocab_size, self.config.num_tokens
        self.has_numbers = self.domain.kind not in ("classes", "mask")
        """True if images have numbers that can be close to each other; False for classes and masks."""

    @torch.inference_mode()
    def encode(self, images: NDArray[Any]) -> NDArray[np.int64]:
        """Return ids, int64 (B, N), in row-major order (with several heads: all ids of one head, then the next).

        `images`: uint8 (B, C, H, W) for colours, grey, normals and masks (0 and 1); float32 (B, C, H, W) for
        standardized depth and features; int (B, H, W) for classes, 255 for none."""
        ids = []
        for images_part in _parts(images, self._batch_size):
            values = prepared(torch.from_numpy(np.require(images_part, requirements="W")).to(self._device), self.config)
            ids.append(self._model.encode(values).ids.flatten(1).cpu())
        return torch.cat(ids).numpy() if ids else np.zeros((0, self.num_tokens), np.int64)

    def decode(self, ids_BN: NDArray[np.integer], /, **options: Unpack[DecodeOptions]) -> NDArray[Any]:
        """Return images in the format of `as_files`. The ids form a square grid, of any size for transformers. Raises
        DataError if the ids are not valid for this tokenizer."""
        return as_files(self._values(ids_BN, **options), self.domain)

    def pictures(self, ids_BN: NDArray[np.integer], **options: Any) -> NDArray[np.uint8]:
        """Return uint8 (B, 3, H, W) to look at: near is bright, each class has a colour. Arguments as for `decode`."""
        return as_pictures(self._values(ids_BN, **options), self.domain)

    @torch.inference_mode()
    def _values(
        self, ids_BN: NDArray[np.integer], *, num_steps: int | None = None, guidance: float = 1.0, seed: int = 0
    ) -> Tensor:
        ids_BN = np.asarray(ids_BN)
        self._check(ids_BN)
        keys_B = rng.fold(rng.stream_key(seed, "image_tokenizer", "decode"), np.arange(len(ids_BN))).view(np.int64)
        values = []
        for ids, keys in zip(_parts(ids_BN, self._batch_size), _parts(keys_B, self._batch_size), strict=True):
            shaped = self._model.shaped_ids(torch.from_numpy(ids.astype(np.int64)).to(self._device))
            codes_BDhw = self._model.quantizer.codes_of(shaped)
            keys_on_device = torch.from_numpy(keys).to(self._device)
            decoded = self._model.decode(codes_BDhw, keys_on_device, num_steps=num_steps, guidance=guidance)
            values.append(values_of(decoded, self.domain).cpu())
        return torch.cat(values)

    def _check(self, ids_BN: NDArray[np.integer]) -> None:
        if ids_BN.ndim != 2 or not len(ids_BN) or ids_BN.dtype.kind not in "iu":
            raise DataError(
                f"ids are {ids_BN.dtype} {ids_BN.shape}; a tokenizer decodes integers of the shape (images, tokens)\n"
                f"  this tokenizer has {self.num_tokens} tokens for an image of {self.config.image_size} pixels"
            )
        num_heads = self.config.quantizer.num_heads
        side = round((ids_BN.shape[1] / num_heads) ** 0.5)
        if side**2 * num_heads != ids_BN.shape[1]:
            raise DataError(
                f"{ids_BN.shape[1]} ids do not form a square grid with {num_heads} ids per position\n"
                f"  this tokenizer has {self.num_tokens} tokens for an image of {self.config.image_size} pixels"
            )
        if ids_BN.min() < 0 or ids_BN.max() >= self.vocab_size:
            raise DataError(
                f"ids range from {ids_BN.min()} to {ids_BN.max()}, but this tokenizer has {self.vocab_size} ids\n"
                "  give ids that this tokenizer created"
            )


def _parts(values: NDArray[Any], size: int) -> list[NDArray[Any]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def values_of(decoded: Tensor, domain: Domain) -> Tensor:
    """Convert the output of `ImageTokenizer.decode` to values like those of `model.prepared`: classes int64 (B, H, W),
    masks 0 or 1, colours from -1 to 1."""
    if domain.kind == "classes":
        return decoded.argmax(1)
    if domain.kind == "mask":
        return (decoded > 0).float()
    return decoded.clamp(-1, 1) if domain.has_pixel_range else decoded


def as_files(values: Tensor, domain: Domain) -> NDArray:
    """Convert values to the format of image files: uint8 (B, H, W, 3) for colours and normals, uint8 (B, H, W) for
    grey, masks (0 and 255) and classes (255 for none; int16 if there are more than 255 classes), float32 (B, H, W) for
    standardized depth, float32 (B, C, H, W) for features."""
    values_cpu = values.cpu()
    if domain.kind == "classes":
        classes = torch.where(values_cpu == 0, 255, values_cpu - 1).numpy()
        return classes.astype(np.uint8 if (domain.num_classes or 0) <= 256 else np.int16)
    if domain.kind == "mask":
        return (values_cpu[:, 0].numpy() * 255).astype(np.uint8)
    if domain.has_pixel_range:
        pixels = ((values_cpu.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return (pixels[:, 0] if domain.kind == "grey" else pixels.permute(0, 2, 3, 1)).numpy()
    return (values_cpu[:, 0] if domain.kind == "depth" else values_cpu).float().numpy()


def as_pictures(values: Tensor, domain: Domain) -> NDArray[np.uint8]:
    """Return uint8 (B, 3, H, W) to look at: near is bright, each class has a colour, features show their first
    principal components."""
    values_cpu = values.cpu()
    if domain.kind == "classes":
        return _palette(domain.num_classes or 1)[values_cpu.numpy()].transpose(0, 3, 1, 2)
    if domain.kind == "mask":
        grey = values_cpu[:, :1]
    elif domain.kind == "depth":
        grey = (1 - (values_cpu[:, :1] + _DEPTH_REACH) / (2 * _DEPTH_REACH)).clamp(0, 1)
    elif domain.kind == "features":
        return _components(values_cpu)
    else:
        grey = (values_cpu.clamp(-1, 1) + 1) / 2
    pixels = (grey * 255).round().to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1).numpy()


def _palette(num: int) -> NDArray[np.uint8]:
    """Return a colour for each class, uint8 (classes, 3). The first, "no class", is black."""
    hue = np.arange(num) * _HUE_STEP % 1
    angle = 2 * np.pi * (hue[:, None] + np.array([0, 1 / 3, 2 / 3]))
    colors = (127.5 * (1 + 0.9 * np.cos(angle))).astype(np.uint8)
    colors[0] = 0
    return colors


def _components(values_BCHW: Tensor) -> NDArray[np.uint8]:
    """Show the first three principal components of a batch's features as colours, uint8 (B, 3, H, W)."""
    B, C, H, W = values_BCHW.shape
    flat_NC = values_BCHW.permute(0, 2, 3, 1).reshape(-1, C)
    flat_NC = flat_NC - flat_NC.mean(0)
    num = min(3, *flat_NC.shape)
    _, _, directions = torch.linalg.svd(flat_NC, full_matrices=False)
    parts_N3 = flat_NC @ directions[:num].T
    parts_N3 = torch.cat((parts_N3, parts_N3.new_zeros(len(parts_N3), 3 - num)), dim=1)
    low, high = parts_N3.min(0).values, parts_N3.max(0).values
    shown = ((parts_N3 - low) / (high - low).clamp(min=1e-6) * 255).round().to(torch.uint8)
    return shown.view(B, H, W, 3).permute(0, 3, 1, 2).numpy()
