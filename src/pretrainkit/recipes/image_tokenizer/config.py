"""Settings of image tokenizers. Torch-free.

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
    """Images are compared by what another network sees in them, too."""

    weight: NonNegativeFloat = 0.0
    """Of the distance in the loss; 0: none."""
    is_measured: bool = False
    """Held-out metrics have the distance whatever its weight, of diffusion decoders, too: as `lpips`, as
    `perceptual_distance`, or, of a network that has learned nothing, as `random_network_distance`."""
    network: str = "vit_base_patch16_clip_224.openai"
    """A transformer of timm; or lpips_alex, lpips_vgg or lpips_squeeze, which have a distance of their own (Zhang et
    al. 2018, https://arxiv.org/abs/1801.03924)."""
    weights: Annotated[str | None, IsPath()] = None
    """A .safetensors file of the network's weights by the names of timm, or of the package lpips; random: as they are
    drawn with seed 0, which needs no file; null: the published ones, which timm or torchvision fetch."""
    blocks: tuple[NonNegativeInt, ...] = (2, 5, 8, 11)
    """Whose outputs are compared."""
    distance: Literal["cosine", "mse", "l1"] = "cosine"
    """Of two features."""
    image_size: PositiveInt = 224
    """Pixels of a side that the network reads; images are resized to it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        unread = sorted({"blocks", "distance", "image_size"} & self.model_fields_set)
        changed = [name for name in unread if getattr(self, name) != type(self).model_fields[name].default]
        if self.is_lpips and changed:
            message = f"{self.network} does not read {', '.join(changed)}; leave it out"
            raise ConflictError(Conflict(message, [(name, DEFAULT) for name in changed], "network"))
        return self

    @property
    def is_used(self) -> bool:
        """Whether anything asks for the distance."""
        return self.weight > 0 or self.is_measured

    @property
    def is_lpips(self) -> bool:
        """Whether the network has a distance of its own, on images as they are."""
        return self.network in LPIPS

    @property
    def metric(self) -> str:
        """What the distance is called where it is measured."""
        if self.weights == RANDOM_WEIGHTS:
            return "random_network_distance"
        return "lpips" if self.is_lpips else "perceptual_distance"


LPIPS = ("lpips_alex", "lpips_vgg", "lpips_squeeze")
LPIPS_SMALLEST = 64
"""Pixels of a side; what is smaller vanishes between the layers."""
RANDOM_WEIGHTS = "random"


class ImageTokenizerObjectiveConfig(Config):
    """What a good reconstruction is."""

    reconstruction: Reconstruction = "mse"
    """mse, l1, smooth_l1: per number. cross_entropy: of classes. binary_cross_entropy: of masks. cosine: of all numbers
    of an image as one vector. cosine_channels: of the channels at each place."""
    commitment_scale: NonNegativeFloat = 1.0
    """Factor of the quantizer's own loss."""
    perceptual: PerceptualConfig = PerceptualConfig()
    """Distance in the features of another network."""


class ImageSetConfig(SourceConfig):
    """One data set. On the command line a plain path stands for {path: PATH}."""

    path: Annotated[str, IsPath()]
    """A folder with a folder for each modality, or tar files with one stream for each, as in the recipe fourm; or a
    folder of images itself, with folder=."""
    folder: str | None = None
    """Where its images are; null: as the domain says."""


ImageSets = Annotated[
    tuple[ImageSetConfig, ...],
    BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | ImageSetConfig, ...]),
]


class ImageTokenizerDataConfig(DataConfig):
    """What the tokenizer is fed: images of one domain."""

    train: ImageSets = ()
    """To train on: one path, several separated by commas, or a list of {path, folder, weight}."""
    valid: ImageSets = ()
    """Held out; the same kinds of paths."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """shuffle: every image independently permuted, anew each epoch. sequential: as stored."""
    crop: CropConfig = CropConfig(scale=(0.8, 1.0))
    """Which part of an image is used in training; in evaluation it is the largest centre square."""
    min_image_size: PositiveInt | None = None
    """Steps have images of one size each, drawn from this to model.image_size; null: always that."""
    image_size_step: PositiveInt = 32
    """Between two sizes."""
    workers: Literal["threads", "processes"] = "threads"
    """What prepares batches ahead."""
    num_workers: NonNegativeInt = 2
    """How many per rank."""

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
    """What a good reconstruction is."""
    data: ImageTokenizerDataConfig
    """What the tokenizer is fed."""

    @property
    def revival_threshold(self) -> float:
        """Average use per update below which a code is dead, at the mean size of images."""
        quantizer = self.model.quantizer
        if not isinstance(quantizer, CodebookConfig):
            return 0.0
        largest = self.model.image_size
        mean_size = (largest + (self.data.min_image_size or largest)) / 2
        num_tokens = (mean_size / self.model.patch_size) ** 2
        return self.data.batch_size * num_tokens / quantizer.size / quantizer.revival_coefficient

    def problems(self, world_size: int = 1) -> list[str]:
        """What the base class finds, and settings of this recipe that cannot work together."""
        found = super().problems(world_size)
        return [*found, *self.model.problems(), *self._loss_problems(), *self._size_problems()]

    def _loss_problems(self) -> Iterator[str]:
        kind, loss = self.model.domain.kind, self.objective.reconstruction
        special = {"classes": ("cross_entropy",), "mask": ("binary_cross_entropy",)}
        fitting = special.get(kind, ("mse", "l1", "smooth_l1", "cosine", "cosine_channels"))
        if loss not in fitting:
            yield Conflict(
                f"objective.reconstruction={loss} does not fit {kind} of model.domain {self.model.domain.name}\n"
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
        if perceptual.weight and (not self.model.domain.is_flat or self.model.is_diffusion):
            yield Conflict(
                "objective.perceptual compares pictures of decoders without diffusion\n"
                "  set objective.perceptual.weight=0",
                [("objective.perceptual.weight", 0)],
                "model.domain",
                "model.decoder",
            )
        if perceptual.is_measured and not self.model.domain.is_flat:
            yield Conflict(
                "objective.perceptual compares pictures\n  set objective.perceptual.is_measured=false",
                [("objective.perceptual.is_measured", False)],
                "model.domain",
            )
        if perceptual.is_lpips and perceptual.is_used and smallest < LPIPS_SMALLEST:
            yield (
                f"objective.perceptual.network={perceptual.network} cannot read images of {smallest} pixels\n"
                f"  use at least {LPIPS_SMALLEST}, or a transformer of timm"
            )

    def _size_problems(self) -> Iterator[str]:
        smallest, largest, step = self.data.min_image_size, self.model.image_size, self.data.image_size_step
        patch, remedies = self.model.patch_size, [("data.min_image_size", DEFAULT)]
        if smallest is None:
            return
        if self.model.domain.kind == "features":
            message = "data.min_image_size is for images; features have one size\n  leave it out"
            yield Conflict(message, remedies, "model.domain")
        elif smallest > largest or (largest - smallest) % step or step % patch:
            unit = max(patch, step // patch * patch)
            fitting = largest - max(0, (largest - smallest) // unit) * unit
            yield Conflict(
                f"sizes from data.min_image_size={smallest} to model.image_size={largest} in steps of "
                f"data.image_size_step={step} do not fit\n"
                f"  steps are multiples of model.patch_size={patch} and lead from one to the other, as with\n"
                f"  data.min_image_size={fitting} data.image_size_step={unit}",
                remedies,
                "model.image_size",
                "model.patch_size",
                "data.image_size_step",
            )
