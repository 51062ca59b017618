"""Settings of the PIXEL recipe. Torch-free.

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
"""Colours of a pixel in the model. Grey text has three equal ones."""


class PixelModelConfig(Config):
    """A masked autoencoder (He et al. 2021, https://arxiv.org/abs/2111.06377) over one row of patches."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset(
        {"hidden_dropout", "attention_dropout", "initializer_range", "patch_initialization"}
    )

    hidden_size: FourMultiple
    """Width of the encoder."""
    num_layers: PositiveInt
    """Blocks of the encoder."""
    num_heads: PositiveInt
    """Attention heads of the encoder; must divide hidden_size."""
    intermediate_size: PositiveInt
    """Width of the encoder's feed-forward layers."""
    decoder_hidden_size: FourMultiple
    """Width of the decoder."""
    decoder_num_layers: PositiveInt
    """Blocks of the decoder."""
    decoder_num_heads: PositiveInt
    """Attention heads of the decoder; must divide decoder_hidden_size."""
    decoder_intermediate_size: PositiveInt
    """Width of the decoder's feed-forward layers."""
    patch_size: Annotated[int, Field(ge=4, le=64)] = 16
    """Pixels of a patch's side; that of the renderer."""
    max_patches: PositiveInt = 529
    """Rows of the position tables besides the class token's: no text can have more patches, the end patch included."""
    positions: Literal["grid", "rotary"] = "grid"
    """grid: fixed sines and cosines of a square grid are added to the patches, as published. rotary: queries and keys
    are turned by their place in the row (Su et al. 2021, https://arxiv.org/abs/2104.09864), so that a narrow model
    finds a patch's neighbours at once; such models have no Hugging Face form."""
    rotary_theta: Annotated[PositiveFloat, ReadBy("positions", ("rotary",))] = 10_000.0
    """Base of the wavelengths of rotary positions; only read with them."""
    grid_width: Annotated[PositiveInt | None, ReadBy("positions", ("grid",))] = None
    """Only with positions=grid. Patch i has the sine-cosine position (i mod grid_width, i div grid_width), as in the
    square images of the masked autoencoder; null: the root of max_patches, rounded down. A model that was made for 529
    patches keeps 23 whatever its length becomes."""
    activation: Activation = "gelu"
    """Of the feed-forward layers; gelu is the exact one."""
    hidden_dropout: DropoutRate = 0.1
    """On the output of every attention and feed-forward layer."""
    attention_dropout: DropoutRate = 0.1
    """On attention probabilities."""
    layer_norm_epsilon: PositiveFloat = 1e-12
    """Added to variances."""
    decoder_norm_epsilon: PositiveFloat = 1e-5
    """The same in the decoder's last norm. PIXEL left it at torch's default, 1e-5; the ViTMAE of transformers has
    that of the other norms."""
    initializer_range: PositiveFloat = 0.02
    """Deviation of normal initial weights."""
    pixel_zero: Zero = "black"
    """What the embedding of patches sees as 0. black: as published; paper is then a large constant in every patch,
    which each update of the weights moves. white: ink alone counts. The weights are those of a model with black after
    an exact change, which exports make."""
    patch_initialization: Literal["xavier", "normal"] = "xavier"
    """Of the layer that embeds patches. xavier: as the original's driver leaves it, with biases from
    uniform(-D^-0.5, D^-0.5) for D = values of a patch. normal: as all other layers, with biases 0."""

    @property
    def position_grid_width(self) -> int:
        """`grid_width`, or what it stands for."""
        return self.grid_width or math.isqrt(self.max_patches)

    @property
    def patch_values(self) -> int:
        """Numbers that the model predicts of a patch: its pixels in three colours."""
        return self.patch_size**2 * NUM_CHANNELS


_IN_SPANS = ReadBy("masking", ("span",))


class PixelObjectiveConfig(Config):
    """Patches to hide and to draw again."""

    mask_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of the patches to hide, rounded up."""
    masking: Literal["span", "random"] = "span"
    """span: in short runs. random: each patch by itself, at least one of the text."""
    max_span_length: Annotated[int, Field(ge=1, le=64), _IN_SPANS] = 6
    """Patches of the longest run."""
    cumulative_span_weights: Annotated[tuple[Rate, ...] | None, _IN_SPANS] = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
    """Rising shares of the runs of at most 1, 2, ... max_span_length patches; the last is 1. null: all lengths
    alike."""
    spacing: Annotated[Annotated[int, Field(ge=0, le=64)] | Literal["span"], _IN_SPANS] = "span"
    """Patches that stay visible on both sides of a run when it is placed; "span": as many as the run has. Above a ratio
    of 0.4 the authors advise 1, above 0.7 0."""
    mask_region: Literal["text", "canvas"] = "text"
    """Where the ratio is spent. text: within the text and its end patch. canvas: over all data.max_patches, as in the
    original, where the blank after a short text takes its share; what is hidden there never counts."""
    blank_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight, in the loss, of hidden patches of one colour, blanks and end patches, against 1 of patches with ink."""
    normalize_target: bool = True
    """Standardize each patch by its own mean and variance before it is compared."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        weights = self.cumulative_span_weights
        if self.masking == "random" or weights is None:
            return self
        if len(weights) != self.max_span_length:
            raise ConflictError(
                Conflict(
                    f"cumulative_span_weights has {len(weights)} numbers, but max_span_length is "
                    f"{self.max_span_length}; give one for each length, or null for all alike",
                    [("cumulative_span_weights", None), ("max_span_length", len(weights))] if weights else [],
                )
            )
        if list(weights) != sorted(weights) or weights[-1] != 1:
            raise ValueError(f"cumulative_span_weights is {weights}; it must rise and end with 1")
        return self


class PixelAugmentConfig(Config):
    """How training text is varied, anew in each epoch and from the key of its row alone. Held-out text is always drawn
    as its renderer says. Empty lists vary nothing."""

    share: Rate = 1.0
    """Share of the rows that are varied."""
    fonts: Annotated[tuple[str, ...], IsPath()] = ()
    """Other main fonts; each is as likely as the renderer's own. Needs rows that are drawn on the way:
    plain text, or `pretrainkit render --text-only`. A row that gets too long loses its end."""
    sizes: tuple[PositiveFloat, ...] = ()
    """Other sizes in points; each is as likely as the renderer's own. Needs rows that are drawn on the way."""
    inks: tuple[str, ...] = ()
    """Other colours of text, names of CSS or #rrggbb; each is as likely as black. The rows must be drawn black on
    white, also as pictures."""
    papers: tuple[str, ...] = ()
    """Other colours behind text; each is as likely as white."""

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
    """What the model is fed: text that `pretrainkit render` has drawn or cut into pieces, published rendered sets, or
    plain text that is cut and drawn here."""

    held_out_fields: ClassVar[tuple[str, ...]] = ("valid", "held_out_share")
    train: Sources = ()
    """To train on: one path, several separated by commas, or a list of {path, weight}. A path is a folder of
    `pretrainkit render`, one with parquet files in the layout of the published sets, or text as `pretrainkit corpus`
    reads it, which is cut into pieces once and kept in the cache folder. Without weights every row counts the same."""
    valid: Sources = ()
    """Held out; the same kinds of paths."""
    held_out_share: Annotated[Rate, Field(lt=1)] = 0.0
    """With no `valid`: so much of `train` is held out, in runs of 64 neighbours, the same ones for every seed."""
    temperature: PositiveFloat = 1.0
    """With several paths without weights: shares in proportion to rows ** (1 / temperature). 1: every row counts the
    same; higher: small sets, such as those of rare languages, come more often."""
    augment: PixelAugmentConfig = PixelAugmentConfig()
    """Other fonts, sizes and colours of training text."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """shuffle: every row independently permuted, anew each epoch. sequential: as stored."""
    renderer: Annotated[str | None, IsPath()] = None
    """Folder of a renderer, as `save_renderer` writes it, a font for a renderer with the published settings, or NAME or
    NAME@REVISION of a model on the hub; null: the renderer that lies in the folders of `train`. Plain text needs it."""
    max_patches: Annotated[int, Field(ge=2)] = 529
    """Patches of a row, the end patch included. No stored row may be longer; plain text is cut to fill it."""
    pad_to: PositiveInt = 1
    """Round the numbers of patches in a microbatch up to a multiple of this, so that few shapes occur (torch.compile);
    1: nothing is padded."""
    min_text_patches: NonNegativeInt = 22
    """Rows with fewer patches before the end patch are left out, in training and evaluation."""
    workers: Literal["threads", "processes"] = "threads"
    """What prepares batches ahead. Text that is drawn on the way gains from processes."""
    num_workers: NonNegativeInt = 2
    """How many per rank."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        return self.workers, self.num_workers


_POOLINGS = re.compile(r"mean|max|cls|pma:[1-9]\d*")


def _is_pooling(value: str) -> str:
    if not _POOLINGS.fullmatch(value):
        raise ValueError(f"{value!r} is no pooling; there are mean, max, cls and pma:K for K heads, such as pma:8")
    return value


Pooling = Annotated[str, AfterValidator(_is_pooling)]


class PixelTextConfig(Config):
    """The encoder without masks and without the decoder, as glue trains it further."""

    pooling: Pooling = "mean"
    """Patches to one vector. mean, max: over the patches of the text with its end patch. pma:K: attention of one
    learned query with K heads. cls: the tanh of a linear layer on the class token, as BERT's."""
    pooling_linear: bool = True
    """Before mean and max: a linear layer and GELU on each patch."""
    pooling_norm: bool = True
    """Before mean, max and pma: a layer norm of each patch, after that linear layer."""
    embedding_dropout: DropoutRate | None = None
    """On patches with their positions; null: model.hidden_dropout. Pretraining has none there."""
    train_positions: bool = True
    """Whether the table of positions, fixed in pretraining, is trained."""
    clean_up: bool = False
    """Take out the spaces around punctuation, brackets, quotes and n't that tokenized texts have, as the original does
    with GLUE and XNLI. Words and questions with contexts stay as they are."""
    renderer: dict[str, Any] = Field(default_factory=dict)
    """Settings of the renderer to change when fine-tuning starts, such as {engine: pango, rgb: true, fallback_fonts:
    [FOLDER]}; the run keeps the renderer that results."""


class PixelRun(RunConfig):
    """One pretraining run of the PIXEL recipe."""

    recipe: Literal["pixel"] = "pixel"
    """Name of the recipe this config belongs to."""
    model: PixelModelConfig
    """The architecture."""
    objective: PixelObjectiveConfig = PixelObjectiveConfig()
    """What is predicted."""
    data: PixelDataConfig
    """What the model is fed."""
    text: PixelTextConfig = PixelTextConfig()
    """How the trained model reads texts under another head; pretraining does not read it."""

    @property
    def has_held_out_data(self) -> bool:
        """True if there is anything to evaluate on."""
        return bool(self.data.valid) or self.data.held_out_share > 0

    def problems(self, world_size: int = 1) -> list[str]:
        """Return the problems of the base class, and settings of this recipe that cannot work together."""
        found = super().problems(world_size)
        model, data = self.model, self.data
        for part, width, heads in (
            ("", model.hidden_size, model.num_heads),
            ("decoder_", model.decoder_hidden_size, model.decoder_num_heads),
        ):
            if width % heads:
                found.append(
                    f"model.{part}hidden_size {width} cannot be split over model.{part}num_heads {heads}\n"
                    "  use a width that is a multiple of the number of heads"
                )
            elif model.positions == "rotary" and width // heads % 2:
                found.append(
                    f"a head of model.{part}hidden_size {width} over model.{part}num_heads {heads} has "
                    f"{width // heads} values, which rotary positions turn in pairs\n  use an even width of a head"
                )
        if data.max_patches > model.max_patches:
            found.append(
                Conflict(
                    f"data.max_patches {data.max_patches} is more than model.max_patches {model.max_patches}\n"
                    f"  set data.max_patches={model.max_patches} or model.max_patches={data.max_patches}",
                    [("data.max_patches", model.max_patches), ("model.max_patches", data.max_patches)],
                )
            )
        if data.min_text_patches >= data.max_patches:
            found.append(
                f"data.min_text_patches {data.min_text_patches} leaves no text: a canvas of {data.max_patches} patches "
                f"has at most {data.max_patches - 1} before its end patch\n  set data.min_text_patches lower"
            )
        if data.temperature != 1 and any(source.weight is not None for source in data.train):
            found.append(
                Conflict(
                    f"data.temperature={data.temperature} is only read without weights of data.train\n  leave one out",
                    [("data.temperature", DEFAULT)],
                    "data.train",
                )
            )
        return found
