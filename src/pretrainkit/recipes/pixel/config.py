"""Settings of the PIXEL recipe. Torch-free.

`PixelRun` is a `RunConfig` whose model, objective and data are the classes below. Presets (complete configs) are in
`presets.py`.
"""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pretrainkit.config.base import DEFAULT, Config, Conflict, ConflictError, ReadBy
from pretrainkit.config.fields import Rate
from pretrainkit.recipes.pixel.data_config import PixelDataConfig
from pretrainkit.recipes.pixel.text_config import PixelTextConfig
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
    """On attention probabilities. On GPUs 0 is several times faster: the flash kernel has none."""
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
        """Whether there is anything to evaluate on."""
        return bool(self.data.valid) or self.data.held_out_share > 0

    def problems(self, world_size: int = 1) -> list[str]:
        """What the base class finds, and settings of this recipe that cannot work together."""
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
