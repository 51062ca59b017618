"""A trained tokenizer in use: images to ids, ids to images.

Dimensions: B images, N tokens of an image, H x W pixels.
"""

from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit import rng
from pretrainkit.errors import DataError
from pretrainkit.recipes.capabilities import DecodeOptions
from pretrainkit.recipes.image_tokenizer.domain import Domain
from pretrainkit.recipes.image_tokenizer.model import ImageTokenizer, prepared
from pretrainkit.recipes.image_tokenizer.shown import as_files, as_pictures, values_of


class ImageCodec:
    """Images of one domain to ids and back, on one device, in batches. It neither trains nor draws."""

    def __init__(self, model: ImageTokenizer, device: torch.device, batch_size: int = 64) -> None:
        """`model` is in evaluation mode and is moved to the device."""
        self._model, self._device, self._batch_size = model.to(device), device, batch_size
        self.config = model.config

    @property
    def domain(self) -> Domain:
        """What the images hold."""
        return self.config.domain

    @property
    def has_numbers(self) -> bool:
        """Whether images are of numbers that can be near each other; else of classes, or of inside and outside."""
        return self.domain.kind not in ("classes", "mask")

    @property
    def vocab_size(self) -> int:
        """Different ids."""
        return self.config.vocab_size

    @property
    def num_tokens(self) -> int:
        """Of an image of the size that the tokenizer was trained on."""
        return self.config.num_tokens

    @torch.inference_mode()
    def encode(self, images: NDArray[Any]) -> NDArray[np.int64]:
        """Ids, int64 (B, N), row by row (of several at each place: head by head).

        Args:
            images: uint8 (B, C, H, W) of colours, grey, normals and masks (0 and 1); float32 (B, C, H, W) of depth
                (standardised) and features; int (B, H, W) of classes, 255 for none.
        """
        found = []
        for part in _parts(images, self._batch_size):
            values = prepared(torch.from_numpy(np.require(part, requirements="W")).to(self._device), self.config)
            found.append(self._model.encode(values).ids.flatten(1).cpu())
        return torch.cat(found).numpy() if found else np.zeros((0, self.num_tokens), np.int64)

    def decode(self, ids_BN: NDArray[np.integer], /, **options: Unpack[DecodeOptions]) -> NDArray[Any]:
        """Images as files hold them: uint8 (B, H, W, 3) of colours and normals, uint8 (B, H, W) of grey, masks (0 and
        255) and classes (255 for none), float32 (B, H, W) of depth without scale, (B, C, H, W) of features.

        Args:
            ids_BN: As `encode` gives them; grids are squares, of any size for transformers.
            options: Of a diffusion decoder.

        Raises:
            DataError: They are no ids of this tokenizer.
        """
        return as_files(self._values(ids_BN, **options), self.domain)

    def pictures(self, ids_BN: NDArray[np.integer], **options: Any) -> NDArray[np.uint8]:
        """uint8 (B, 3, H, W), for people: near is bright, each class has a colour. Arguments are those of `decode`."""
        return as_pictures(self._values(ids_BN, **options), self.domain)

    @torch.inference_mode()
    def _values(
        self,
        ids_BN: NDArray[np.integer],
        *,
        num_steps: int | None = None,
        guidance: float = 1.0,
        seed: int = 0,
    ) -> Tensor:
        ids_BN = np.asarray(ids_BN)
        self._check(ids_BN)
        keys_B = rng.fold(rng.stream_key(seed, "image_tokenizer", "decode"), np.arange(len(ids_BN))).view(np.int64)
        found = []
        for ids, keys in zip(_parts(ids_BN, self._batch_size), _parts(keys_B, self._batch_size), strict=True):
            shaped = self._model.shaped_ids(torch.from_numpy(ids.astype(np.int64)).to(self._device))
            codes_BDhw = self._model.quantizer.codes_of(shaped)
            drawn_from = torch.from_numpy(keys).to(self._device)
            decoded = self._model.decode(codes_BDhw, drawn_from, num_steps=num_steps, guidance=guidance)
            found.append(values_of(decoded, self.domain).cpu())
        return torch.cat(found)

    def _check(self, ids_BN: NDArray[np.integer]) -> None:
        if ids_BN.ndim != 2 or not len(ids_BN) or ids_BN.dtype.kind not in "iu":
            raise DataError(
                f"ids are {ids_BN.dtype} {ids_BN.shape}; a tokenizer decodes integers (images, tokens)\n"
                f"  this one has {self.num_tokens} tokens for an image of {self.config.image_size} pixels"
            )
        num_heads = self.config.quantizer.num_heads
        side = round((ids_BN.shape[1] / num_heads) ** 0.5)
        if side**2 * num_heads != ids_BN.shape[1]:
            raise DataError(
                f"{ids_BN.shape[1]} ids are no square grid with {num_heads} at each place\n"
                f"  this tokenizer has {self.num_tokens} tokens for an image of {self.config.image_size} pixels"
            )
        if ids_BN.min() < 0 or ids_BN.max() >= self.vocab_size:
            raise DataError(
                f"ids go from {ids_BN.min()} to {ids_BN.max()}, but this tokenizer has {self.vocab_size}\n"
                "  give ids that it made"
            )


def _parts(values: NDArray[Any], size: int) -> list[NDArray[Any]]:
    return [values[start : start + size] for start in range(0, len(values), size)]
