"""Settings of image tokenizers. This module does not import torch.

`ImageTokenizerRun` is a `RunConfig` whose model, objective and data are the classes below and in `model_config.py`.
Presets (complete configs) are in `presets.py`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, NonNegativeInt, PositiveInt, model_validator

from pretrainkit.config.base import DEFAULT, Config, Conflict, ConflictError
from pretrainkit.config.fields import NonNegativeFloat
from pretrainkit.config.paths import IsPath
from pretrainkit.data.aligned_crops import CropConfig
from pretrainkit.recipes.image_tokenizer.model_config import CodebookConfig, ImageTokenizerModelConfig
from pretrainkit.training.data_config import DataConfig, SourceConfig, as_sources
from pretrainkit.training.run import RunConfig

Reconstruction = Literal["mse", "l1", "smooth_l1", "cross_entropy", "binary_cross_entropy", "cosine", "cosine_channels"]


class PerceptualConfig(Config):
    """Perceptual loss: compare images by the features of another network."""

    weight: NonNegativeFloat = 0.0
    """Weight of the distance in the loss. 0 turns it off."""
    is_measured: bool = False
    """Report the distance as a held-out metric, whatever its weight; works for diffusion decoders, too. Its name is
    `lpips`, `perceptual_distance`, or, with random weights, `random_network_distance`."""
    network: str = "vit_base_patch16_clip_224.openai"
    """A vision transformer of timm; or lpips_alex, lpips_vgg or lpips_squeeze, which have a distance of their own
    (Zhang et al. 2018, https://arxiv.org/abs/1801.03924)."""
    weights: Annotated[str | None, IsPath()] = None
    """A .safetensors file with the network's weights, named as in timm or in the package lpips. random: initialize with
    seed 0, without a file. null: the published weights, which timm or torchvision download."""
    blocks: tuple[NonNegativeInt, ...] = (2, 5, 8, 11)
    """Indices of the blocks whose outputs are compared."""
    distance: Literal["cosine", "mse", "l1"] = "cosine"
    """Distance between two features."""
    image_size: PositiveInt = 224
    """Height and width in pixels that the network reads. Images are resized to it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        unread = sorted({"blocks", "distance", "image_size"} & self.model_fields_set)
        changed = [name for name in unread if getattr(self, name) != type(self).model_fields[name].default]
        if self.is_lpips and changed:
            message = f"{self.network} does not use {', '.join(changed)}; leave it out"
            raise ConflictError(Conflict(message, [(name, DEFAULT) for name in changed], "network"))
        return self

    @property
    def is_used(self) -> bool:
        """True if the distance is in the loss or in the metrics."""
        return self.weight > 0 or self.is_measured

    @property
    def is_lpips(self) -> bool:
        """True if the network is LPIPS, which defines its own distance and reads images of any size."""
        return self.network in LPIPS

    @property
    def metric(self) -> str:
        """Name of the distance among the metrics."""
        if self.weights == RANDOM_WEIGHTS:
            return "random_network_distance"
        return "lpips" if self.is_lpips else "perceptual_distance"


LPIPS = ("lpips_alex", "lpips_vgg", "lpips_squeeze")
LPIPS_SMALLEST = 64
"""Smallest height and width in pixels. Smaller images shrink to nothing in the pooling layers."""
RANDOM_WEIGHTS = "random"


class ImageTokenizerObjectiveConfig(Config):
    """Settings of the loss."""

    reconstruction: Reconstruction = "mse"
    """Reconstruction loss. mse, l1, smooth_l1: mean over all numbers. cross_entropy: for classes. binary_cross_entropy:
    for masks. cosine: over an image as one vector. cosine_channels: over the channels at each position."""
    commitment_scale: NonNegativeFloat = 1.0
    """Factor of the quantizer's commitment loss."""
    perceptual: PerceptualConfig = PerceptualConfig()
    """Perceptual loss: distance between features of another network."""


class ImageSetConfig(SourceConfig):
    """One data set. On the command line, a plain path means {path: PATH}."""

    path: Annotated[str, IsPath()]
    """A folder with one subfolder per modality, or tar files with one stream per modality, as in the recipe fourm. It
    can also be a folder of images itself, with folder: "."."""
    folder: str | None = None
    """Subfolder with the images. null: that of the domain."""


ImageSets = Annotated[
    tuple[ImageSetConfig, ...],
    BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | ImageSetConfig, ...]),
]


class ImageTokenizerDataConfig(DataConfig):
    """Data of the tokenizer: images of one domain."""

    train: ImageSets = ()
    """Training data: one path, several paths separated by commas, or a list of {path, folder, weight}."""
    valid: ImageSets = ()
    """Held-out data, in the same form as `train`."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """shuffle: a new random permutation of all images each epoch. sequential: in the order in which they are stored."""
    crop: CropConfig = CropConfig(scale=(0.8, 1.0))
    """Random crop in training. Evaluation uses the largest centre square."""
    min_image_size: PositiveInt | None = None
    """Smallest image size in pixels. All images of a step have one size, drawn between this and model.image_size. null:
    always model.image_size."""
    image_size_step: PositiveInt = 32
    """Difference in pixels between two neighbouring image sizes."""
    workers: Literal["threads", "processes"] = "threads"
    """Kind of workers that prepare batches in advance."""
    num_workers: NonNegativeInt = 2
    """Number of workers per rank."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        return self.workers, self.num_workers


class ImageTokenizerRun(RunConfig):
    """One training run of an image tokenizer."""

    recipe: Literal["image_tokenizer"] = "image_tokenizer"
    """Name of the recipe this config belongs to."""
    model: ImageTokenizerModelConfig
    """The architecture."""
    objective: ImageTokenizerObjectiveConfig = ImageTokenizerObjectiveConfig()
    """Settings of the loss."""
    data: ImageTokenizerDataConfig
    """Settings of the data."""

    @property
    def revival_threshold(self) -> float:
        """Average number of latents per update below which a code is revived, computed for the mean image size."""
        quantizer = self.model.quantizer
        if not isinstance(quantizer, CodebookConfig):
            return 0.0
        largest = self.model.image_size
        mean_size = (largest + (self.data.min_image_size or largest)) / 2
        num_tokens = (mean_size / self.model.patch_size) ** 2
        return self.data.batch_size * num_tokens / quantizer.size / quantizer.revival_coefficient

    def problems(self, world_size: int = 1) -> list[str]:
        """List the problems of the base class, and settings of this recipe that conflict."""
        problems = super().problems(world_size)
        return [*problems, *self.model.problems(), *self._loss_problems(), *self._size_problems()]

    def _loss_problems(self) -> Iterator[str]:
        kind, loss = self.model.domain.kind, self.objective.reconstruction
        special = {"classes": ("cross_entropy",), "mask": ("binary_cross_entropy",)}
        fitting = special.get(kind, ("mse", "l1", "smooth_l1", "cosine", "cosine_channels"))
        if loss not in fitting:
            yield Conflict(
                f"objective.reconstruction={loss} does not fit model.domain {self.model.domain.name} of kind {kind}\n"
                f"  use objective.reconstruction={' or '.join(fitting)}",
                [("objective.reconstruction", fitting[0])],
                "model.domain",
            )
        if self.model.is_diffusion and kind not in special and loss not in ("mse", "l1", "smooth_l1"):
            yield Conflict(
                f"objective.reconstruction={loss} does not fit a diffusion decoder\n"
                "  use objective.reconstruction=mse or smooth_l1",
                [("objective.reconstruction", "mse")],
                "model.decoder",
            )
        perceptual, smallest = self.objective.perceptual, self.data.min_image_size or self.model.image_size
        if perceptual.weight and (not self.model.domain.has_pixel_range or self.model.is_diffusion):
            yield Conflict(
                "objective.perceptual.weight works only for pictures (colours, grey, normals) and without diffusion\n"
                "  set objective.perceptual.weight=0",
                [("objective.perceptual.weight", 0)],
                "model.domain",
                "model.decoder",
            )
        if perceptual.is_measured and not self.model.domain.has_pixel_range:
            yield Conflict(
                "objective.perceptual works only for pictures (colours, grey, normals)\n"
                "  set objective.perceptual.is_measured=false",
                [("objective.perceptual.is_measured", False)],
                "model.domain",
            )
        if perceptual.is_lpips and perceptual.is_used and smallest < LPIPS_SMALLEST:
            yield (
                f"objective.perceptual.network={perceptual.network} cannot read images of {smallest} pixels\n"
                f"  use images of at least {LPIPS_SMALLEST} pixels, or a transformer of timm"
            )

    def _size_problems(self) -> Iterator[str]:
        smallest, largest, step = self.data.min_image_size, self.model.image_size, self.data.image_size_step
        patch, remedies = self.model.patch_size, [("data.min_image_size", DEFAULT)]
        if smallest is None:
            return
        if self.model.domain.kind == "features":
            message = "data.min_image_size is for images, but features have only one size\n  leave it out"
            yield Conflict(message, remedies, "model.domain")
        elif smallest > largest or (largest - smallest) % step or step % patch:
            unit = max(patch, step // patch * patch)
            fitting = largest - max(0, (largest - smallest) // unit) * unit
            yield Conflict(
                f"sizes from data.min_image_size={smallest} to model.image_size={largest} in steps of "
                f"data.image_size_step={step} do not fit\n"
                f"  the step must be a multiple of model.patch_size={patch} and divide the difference, as with\n"
                f"  data.min_image_size={fitting} data.image_size_step={unit}",
                remedies,
                "model.image_size",
                "model.patch_size",
                "data.image_size_step",
            )
