"""Settings of probing. Imports no torch."""

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
    """linear and cached: number of passes over the training images."""
    batch_size: PositiveInt = 16384
    """linear and cached: images of one update, limited to the number of training images."""
    peak_lr: tuple[PositiveFloat, ...] = ()
    """linear and cached: one or several learning rates, each for a separate layer; empty: 6.4 for linear, and 0.3, 1,
    3, 10, 30 and 100 for cached."""
    warmup_share: Annotated[float, Field(ge=0, le=1)] = 0.1111
    """linear and cached: share of the updates until the learning rate is reached; then it decays to 0 along a
    cosine."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """linear and cached: momentum of LARS; the learning rate is included in the momentum buffer."""
    weight_decay: NonNegativeFloat = 0.0
    """linear and cached: weight decay of LARS."""
    augment: tuple[ImageTransform, ...] | None = None
    """linear: augmentation of training images; null: a random crop of 8 to 100 % of the area, then autoaug."""
    num_neighbours: PositiveInt = 20
    """knn: number of neighbours that vote."""
    knn_temperature: PositiveFloat = 0.07
    """knn: the weight of a vote is exp(cosine / this)."""
    images_per_pass: PositiveInt = 64
    """Images of one forward pass of the encoder."""
    num_threads: NonNegativeInt = 2
    """Number of threads that decode images in advance; 0: none."""
    seed: NonNegativeInt = 0
    """Seed of the initial weights, the order and the augmentation."""

    def learning_rates(self, method: Method) -> tuple[float, ...]:
        return self.peak_lr or ((6.4,) if method == "linear" else (0.3, 1.0, 3.0, 10.0, 30.0, 100.0))

    def train_transforms(self, size: int) -> tuple[ImageTransform, ...]:
        """Return the augmentation for an encoder of images of size x size."""
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
    """Return the transforms for an encoder of images of size x size: resize by 256/224, then crop the centre."""
    return Resize(size=round(size * 256 / 224)), CenterCrop(size=size)
