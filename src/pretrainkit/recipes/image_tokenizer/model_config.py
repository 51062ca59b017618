"""What images hold (colours, depth, classes, features of other models), and the architecture's settings. Torch-free.

Source: 4M-21 (https://arxiv.org/abs/2406.09406), appendix on tokenizers, with names and channels of the published ones;
section 10 of the specification.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrainkit.config.base import DEFAULT, Config, Conflict, ConflictError, ReadBy
from pretrainkit.config.fields import NonNegativeFloat, Rate

Kind = Literal["colors", "grey", "normals", "mask", "depth", "classes", "features"]


class Domain(Config):
    """What the images of a tokenizer hold, and how they are read."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"folder"})

    name: str
    """Of its tokens: those of rgb are the modality tok_rgb."""
    kind: Kind
    """colors: RGB, grey: one channel, both from -1 to 1. normals: directions as colours, whose first component turns
    with a mirrored image. mask: 0 and 1. depth: one channel without scale and offset. classes: numbers, which are
    embedded. features: maps of another model's features, or one vector, in .npy files (C, H, W) or (C,)."""
    num_channels: PositiveInt
    """Of what the encoder reads; of classes the width of their embedding."""
    num_classes: PositiveInt | None = None
    """Of classes only: with one for what has none, which is 255 in the files and 0 in the model, where all others are
    one more."""
    folder: str | None = None
    """Of its files in a data set; "." for files that lie in the data set itself; null: the name."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        told = f"domain {self.name!r} is of kind {self.kind!r}"
        if self.kind == "classes" and self.num_classes is None:
            raise ValueError(f"{told}; classes need a number of them\n  set num_classes, with one for what has none")
        if self.kind != "classes" and self.num_classes is not None:
            message = f"{told}, which has no num_classes={self.num_classes}\n  leave num_classes out"
            raise ConflictError(Conflict(message, [("num_classes", None)], "kind"))
        wanted = {"colors": 3, "grey": 1, "normals": 3, "mask": 1, "depth": 1}.get(self.kind, self.num_channels)
        if self.num_channels != wanted:
            message = f"{told} with num_channels={self.num_channels}\n  set num_channels={wanted}, or another kind"
            raise ConflictError(Conflict(message, [("num_channels", wanted)], "kind"))
        return self

    @property
    def path(self) -> str:
        """Name of its folder in a data set."""
        return self.folder or self.name

    @property
    def num_outputs(self) -> int:
        """Channels that a decoder gives: logits of classes, else channels."""
        return self.num_classes or self.num_channels

    @property
    def is_flat(self) -> bool:
        """Whether its values lie between -1 and 1, as pictures do."""
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
"""The published ones by name."""


def _named(value: object) -> object:
    if isinstance(value, str):
        if value not in DOMAINS:
            raise ValueError(f"there is no domain {value!r}; there are {', '.join(DOMAINS)}, or give name, kind, …")
        return DOMAINS[value]
    return value


NamedDomain = Annotated[Domain, BeforeValidator(_named, json_schema_input_type=str | Domain)]
"""In a config: a mapping of its fields, or the name of a published one."""


class ViTCoderConfig(Config):
    """A transformer over patches."""

    kind: Literal["vit"] = "vit"
    """A transformer."""
    hidden_size: Annotated[int, Field(gt=0, multiple_of=4)]
    """Width of the transformer."""
    num_layers: PositiveInt
    """Blocks of the transformer."""
    num_heads: PositiveInt
    """Attention heads; must divide hidden_size."""
    has_last_mlp: bool = True
    """One more feed-forward layer, with tanh and in float32, at the side of the tokens."""
    num_output_convolutions: NonNegativeInt = 0
    """Decoder only: ConvNeXt blocks behind the patches, against their edges; the published one for masks has 2."""


class ConvCoderConfig(Config):
    """Residual convolutions, each level at half the resolution of the one before."""

    kind: Literal["conv"] = "conv"
    """Convolutions."""
    width: Annotated[int, Field(gt=0, multiple_of=8)]
    """Channels at full resolution."""
    multipliers: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Of the width, at each level; one more than patch_size is halved."""
    num_blocks: PositiveInt = 1
    """Residual blocks of a level."""
    has_attention: bool = True
    """Between two blocks at the lowest resolution."""


class MLPCoderConfig(Config):
    """The same feed-forward layers at each place; for features and vectors (https://arxiv.org/abs/2306.13575)."""

    kind: Literal["mlp"] = "mlp"
    """A perceptron on vectors."""
    width: PositiveInt
    """Of the stream."""
    num_blocks: PositiveInt
    """Residual blocks."""
    expansion: PositiveInt = 4
    """Of the width inside of a block."""


class NoiseConfig(Config):
    """Diffusion: what becomes of an image over time, and what is predicted of it."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"loss", "dropout", "masks_places"})

    num_times: Annotated[int, Field(ge=2)] = 1000
    """Steps from image to noise."""
    schedule: Literal["linear", "squared_cosine", "shifted_cosine"] = "squared_cosine"
    """How noise grows. linear: variances from 1e-4 to 0.02. squared_cosine: Nichol & Dhariwal 2021. shifted_cosine: the
    ratio of signal and noise of a cosine, shifted."""
    shift: Annotated[PositiveFloat, ReadBy("schedule", ("shifted_cosine",))] = 1.0
    """shifted_cosine only: below 1 there is less noise, for decoders that are told much."""
    ends_in_noise: bool = True
    """At the last time nothing of the image is left (https://arxiv.org/abs/2305.08891)."""
    prediction: Literal["image", "noise", "velocity"] = "velocity"
    """What the decoder gives."""
    loss: Literal["prediction", "noise"] = "prediction"
    """What the loss compares: what is predicted, or the noise that follows from it."""
    dropout: Rate = 0.0
    """Share of the examples whose decoder is told nothing in training, for guidance."""
    masks_places: bool = False
    """Of those, only random places are hidden."""


class UNetConfig(Config):
    """A diffusion decoder of convolutions, over patches of pixels that stand beside the tokens (DiVAE)."""

    kind: Literal["unet"] = "unet"
    """Diffusion by convolutions."""
    noise: NoiseConfig = NoiseConfig()
    """The diffusion."""
    patch_size: PositiveInt = 4
    """Pixels of a side that become channels."""
    width: Annotated[int, Field(gt=0, multiple_of=8)] = 256
    """Channels of the first level."""
    multipliers: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1, 2, 2, 2)
    """Of the width, at each level."""
    num_blocks: PositiveInt = 3
    """Residual blocks of a level."""
    attention_at: tuple[PositiveInt, ...] = (4, 8)
    """With attention where the resolution of patches is divided by one of these."""


class UViTConfig(Config):
    """A diffusion decoder of convolutions around a transformer, which is told the tokens."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"dropout"})

    kind: Literal["uvit"] = "uvit"
    """Diffusion by convolutions around a transformer."""
    noise: NoiseConfig = NoiseConfig()
    """The diffusion."""
    patch_size: PositiveInt = 4
    """Pixels of a side that become channels."""
    widths: Annotated[tuple[Annotated[int, Field(gt=0, multiple_of=8)], ...], Field(min_length=1)] = (128, 256)
    """Channels of the levels."""
    num_blocks: PositiveInt = 2
    """Residual blocks of a level."""
    halves_before_middle: bool = True
    """Once more in front of the transformer."""
    hidden_size: Annotated[int, Field(gt=0, multiple_of=4)] = 768
    """Width of the transformer."""
    num_layers: PositiveInt = 12
    """Its blocks."""
    num_heads: PositiveInt = 12
    """Its attention heads."""
    dropout: Rate = 0.2
    """In its blocks."""


CoderConfig = Annotated[ViTCoderConfig | ConvCoderConfig | MLPCoderConfig, Field(discriminator="kind")]
DecoderConfig = Annotated[
    ViTCoderConfig | ConvCoderConfig | MLPCoderConfig | UNetConfig | UViTConfig, Field(discriminator="kind")
]


class CodebookConfig(Config):
    """A table of codes, each the moving average of the latents that it stands for (van den Oord et al. 2017)."""

    num_heads: ClassVar[int] = 1
    """Ids at each place."""
    kind: Literal["codebook"] = "codebook"
    """Learned codes, the nearest counts."""
    neutral_fields: ClassVar[frozenset[str]] = frozenset(
        {"decay", "commitment_weight", "first_codes", "num_kmeans_rounds", "revival", "revival_coefficient"}
    )

    size: PositiveInt
    """Codes in the book."""
    width: PositiveInt = 32
    """Of a code."""
    distance: Literal["cosine", "euclidean"] = "cosine"
    """Which code is the nearest; with cosine, codes have length 1."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Of the moving averages, per update."""
    commitment_weight: NonNegativeFloat = 1.0
    """Of the mean squared distance of latents from their codes, in the loss."""
    normalizes_latents: bool = False
    """Latents have length 1 before they are compared and pulled; else, with cosine, they are only compared so."""
    first_codes: Literal["random", "kmeans"] = "random"
    """kmeans: clusters of the latents of the first update."""
    num_kmeans_rounds: Annotated[PositiveInt, ReadBy("first_codes", ("kmeans",))] = 10
    """kmeans only."""
    revival: Literal["latents", "split", "none"] = "latents"
    """What becomes of codes that are hardly used: random latents of the batch, or copies of the most used ones with a
    little noise (Linde, Buzo & Gray 1980)."""
    revival_coefficient: Annotated[PositiveFloat, ReadBy("revival", ("latents", "split"))] = 32.0
    """Codes are revived whose average use is below that of all, divided by this."""

    @property
    def vocab_size(self) -> int:
        """Different ids."""
        return self.size


class MemcodesConfig(Config):
    """Several tables, of which each place asks for a code by attention."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"temperature"})

    kind: Literal["memcodes"] = "memcodes"
    """Learned codes that are chosen by scores."""
    size: PositiveInt
    """Codes of each table."""
    width: PositiveInt
    """Of the latents; num_heads must divide it."""
    num_heads: PositiveInt = 8
    """Tables; as many ids at each place."""
    temperature: PositiveFloat = 1.0
    """Of the noise with which codes are drawn in training."""

    @property
    def vocab_size(self) -> int:
        """Different ids."""
        return self.size

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} cannot be split over num_heads {self.num_heads}; change one of them")
        return self


class FiniteScalarConfig(Config):
    """No table: each number of a latent is rounded (FSQ, Mentzer et al. 2023, https://arxiv.org/abs/2309.15505)."""

    num_heads: ClassVar[int] = 1
    """Ids at each place."""
    kind: Literal["fsq"] = "fsq"
    """Rounded coordinates."""
    levels: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    """Values of each number; their product is the number of different ids: 8,5,5,5 give 1000."""

    @property
    def vocab_size(self) -> int:
        """Different ids."""
        return math.prod(self.levels)

    @property
    def width(self) -> int:
        """Of the latents."""
        return len(self.levels)


QuantizerConfig = Annotated[CodebookConfig | MemcodesConfig | FiniteScalarConfig, Field(discriminator="kind")]


class ImageTokenizerModelConfig(Config):
    """Encoder, quantizer and decoder of images of one domain."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"is_encoder_frozen", "image_size", "num_sampling_steps"})

    domain: NamedDomain
    """What images hold: rgb, depth, …, or name, kind and so on of one of your own."""
    image_size: PositiveInt
    """Pixels of a side; of features, the places of a side times patch_size. Transformers read other sizes too."""
    patch_size: PositiveInt = 16
    """Pixels of a side that a token stands for."""
    encoder: CoderConfig
    """From images to latents."""
    quantizer: QuantizerConfig
    """From latents to ids."""
    decoder: DecoderConfig
    """From codes to images."""
    is_encoder_frozen: bool = False
    """Encoder and quantizer stay as they are, as for a new decoder of a finished tokenizer (with init_from)."""
    num_sampling_steps: PositiveInt = 25
    """Of diffusion decoders, where an image is made."""

    @property
    def grid(self) -> int:
        """Places of a side."""
        return self.image_size // self.patch_size

    @property
    def num_tokens(self) -> int:
        """Of an image."""
        return self.grid**2 * self.quantizer.num_heads

    @property
    def is_diffusion(self) -> bool:
        """Whether the decoder makes images from noise."""
        return isinstance(self.decoder, UNetConfig | UViTConfig)

    @property
    def vocab_size(self) -> int:
        """Different ids."""
        return self.quantizer.vocab_size

    def problems(self) -> list[str]:
        """Settings that cannot work together, each as a message."""
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
                    "  use a width that is a multiple of the number of heads"
                )
            if isinstance(coder, ConvCoderConfig) and 2 ** (len(coder.multipliers) - 1) != self.patch_size:
                yield (
                    f"model.{side} halves the resolution {len(coder.multipliers) - 1} times, which makes patches of "
                    f"{2 ** (len(coder.multipliers) - 1)} pixels, not model.patch_size={self.patch_size}\n"
                    "  give as many multipliers as patch_size is halved, and one more; patch_size is a power of 2"
                )
            if isinstance(coder, ConvCoderConfig) and self.domain.kind == "features":
                yield f"model.{side}.kind=conv reads images, not features\n  use vit or mlp"
            if isinstance(coder, MLPCoderConfig) and self.domain.kind != "features":
                yield f"model.{side}.kind=mlp reads features, not {self.domain.kind}\n  use vit or conv"
        if isinstance(self.encoder, ViTCoderConfig) and self.encoder.num_output_convolutions:
            yield "model.encoder.num_output_convolutions is for decoders\n  leave it out"

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
                f"model.decoder divides images by {unit} pixels, but model.image_size is {self.image_size}\n"
                f"  use a multiple of {unit}, or fewer levels"
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
                "model.decoder.noise: where nothing is left of an image, it does not follow from its noise\n"
                "  set model.decoder.noise.prediction=velocity or model.decoder.noise.ends_in_noise=false",
                [("model.decoder.noise.ends_in_noise", False), ("model.decoder.noise.prediction", "velocity")],
            )
