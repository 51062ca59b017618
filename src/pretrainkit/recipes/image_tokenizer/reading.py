"""One file to one image, cut and resized, as `model.prepared` reads it.

Dimensions: H x W pixels, C channels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.aligned_crops import Part
from pretrainkit.data.aligned_values import IMAGE_SUFFIXES, read_array, read_map, standardised
from pretrainkit.errors import DataError
from pretrainkit.images.decode import open_image
from pretrainkit.recipes.image_tokenizer.domain import Domain
from pretrainkit.recipes.image_tokenizer.model_config import ImageTokenizerModelConfig

_NO_CLASS = 255


def suffixes_of(domain: Domain) -> tuple[str, ...]:
    """Of the files of a domain, in lower case."""
    if domain.kind == "features":
        return (".npy",)
    if domain.kind in ("depth", "classes", "mask"):
        return (".png", ".npy")
    return IMAGE_SUFFIXES


def image_size(content: bytes, domain: Domain, name: str) -> tuple[int, int]:
    """(height, width) of what a file holds; of features the places."""
    if domain.kind == "features":
        found = read_array(content, name)
        return (1, 1) if found.ndim == 1 else (found.shape[-2], found.shape[-1])
    if domain.kind in ("depth", "classes", "mask"):
        height, width = read_map(content, name).shape
        return height, width
    encoded = open_image(content, name=name)
    return encoded.height, encoded.width


def read_image(
    content: bytes, model: ImageTokenizerModelConfig, part: Part, name: str, *, is_exact: bool
) -> NDArray[Any]:
    """uint8 (C, H, W) of colours, grey, normals and masks; float32 (C, H, W) of depth and features; int16 (H, W) of
    classes.

    `is_exact`: a JPEG is decoded whole and resized by Pillow, not at a part of its size.

    Raises:
        DataError: The file is broken or does not fit the model.
    """
    domain, size = model.domain, model.image_size
    if domain.kind == "features":
        return _features(content, model, name)
    if domain.kind == "depth":
        depth_HW = part.nearest(read_map(content, name).astype(np.float32), size, size)
        return standardised(depth_HW).astype(np.float32)[None]
    if domain.kind == "mask":
        return (part.nearest(read_map(content, name), size, size) > 0).astype(np.uint8)[None]
    if domain.kind == "classes":
        return _classes(part.nearest(read_map(content, name).astype(np.int64), size, size), domain, name)
    encoded = open_image(content, name=name)
    window = part.resized((encoded.height, encoded.width), size, size, is_exact=is_exact)
    image_HWC = part.flipped(window(encoded.decode(window.wanted())))
    if domain.kind == "normals" and part.is_flipped:
        image_HWC = np.concatenate((255 - image_HWC[:, :, :1], image_HWC[:, :, 1:]), axis=2)
    if domain.kind == "grey":
        image_HWC = image_HWC[:, :, :1]
    return np.ascontiguousarray(image_HWC.transpose(2, 0, 1))


def _classes(classes_HW: NDArray[np.int64], domain: Domain, name: str) -> NDArray[np.int16]:
    assert domain.num_classes is not None
    largest = int(np.where(classes_HW == _NO_CLASS, -1, classes_HW).max())
    if largest >= domain.num_classes - 1:
        raise DataError(
            f"{name} has class {largest}, but model.domain has num_classes={domain.num_classes} with one for none, so "
            f"the last is {domain.num_classes - 2}\n  set model.domain.num_classes={largest + 2} or more"
        )
    return classes_HW.astype(np.int16)


def _features(content: bytes, model: ImageTokenizerModelConfig, name: str) -> NDArray[np.float32]:
    found = read_array(content, name)
    found = found[:, None, None] if found.ndim == 1 else found
    wanted = (model.domain.num_channels, model.grid, model.grid)
    if found.shape != wanted or found.dtype.kind != "f":
        raise DataError(
            f"{name} holds {found.dtype} {found.shape}, but model.domain {model.domain.name} at model.image_size="
            f"{model.image_size} needs floats {wanted}\n  set image_size to the places of a side x patch_size, or "
            "make the features anew"
        )
    return found.astype(np.float32)
