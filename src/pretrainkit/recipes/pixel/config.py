"""Settings of the PIXEL recipe. This module does not import torch.

`PixelRun` is a `RunConfig` whose model, objective and data are the classes below. Presets (complete configs) are in
`presets.py`.
"""

import math
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from pretrainkit.config.base import DEFAULT, Config, Conflict, ConflictError, ReadBy
from pretrainkit.config.fields import Rate
from pretrainkit.config.paths import IsPath
from pretrainkit.errors import ConfigError
from pretrainkit.training.data_config import DataConfig, Sources
from pretrainkit.training.run import RunConfig

Activation = Literal["gelu", "gelu_tanh", "relu", "swish"]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]
FourMultiple = Annotated[int, Field(gt=0, multiple_of=4)]

Zero = Literal["black", "white"]
NUM_CHANNELS = 3
"""Number of colours of a pixel in the model. For grey text, the three are equal."""


class PixelModelConfig(Config):
    """A masked autoencoder (He et al. 2021, https://arxiv.org/abs/2111.06377) over one row of patches."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset(
        {"hidden_dropout", "attention_dropout", "initializer_range", "patch_initialization"}
    )

    hidden_size: FourMultiple
    """Width of the encoder."""
    num_layers: PositiveInt
    """Number of blocks of the encoder."""
    num_heads: PositiveInt
    """Number of attention heads of the encoder; must divide hidden_size."""
    intermediate_size: PositiveInt
    """Width of the encoder's feed-forward layers."""
    decoder_hidden_size: FourMultiple
    """Width of the decoder."""
    decoder_num_layers: PositiveInt
    """Number of blocks of the decoder."""
    decoder_num_heads: PositiveInt
    """Number of attention heads of the decoder; must divide decoder_hidden_size."""
    decoder_intermediate_size: PositiveInt
    """Width of the decoder's feed-forward layers."""
    patch_size: Annotated[int, Field(ge=4, le=64)] = 16
    """Height and width of a patch in pixels, equal to that of the renderer."""
    max_patches: PositiveInt = 529
    """Maximum number of patches of a text, including the end patch. Position tables have one more row, for the class
    token."""
    positions: Literal["grid", "rotary"] = "grid"
    """grid: add fixed sines and cosines of a square grid to the patches, as published. rotary: rotate queries and keys
    by their position in the row (Su et al. 2021, https://arxiv.org/abs/2104.09864), so that a narrow model learns
    sooner to attend to a patch's neighbours. Such models have no Hugging Face form."""
    rotary_theta: Annotated[PositiveFloat, ReadBy("positions", ("rotary",))] = 10_000.0
    """positions=rotary only: base of the wavelengths."""
    grid_width: Annotated[PositiveInt | None, ReadBy("positions", ("grid",))] = None
    """positions=grid only: patch i has the sine-cosine position (i mod grid_width, i div grid_width), as in the square
    images of the masked autoencoder. null: the square root of max_patches, rounded down. A model that was made for 529
    patches must keep 23 when its length changes."""
    activation: Activation = "gelu"
    """Activation of the feed-forward layers. gelu is the exact function."""
    hidden_dropout: DropoutRate = 0.1
    """Dropout rate of the outputs of attention and feed-forward layers."""
    attention_dropout: DropoutRate = 0.1
    """Dropout rate of attention probabilities."""
    layer_norm_epsilon: PositiveFloat = 1e-12
    """Epsilon of layer norms, which is added to variances."""
    decoder_norm_epsilon: PositiveFloat = 1e-5
    """Epsilon of the decoder's last norm. PIXEL uses torch's default, 1e-5; ViTMAE of transformers uses that of the
    other norms."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of normally distributed initial weights."""
    pixel_zero: Zero = "black"
    """Colour that is 0 in the input. black: as published; the white background is then a large constant in every patch,
    whose effect changes with each update. white: only ink has an effect. An export converts the weights exactly to
    those of a model with black."""
    patch_initialization: Literal["xavier", "normal"] = "xavier"
    """Initialization of the layer that embeds patches. xavier: as in the original, with biases from uniform(-D^-0.5,
    D^-0.5) for D values of a patch. normal: as in all other layers, with biases 0."""

    @property
    def position_grid_width(self) -> int:
        """`grid_width`, or its default."""
        return self.grid_width or math.isqrt(self.max_patches)

    @property
    def patch_values(self) -> int:
        """Number of values that the model predicts for a patch: its pixels in three colours."""
        return self.patch_size**2 * NUM_CHANNELS


_IN_SPANS = ReadBy("masking", ("span",))


class PixelObjectiveConfig(Config):
    """Settings of masking and of the loss."""

    mask_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of the patches to hide. Their number is rounded up."""
    masking: Literal["span", "random"] = "span"
    """span: hide short runs of patches. random: hide single patches at random, at least one of the text."""
    max_span_length: Annotated[int, Field(ge=1, le=64), _IN_SPANS] = 6
    """Maximum length of a run in patches."""
    cumulative_span_weights: Annotated[tuple[Rate, ...] | None, _IN_SPANS] = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
    """Cumulative probabilities of run lengths 1, 2, ... max_span_length; the last is 1. null: all lengths are equally
    likely."""
    spacing: Annotated[Annotated[int, Field(ge=0, le=64)] | Literal["span"], _IN_SPANS] = "span"
    """Number of patches that must be visible on both sides of a new run. "span": the length of the run. The authors
    recommend 1 for a mask ratio above 0.4, and 0 above 0.7."""
    mask_region: Literal["text", "canvas"] = "text"
    """Patches to which the mask ratio applies. text: the text and its end patch. canvas: all data.max_patches, as in
    the original. Hidden patches after the end patch of a text are not predicted."""
    blank_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of hidden patches of a single colour (blank and end patches) in the loss. Patches with ink have weight
    1."""
    normalize_target: bool = True
    """Standardize each target patch by its own mean and variance."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        weights = self.cumulative_span_weights
        if self.masking == "random" or weights is None:
            return self
        if len(weights) != self.max_span_length:
            raise ConflictError(
                Conflict(
                    f"cumulative_span_weights has {len(weights)} numbers, but max_span_length is "
                    f"{self.max_span_length}; give one number per length, or null for equal probabilities",
                    [("cumulative_span_weights", None), ("max_span_length", len(weights))] if weights else [],
                )
            )
        if list(weights) != sorted(weights) or weights[-1] != 1:
            raise ValueError(f"cumulative_span_weights is {weights}; it must increase and end with 1")
        return self


class PixelAugmentConfig(Config):
    """Random variations of training text, drawn in each epoch from the row's key. Held-out text is never varied. Empty
    lists turn a variation off."""

    share: Rate = 1.0
    """Share of the rows that are varied."""
    fonts: Annotated[tuple[str, ...], IsPath()] = ()
    """Additional main fonts; each is as likely as the renderer's own. This needs rows that are drawn during training:
    plain text, or `pretrainkit render --text-only`. A row that becomes too long is cut off."""
    sizes: tuple[PositiveFloat, ...] = ()
    """Additional font sizes in points; each is as likely as the renderer's own. This needs rows that are drawn during
    training."""
    inks: tuple[str, ...] = ()
    """Additional text colours, as CSS names or #rrggbb; each is as likely as black. Rows must be black on white; stored
    pictures work, too."""
    papers: tuple[str, ...] = ()
    """Additional background colours; each is as likely as white."""

    @field_validator("inks", "papers")
    @classmethod
    def _are_colors(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from pretrainkit.rendering.painting import parse_color

        for name in names:
            try:
                parse_color(name)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return names


class PixelDataConfig(DataConfig):
    """Data of the model: output of `pretrainkit render`, published rendered data sets, or plain text that is divided
    into rows and drawn during training."""

    held_out_fields: ClassVar[tuple[str, ...]] = ("valid", "held_out_share")
    train: Sources = ()
    """Training data: one path, several paths separated by commas, or a list of {path, weight}. A path is a folder of
    `pretrainkit render`, a folder with parquet files in the published layout, or text as `pretrainkit corpus` reads it.
    Text is divided into rows once; they are kept in the cache folder. Without weights, every row counts the same."""
    valid: Sources = ()
    """Held-out data, in the same form as `train`."""
    held_out_share: Annotated[Rate, Field(lt=1)] = 0.0
    """Without `valid`: share of the rows of `train` that is held out, in blocks of 64 neighbouring rows. The blocks do
    not depend on the seed."""
    temperature: PositiveFloat = 1.0
    """For several paths without weights: sample them in proportion to rows ** (1 / temperature). 1: every row counts
    the same. Higher values sample small data sets, such as those of rare languages, more often."""
    augment: PixelAugmentConfig = PixelAugmentConfig()
    """Random fonts, sizes and colours of training text."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """shuffle: a new random permutation of all rows each epoch. sequential: in the order in which they are stored."""
    renderer: Annotated[str | None, IsPath()] = None
    """Renderer: a folder of `save_renderer`, a font file for the published settings, or NAME or NAME@REVISION of a
    model on the hub. null: the renderer in the folders of `train`. Plain text needs a renderer."""
    max_patches: Annotated[int, Field(ge=2)] = 529
    """Maximum number of patches of a row, including the end patch. Stored rows must not be longer; plain text is
    divided into rows of this length."""
    pad_to: PositiveInt = 1
    """Round the numbers of patches in a microbatch up to a multiple of this, so that few shapes occur (for
    torch.compile). 1: no padding."""
    min_text_patches: NonNegativeInt = 22
    """Leave out rows with fewer patches before the end patch, in training and evaluation."""
    workers: Literal["threads", "processes"] = "threads"
    """Kind of workers that prepare batches in advance. Processes are faster for text that is drawn during training."""
    num_workers: NonNegativeInt = 2
    """Number of workers per rank."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        return self.workers, self.num_workers


_POOLINGS = re.compile(r"mean|max|cls|pma(_padded)?:[1-9]\d*")


def _is_pooling(value: str) -> str:
    if not _POOLINGS.fullmatch(value):
        raise ValueError(
            f"invalid pooling {value!r}; use mean, max, cls, or pma:K or pma_padded:K for K heads, such as pma:8"
        )
    return value


Pooling = Annotated[str, AfterValidator(_is_pooling)]


class PixelTextConfig(Config):
    """Settings of the encoder for fine-tuning by the recipe glue, without masks and without the decoder."""

    pooling: Pooling = "mean"
    """Pooling of the patches to one vector. mean, max: over all patches of the text and its end patch. pma:K: attention
    of one learned query with K heads. pma_padded:K: pma as in the original, which also attends to the white patches
    that fill a text up to model.max_patches. cls: tanh of a linear layer on the class token, as in BERT."""
    pooling_linear: bool = True
    """Apply a linear layer and GELU to each patch before mean or max pooling."""
    pooling_norm: bool = True
    """Apply a layer norm to each patch before mean, max or pma pooling, after the linear layer."""
    embedding_dropout: DropoutRate | None = None
    """Dropout rate of embedded patches with their positions. null: model.hidden_dropout. Pretraining has no dropout
    there."""
    train_positions: bool = True
    """Train the position table, which is fixed in pretraining."""
    clean_up: bool = False
    """Remove the spaces around punctuation, brackets, quotes and n't in tokenized texts, as the original does for GLUE
    and XNLI. Lists of words, and questions with contexts, are not changed."""
    renderer: dict[str, Any] = Field(default_factory=dict)
    """Settings of the renderer to change when fine-tuning starts, such as {engine: pango, rgb: true, fallback_fonts:
    [FOLDER]}. The run keeps the changed renderer."""


class PixelRun(RunConfig):
    """A pretraining run of the PIXEL recipe."""

    recipe: Literal["pixel"] = "pixel"
    """Name of the recipe this config belongs to."""
    model: PixelModelConfig
    """The architecture."""
    objective: PixelObjectiveConfig = PixelObjectiveConfig()
    """Masking and the loss."""
    data: PixelDataConfig
    """Training and held-out data."""
    text: PixelTextConfig = PixelTextConfig()
    """Settings of the encoder for fine-tuning. Pretraining does not use them."""

    @property
    def has_held_out_data(self) -> bool:
        """True if there is held-out data for evaluation."""
        return bool(self.data.valid) or self.data.held_out_share > 0

    def problems(self, world_size: int = 1) -> list[str]:
        """List the problems of the base class, and settings of this recipe that conflict."""
        problems = super().problems(world_size)
        model, data = self.model, self.data
        for part, width, heads in (
            ("", model.hidden_size, model.num_heads),
            ("decoder_", model.decoder_hidden_size, model.decoder_num_heads),
        ):
            if width % heads:
                problems.append(
                    f"model.{part}hidden_size {width} cannot be split over model.{part}num_heads {heads}\n"
                    "  use a width that is a multiple of the number of heads"
                )
            elif model.positions == "rotary" and width // heads % 2:
                problems.append(
                    f"model.{part}hidden_size {width} over model.{part}num_heads {heads} gives heads of width "
                    f"{width // heads}, but rotary positions need an even width\n  use an even width of a head"
                )
        if data.max_patches > model.max_patches:
            problems.append(
                Conflict(
                    f"data.max_patches {data.max_patches} is more than model.max_patches {model.max_patches}\n"
                    f"  set data.max_patches={model.max_patches} or model.max_patches={data.max_patches}",
                    [("data.max_patches", model.max_patches), ("model.max_patches", data.max_patches)],
                )
            )
        if data.min_text_patches >= data.max_patches:
            problems.append(
                f"data.min_text_patches {data.min_text_patches} excludes all text: a row of {data.max_patches} patches "
                f"has at most {data.max_patches - 1} before its end patch\n  set data.min_text_patches lower"
            )
        if data.temperature != 1 and any(source.weight is not None for source in data.train):
            problems.append(
                Conflict(
                    f"data.temperature={data.temperature} is only read without weights of data.train\n  leave one out",
                    [("data.temperature", DEFAULT)],
                    "data.train",
                )
            )
        return problems
