"""The image tower alone, as a frozen source of features."""

from torch import Tensor

from pretrainkit.recipes.clip.checks import output_size
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.model import DualEncoder
from pretrainkit.training.recipe import ImageEncoder


def image_encoder(config: ClipRun, model: DualEncoder) -> ImageEncoder:
    """Features of the width of the tower (for a vision transformer with `pool: cls`, its class token), neither
    projected nor normalised; images of the size that the run evaluated on."""
    model.image.requires_grad_(False)

    def encode(image_B3HW: Tensor) -> Tensor:
        features_BF: Tensor = model.image(model.normalized(image_B3HW))
        return features_BF

    size = output_size(config.data.valid_transforms, "data.valid_transforms")
    return ImageEncoder(model.image, encode, size)
