"""The image tower alone, as a frozen source of features. Dimensions: B images, F width of the tower."""

import torch
from torch import Tensor

from pretrainkit.errors import ConfigError, InputError
from pretrainkit.eval.image_encoder import ImageEncoder
from pretrainkit.images.transforms import compose
from pretrainkit.recipes.clip.config import ClipRun, TimmConfig
from pretrainkit.recipes.clip.model import DualEncoder


def image_encoder(config: ClipRun, model: DualEncoder) -> ImageEncoder:
    """Features of the width of the tower (for a vision transformer with `pool: cls`, its class token), neither
    projected nor normalised; images of the size that the run evaluated on."""

    def encode(image_B3HW: Tensor) -> Tensor:
        features_BF: Tensor = model.image(model.normalized(image_B3HW))
        return features_BF

    return ImageEncoder(model.image, encode, compose(config.data.valid_transforms).size)


def timm_encoder(name: str) -> ImageEncoder:
    """An encoder of timm with its published weights, for images of the size that it was trained with.

    Raises:
        InputError, MissingPackageError: timm does not know the name, its weights cannot be fetched, or it is not
            installed.
    """
    from pretrainkit.recipes.clip.timm_tower import TimmTower

    try:
        tower = TimmTower(TimmConfig(name=name))
    except ConfigError as error:
        raise InputError(
            f"timm gives no encoder timm:{name}: {error.__cause__}\n"
            "  names: python -c 'import timm; print(timm.list_pretrained())'; without network, its weights must be in "
            "the hub's cache already"
        ) from error
    mean_311, deviation_311 = (torch.tensor(color).view(3, 1, 1) for color in tower.mean_and_deviation)

    def encode(image_B3HW: Tensor) -> Tensor:
        pixels = (image_B3HW.float() / 255 - mean_311.to(image_B3HW.device)) / deviation_311.to(image_B3HW.device)
        features_BF: Tensor = tower(pixels)
        return features_BF

    return ImageEncoder(tower, encode, int(tower.encoder.pretrained_cfg["input_size"][-1]))
