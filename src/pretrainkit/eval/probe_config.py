"""Settings of probing. Torch-free."""

from typing import Annotated, Literal, TypedDict

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.images.ops import AutoAugment, CenterCrop, ImageTransform, RandomResizeCrop, Resize

Method = Literal["linear", "cached", "knn"]


class ProbeConfig(Config):
    """Classification with the features of a frozen image encoder. The defaults of `linear` are ZeroVL's on ImageNet."""

    methods: tuple[Method, ...] = ("cached", "knn")
    """linear: a linear layer trained on images with new augmentations in each epoch. cached: the same on features
    computed once, without augmentation, for several learning rates at once. knn: a vote of the nearest training
    images."""
    num_epochs: PositiveInt = 90
    """linear and cached: passes over the training images."""
    batch_size: PositiveInt = 16384
    """linear and cached: images of an update, at most all of them."""
    peak_lr: tuple[PositiveFloat, ...] = ()
    """linear and cached: one or several learning rates, each with a layer of its own; empty: 6.4 for linear, and
    0.3, 1, 3, 10, 30 and 100 for cached."""
    warmup_share: Annotated[float, Field(ge=0, le=1)] = 0.1111
    """linear and cached: share of the updates until the learning rate is reached; then a cosine to 0."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """linear and cached: of LARS; the learning rate is inside."""
    weight_decay: NonNegativeFloat = 0.0
    """linear and cached: of LARS."""
    augment: tuple[ImageTransform, ...] | None = None
    """linear: of training images; null: a random crop of 8 to 100 % of the area, then autoaug."""
    num_neighbours: PositiveInt = 20
    """knn: how many vote."""
    knn_temperature: PositiveFloat = 0.07
    """knn: a vote weighs exp(cosine / this)."""
    images_per_pass: PositiveInt = 64
    """Images of a forward pass of the encoder."""
    num_threads: NonNegativeInt = 2
    """Number of threads that decode images in advance; 0: none."""
    seed: NonNegativeInt = 0
    """Seed of the initial weights, the order and the augmentation."""

    def learning_rates(self, method: Method) -> tuple[float, ...]:
        return self.peak_lr or ((6.4,) if method == "linear" else (0.3, 1.0, 3.0, 10.0, 30.0, 100.0))

    def train_transforms(self, size: int) -> tuple[ImageTransform, ...]:
        """For an encoder of images of size x size."""
        return (RandomResizeCrop(size=size, scale=(0.08, 1.0)), AutoAugment()) if self.augment is None else self.augment


class ProbeOptions(TypedDict, total=False):
    """The fields of `ProbeConfig`."""

    methods: tuple[Method, ...]
    num_epochs: int
    batch_size: int
    peak_lr: tuple[float, ...]
    warmup_share: float
    momentum: float
    weight_decay: float
    augment: tuple[ImageTransform, ...] | None
    num_neighbours: int
    knn_temperature: float
    images_per_pass: int
    num_threads: int
    seed: int


def valid_transforms(size: int) -> tuple[ImageTransform, ...]:
    """For an encoder of images of size x size: to 256 of 224, then the centre."""
    return Resize(size=round(size * 256 / 224)), CenterCrop(size=size)
