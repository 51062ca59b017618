"""Domains of images (colours, depth, classes, features of other models) and settings of the architecture. This module
does not import torch.

Sources: 4M-21 (https://arxiv.org/abs/2406.09406), appendix on tokenizers, for names and channels of the published
domains; the released code of `apple/ml-4m`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrainkit.config.base import DEFAULT, Config, Conflict, ConflictError, ReadBy
from pretrainkit.config.fields import FileName, NonNegativeFloat, Rate

Kind = Literal["colors", "grey", "normals", "mask", "depth", "classes", "features"]


class Domain(Config):
    """Content of a tokenizer's images, and how they are read."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"folder"})

    name: FileName
    """Name of the domain. Its tokens are the modality tok_NAME, such as tok_rgb."""
    kind: Kind
    """colors: RGB from -1 to 1. grey: one channel from -1 to 1. normals: directions as colours; mirroring an image
    negates their first component. mask: 0 and 1. depth: one standardized channel. classes: numbers, which are embedded.
    features: maps of another model's features, or one vector, in .npy files (C, H, W) or (C,)."""
    num_channels: PositiveInt
    """Number of channels of the encoder's input. For classes: width of their embedding."""
    num_classes: PositiveInt | None = None
    """For classes only: number of classes, including "no class". "No class" is 255 in files and 0 in the model; class n
    of a file is n + 1 in the model."""
    folder: str | None = None
    """Subfolder of the images in a data set. ".": the data set's folder itself. null: the domain's name."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        description = f"domain {self.name!r} is of kind {self.kind!r}"
        if self.kind == "classes" and self.num_classes is None:
            raise ValueError(f"{description}, which needs num_classes\n  set num_classes, counting one for no class")
        if self.kind != "classes" and self.num_classes is not None:
            message = f"{description}, which does not use num_classes={self.num_classes}\n  leave num_classes out"
            raise ConflictError(Conflict(message, [("num_classes", None)], "kind"))
        expected = {"colors": 3, "grey": 1, "normals": 3, "mask": 1, "depth": 1}.get(self.kind, self.num_channels)
        if self.num_channels != expected:
            message = (
                f"{description} with num_channels={self.num_channels}\n  set num_channels={expected}, or another kind"
            )
            raise ConflictError(Conflict(message, [("num_channels", expected)], "kind"))
        return self

    @property
    def path(self) -> str:
        """Name of the domain's folder in a data set."""
        return self.folder or self.name

    @property
    def num_outputs(self) -> int:
        """Number of output channels of a decoder: one logit per class for classes, else `num_channels`."""
        return self.num_classes or self.num_channels

    @property
    def has_pixel_range(self) -> bool:
        """True if values are between -1 and 1, as for pictures."""
        return self.kind in ("colors", "grey", "normals")


def _features(name: str, width: int) -> Domain:
    return Domain(name=name, kind="features", num_channels=width)


DOMAINS: Mapping[str, Domain] = {
    domain.name: domain
    for domain in (
        Domain(name="rgb", kind="colors", num_channels=3),
        Domain(name="depth", kind="depth", num_channels=1),
        Domain(name="normal", kind="normals", num_channels=3),
        Domain(name="semseg_coco", kind="classes", num_channels=64, num_classes=134, folder="semseg"),
        Domain(name="canny_edge", kind="grey", num_channels=1),
        Domain(name="sam_mask", kind="mask", num_channels=1),
        _features("CLIP-B16", 512),
        _features("DINOv2-B14", 768),
        _features("ImageBind-H14", 1280),
        _features("DINOv2-B14-global", 768),
        _features("ImageBind-H14-global", 1280),
        _features("human_poses", 207),
    )
}
"""The published domains by name."""


def _named(value: object) -> object:
    if isinstance(value, str):
        if value not in DOMAINS:
            raise ValueError(f"there is no domain {value!r}; use one of {', '.join(DOMAINS)}, or give name, kind, …")
        return DOMAINS[value]
    return value


NamedDomain = Annotated[Domain, BeforeValidator(_named, json_schema_input_type=str | Domain)]
"""A domain in a config: a mapping of its fields, or the name of a published domain."""


class ViTCoderConfig(Config):
    """A transformer over patches."""

    kind: Literal["vit"] = "vit"
    """A transformer."""
    hidden_size: Annotated[int, Field(gt=0, multiple_of=4)]
    """Width of the transformer."""
    num_layers: PositiveInt
    """Number of blocks of the transformer."""
    num_heads: PositiveInt
    """Number of attention heads; must divide hidden_size."""
    has_last_mlp: bool = True
    """Add a feed-forward layer with tanh, computed in float32, after the last block."""
    num_output_convolutions: NonNegativeInt = 0
    """Decoder only: number of ConvNeXt blocks on the output, which smooth the edges between patches. The published
    tokenizer of masks has 2."""
    position_grid: PositiveInt | None = None
    """Rows, and columns, of the table of positions, which is interpolated to the grid of an image. null: those of
    model.image_size."""


class ConvCoderConfig(Config):
    """Residual convolutions. Each level has half the resolution of the previous one."""

    kind: Literal["conv"] = "conv"
    """Convolutions."""
    width: Annotated[int, Field(gt=0, multiple_of=8)]
    """Number of channels at full resolution."""
    multipliers: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Number of channels at each level, as multiples of width. There are log2(patch_size) + 1 levels."""
    num_blocks: PositiveInt = 1
    """Number of residual blocks per level."""
    has_attention: bool = True
    """Add self-attention at the lowest resolution."""


class MLPCoderConfig(Config):
    """An MLP applied to each position, for features and vectors (https://arxiv.org/abs/2306.13575)."""

    kind: Literal["mlp"] = "mlp"
    """The coder is an MLP."""
    width: PositiveInt
    """Width of the residual stream."""
    num_blocks: PositiveInt
    """Number of residual blocks."""
    expansion: PositiveInt = 4
    """Width inside a block, as a multiple of width."""


class NoiseConfig(Config):
    """Settings of a diffusion process: noise schedule and prediction target."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"loss", "dropout", "masks_places"})

    num_times: Annotated[int, Field(ge=2)] = 1000
    """Number of diffusion steps from image to noise."""
    schedule: Literal["linear", "squared_cosine", "shifted_cosine"] = "squared_cosine"
    """Noise schedule. linear: variances from 1e-4 to 0.02. squared_cosine: Nichol & Dhariwal 2021. shifted_cosine: a
    cosine schedule with a shifted log signal-to-noise ratio (Hoogeboom et al. 2023)."""
    shift: Annotated[PositiveFloat, ReadBy("schedule", ("shifted_cosine",))] = 1.0
    """shifted_cosine only: values above 1 add noise, values below 1 reduce it."""
    ends_in_noise: bool = True
    """Rescale the schedule so that the last time is pure noise (https://arxiv.org/abs/2305.08891)."""
    prediction: Literal["image", "noise", "velocity"] = "velocity"
    """Quantity that the decoder predicts."""
    loss: Literal["prediction", "noise"] = "prediction"
    """Quantity that the loss compares: the prediction, or the noise that is computed from it."""
    dropout: Rate = 0.0
    """Share of the examples whose codes are hidden in training, for classifier-free guidance."""
    masks_places: bool = False
    """In those examples, hide the codes at a random subset of the positions instead of all codes."""


class UNetConfig(Config):
    """A convolutional diffusion decoder (DiVAE). Its input is patches of pixels, concatenated with the codes."""

    kind: Literal["unet"] = "unet"
    """A convolutional UNet."""
    noise: NoiseConfig = NoiseConfig()
    """The diffusion process."""
    patch_size: PositiveInt = 4
    """Height and width in pixels of a patch. The pixels of a patch become channels."""
    width: Annotated[int, Field(gt=0, multiple_of=8)] = 256
    """Number of channels of the first level."""
    multipliers: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1, 2, 2, 2)
    """Number of channels at each level, as multiples of width."""
    num_blocks: PositiveInt = 3
    """Number of residual blocks per level."""
    attention_at: tuple[PositiveInt, ...] = (4, 8)
    """Add attention at levels whose resolution is that of the patches divided by one of these."""


class UViTConfig(Config):
    """A diffusion decoder: convolutions around a transformer that is conditioned on the codes."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"dropout"})

    kind: Literal["uvit"] = "uvit"
    """A UViT: convolutions around a transformer."""
    noise: NoiseConfig = NoiseConfig()
    """The diffusion process."""
    patch_size: PositiveInt = 4
    """Height and width in pixels of a patch."""
    widths: Annotated[tuple[Annotated[int, Field(gt=0, multiple_of=8)], ...], Field(min_length=1)] = (128, 256)
    """Number of channels of each level."""
    num_blocks: PositiveInt = 2
    """Number of residual blocks per level."""
    halves_before_middle: bool = True
    """Halve the resolution another time before the transformer."""
    hidden_size: Annotated[int, Field(gt=0, multiple_of=4)] = 768
    """Width of the transformer."""
    num_layers: PositiveInt = 12
    """Number of blocks of the transformer."""
    num_heads: PositiveInt = 12
    """Number of attention heads of the transformer."""
    dropout: Rate = 0.2
    """Dropout rate in the blocks of the transformer."""


CoderConfig = Annotated[ViTCoderConfig | ConvCoderConfig | MLPCoderConfig, Field(discriminator="kind")]
DecoderConfig = Annotated[
    ViTCoderConfig | ConvCoderConfig | MLPCoderConfig | UNetConfig | UViTConfig, Field(discriminator="kind")
]


class CodebookConfig(Config):
    """A table of codes. Each code is a moving average of the latents assigned to it (van den Oord et al. 2017)."""

    num_heads: ClassVar[int] = 1
    """Number of ids per position."""
    kind: Literal["codebook"] = "codebook"
    """Learned codes. A latent gets the nearest code."""
    neutral_fields: ClassVar[frozenset[str]] = frozenset(
        {"decay", "commitment_weight", "first_codes", "num_kmeans_rounds", "revival", "revival_coefficient"}
    )

    size: PositiveInt
    """Number of codes."""
    width: PositiveInt = 32
    """Width of a code."""
    distance: Literal["cosine", "euclidean"] = "cosine"
    """Distance that defines the nearest code. With cosine, codes have length 1."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Decay of the moving averages per update."""
    commitment_weight: NonNegativeFloat = 1.0
    """Weight of the commitment loss: the mean squared distance between latents and their codes."""
    normalizes_latents: bool = False
    """Normalize latents to length 1 for the comparison and for the commitment loss. Otherwise, cosine normalizes them
    only for the comparison."""
    first_codes: Literal["random", "kmeans"] = "random"
    """Initial codes: random, or kmeans clusters of the latents of the first update."""
    num_kmeans_rounds: Annotated[PositiveInt, ReadBy("first_codes", ("kmeans",))] = 10
    """kmeans only: number of rounds."""
    revival: Literal["latents", "split", "none"] = "latents"
    """Replacement of codes that are hardly used. latents: random latents of the batch. split: copies of the most used
    codes with a little noise (Linde, Buzo & Gray 1980). none: keep them."""
    revival_coefficient: Annotated[PositiveFloat, ReadBy("revival", ("latents", "split"))] = 32.0
    """Replace codes whose use is below the average use of all codes divided by this."""

    @property
    def vocab_size(self) -> int:
        """Number of different ids."""
        return self.size


class MemcodesConfig(Config):
    """Several tables of codes. Each position selects one code of each table by attention."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"temperature"})

    kind: Literal["memcodes"] = "memcodes"
    """Learned codes that are selected by attention scores."""
    size: PositiveInt
    """Number of codes in each table."""
    width: PositiveInt
    """Width of the latents. num_heads must divide it."""
    num_heads: PositiveInt = 8
    """Number of tables, and of ids per position."""
    temperature: PositiveFloat = 1.0
    """Temperature of the Gumbel softmax that draws codes in training."""

    @property
    def vocab_size(self) -> int:
        """Number of different ids."""
        return self.size

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} cannot be split over num_heads {self.num_heads}; change one of them")
        return self


class FiniteScalarConfig(Config):
    """Finite scalar quantization (FSQ): round each number of a latent, without a table of codes (Mentzer et al. 2023,
    https://arxiv.org/abs/2309.15505)."""

    num_heads: ClassVar[int] = 1
    """Number of ids per position."""
    kind: Literal["fsq"] = "fsq"
    """Finite scalar quantization."""
    levels: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    """For each number of a latent, the number of values that it can take. The product of these is the number of ids:
    8,5,5,5 give 1000."""

    @property
    def vocab_size(self) -> int:
        """Number of different ids."""
        return math.prod(self.levels)

    @property
    def width(self) -> int:
        """Width of the latents."""
        return len(self.levels)


QuantizerConfig = Annotated[CodebookConfig | MemcodesConfig | FiniteScalarConfig, Field(discriminator="kind")]


class ImageTokenizerModelConfig(Config):
    """Settings of encoder, quantizer and decoder for images of one domain."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"is_encoder_frozen", "image_size", "num_sampling_steps"})

    domain: NamedDomain
    """Content of the images: a published domain such as rgb or depth, or a mapping with name, kind, …"""
    image_size: PositiveInt
    """Height and width of images in pixels. For features: the number of rows of the map times patch_size. Transformers
    read other sizes too."""
    patch_size: PositiveInt = 16
    """Height and width in pixels of the square that a token represents."""
    encoder: CoderConfig
    """The encoder, from images to latents."""
    quantizer: QuantizerConfig
    """The quantizer, from latents to ids."""
    decoder: DecoderConfig
    """The decoder, from codes to images."""
    is_encoder_frozen: bool = False
    """Do not train encoder and quantizer, for example to train a new decoder of a finished tokenizer (with
    init_from)."""
    num_sampling_steps: PositiveInt = 25
    """Diffusion decoders only: number of sampling steps per image. The original takes more steps than given if their
    number does not divide `decoder.noise.num_times`."""

    @property
    def grid(self) -> int:
        """Number of rows, and of columns, of the token grid."""
        return self.image_size // self.patch_size

    @property
    def num_tokens(self) -> int:
        """Number of tokens of an image."""
        return self.grid**2 * self.quantizer.num_heads

    @property
    def is_diffusion(self) -> bool:
        """True if the decoder is a diffusion decoder."""
        return isinstance(self.decoder, UNetConfig | UViTConfig)

    @property
    def vocab_size(self) -> int:
        """Number of different ids."""
        return self.quantizer.vocab_size

    def problems(self) -> list[str]:
        """List the conflicts between settings, each as a message."""
        return [*self._coder_problems(), *self._diffusion_problems()]

    def _coder_problems(self) -> Iterator[str]:
        if self.image_size % self.patch_size:
            yield (
                f"model.image_size {self.image_size} is not a multiple of model.patch_size {self.patch_size}\n"
                f"  nearest: {self.image_size // self.patch_size * self.patch_size or self.patch_size}"
            )
        for side, coder in (("encoder", self.encoder), ("decoder", self.decoder)):
            if isinstance(coder, ViTCoderConfig | UViTConfig) and coder.hidden_size % coder.num_heads:
                yield (
                    f"model.{side}.hidden_size {coder.hidden_size} cannot be split over {coder.num_heads} heads\n"
                    "  use a hidden_size that is a multiple of the number of heads"
                )
            if isinstance(coder, ConvCoderConfig) and 2 ** (len(coder.multipliers) - 1) != self.patch_size:
                yield (
                    f"model.{side} halves the resolution {len(coder.multipliers) - 1} times, which makes patches of "
                    f"{2 ** (len(coder.multipliers) - 1)} pixels, not model.patch_size={self.patch_size}\n"
                    "  give log2(patch_size) + 1 multipliers; patch_size must be a power of 2"
                )
            if isinstance(coder, ConvCoderConfig) and self.domain.kind == "features":
                yield f"model.{side}.kind=conv reads images, not features\n  use vit or mlp"
            if isinstance(coder, MLPCoderConfig) and self.domain.kind != "features":
                yield f"model.{side}.kind=mlp reads features, not {self.domain.kind}\n  use vit or conv"
        if isinstance(self.encoder, ViTCoderConfig) and self.encoder.num_output_convolutions:
            yield "model.encoder.num_output_convolutions is only for decoders\n  leave it out"

    def _diffusion_problems(self) -> Iterator[str]:
        decoder = self.decoder
        if not isinstance(decoder, UNetConfig | UViTConfig):
            return
        if self.domain.kind in ("classes", "features", "mask"):
            yield f"a diffusion decoder makes pictures or depth, not {self.domain.kind}\n  use model.decoder.kind=vit"
        if isinstance(decoder, UNetConfig):
            halvings = len(decoder.multipliers) - 1
        else:
            halvings = len(decoder.widths) - 1 + decoder.halves_before_middle
        unit = decoder.patch_size * 2**halvings
        if self.image_size % unit:
            yield (
                f"model.decoder needs images whose size is a multiple of {unit} pixels, but model.image_size is "
                f"{self.image_size}\n  use a multiple of {unit}, or fewer levels"
            )
        noise = decoder.noise
        if noise.masks_places and not noise.dropout:
            yield Conflict(
                "model.decoder.noise.masks_places=true needs model.decoder.noise.dropout above 0\n"
                "  set model.decoder.noise.dropout=0.1, or leave both out",
                [("model.decoder.noise.masks_places", DEFAULT)],
                "model.decoder.noise.dropout",
            )
        if noise.ends_in_noise and noise.prediction == "noise":
            yield Conflict(
                "model.decoder.noise: with ends_in_noise, an image cannot be computed from a prediction of its noise\n"
                "  set model.decoder.noise.prediction=velocity or model.decoder.noise.ends_in_noise=false",
                [("model.decoder.noise.ends_in_noise", False), ("model.decoder.noise.prediction", "velocity")],
            )
