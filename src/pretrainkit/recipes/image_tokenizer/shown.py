"""Values of any domain as pictures for people.

Dimensions: C channels, E channels of a decoder's output, H x W pixels.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit.recipes.image_tokenizer.domain import Domain

_DEPTH_REACH = 2.5
"""Deviations from the mean that are shown."""
_HUE_STEP = 0.61803398875
"""Of neighbouring classes: the golden section, so that near numbers look different."""


def values_of(decoded: Tensor, domain: Domain) -> Tensor:
    """What `ImageTokenizer.decode` gives, as values like those of `model.prepared`: classes int64 (B, H, W), masks 0 or
    1, colours from -1 to 1."""
    if domain.kind == "classes":
        return decoded.argmax(1)
    if domain.kind == "mask":
        return (decoded > 0).float()
    return decoded.clamp(-1, 1) if domain.is_flat else decoded


def as_files(values: Tensor, domain: Domain) -> NDArray:
    """Values as files hold them: uint8 (B, H, W, 3) of colours and normals, uint8 (B, H, W) of grey, masks (0 and 255)
    and classes (255 for none; int16 where there are more than 255), float32 (B, H, W) of depth, (B, C, H, W) of
    features."""
    found = values.cpu()
    if domain.kind == "classes":
        classes = torch.where(found == 0, 255, found - 1).numpy()
        return classes.astype(np.uint8 if (domain.num_classes or 0) <= 256 else np.int16)
    if domain.kind == "mask":
        return (found[:, 0].numpy() * 255).astype(np.uint8)
    if domain.is_flat:
        pixels = ((found.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return (pixels[:, 0] if domain.kind == "grey" else pixels.permute(0, 2, 3, 1)).numpy()
    return (found[:, 0] if domain.kind == "depth" else found).float().numpy()


def as_pictures(values: Tensor, domain: Domain) -> NDArray[np.uint8]:
    """uint8 (B, 3, H, W) for people: near is bright, each class has a colour, features are their first components."""
    found = values.cpu()
    if domain.kind == "classes":
        return _palette(domain.num_classes or 1)[found.numpy()].transpose(0, 3, 1, 2)
    if domain.kind == "mask":
        grey = found[:, :1]
    elif domain.kind == "depth":
        grey = (1 - (found[:, :1] + _DEPTH_REACH) / (2 * _DEPTH_REACH)).clamp(0, 1)
    elif domain.kind == "features":
        return _components(found)
    else:
        grey = (found.clamp(-1, 1) + 1) / 2
    pixels = (grey * 255).round().to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1).numpy()


def _palette(num: int) -> NDArray[np.uint8]:
    """(classes, 3); the first, for none, is black."""
    hue = np.arange(num) * _HUE_STEP % 1
    angle = 2 * np.pi * (hue[:, None] + np.array([0, 1 / 3, 2 / 3]))
    colors = (127.5 * (1 + 0.9 * np.cos(angle))).astype(np.uint8)
    colors[0] = 0
    return colors


def _components(values_BCHW: Tensor) -> NDArray[np.uint8]:
    """The three directions in which the features of a batch differ most, as colours."""
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
