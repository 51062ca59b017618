"""The architecture's settings, and the published sizes. Torch-free."""

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.config.fields import Rate
from pretrainkit.recipes.fourm.modality import Modalities

Variant = Literal["gelu", "swiglu", "swiglu-qknorm"]


class FourMModelConfig(Config):
    """An encoder of visible tokens and a decoder of tokens to predict (Mizrahi et al. 2023,
    https://arxiv.org/abs/2312.06647; Bachmann et al. 2024, https://arxiv.org/abs/2406.09406)."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"drop_path_rate", "shares_drop_path"})

    modalities: Modalities
    """What goes in and comes out, each by the name of a published one, as module:NAME or as a mapping of its fields."""
    hidden_size: Annotated[int, Field(gt=0, multiple_of=4)]
    """Width of encoder and decoder."""
    num_encoder_layers: PositiveInt
    """Blocks of the encoder."""
    num_decoder_layers: PositiveInt
    """Blocks of the decoder."""
    num_heads: PositiveInt
    """Attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt
    """Width of the feed-forward layers (gated: of each of their two halves)."""
    activation: Literal["gelu", "swish"] = "swish"
    """Of the feed-forward layers, or of their gate; swish is also called SiLU."""
    gated: bool = True
    """Multiply a half of the feed-forward layer by the other one through the activation: with swish SwiGLU."""
    biases: bool = False
    """In linear layers and norms. The decoder's view of the encoder's output has one whatever this says."""
    query_key_norm: bool = False
    """Normalise queries and keys in each head."""
    tied_logits: bool = True
    """The table that embeds the targets of a modality also predicts them."""
    shared_modality_embeddings: bool = True
    """What tells a modality from the others is the same in encoder and decoder."""
    separate_targets: bool = True
    """A token of the decoder sees those of its own modality only; others it knows from the encoder."""
    causal_targets: bool = False
    """All tokens of the decoder see those before them only; else those of an image see each other."""
    num_registers: NonNegativeInt = 0
    """Learned tokens in front of the encoder's."""
    vector_bottleneck: PositiveInt | None = None
    """Width of a layer between given vectors and their embedding; the original has 64 where it has one. null: none."""
    drop_path_rate: Rate = 0.0
    """Share of the examples that skip the last block's layers; grows from 0 in the first block of encoder and
    decoder."""
    shares_drop_path: bool = False
    """It grows through encoder and decoder together, so that the decoder's first block does not begin at 0."""
    layer_norm_epsilon: PositiveFloat = 1e-6
    """Added to variances."""


class Size(NamedTuple):
    """Of a published model."""

    hidden_size: int
    num_layers: int
    """Of the encoder, and of the decoder."""
    num_heads: int


SIZES = {
    "tiny": Size(384, 6, 6),
    "small": Size(512, 8, 8),
    "base": Size(768, 12, 12),
    "large": Size(1024, 24, 16),
    "xlarge": Size(2048, 24, 32),
}
"""As `fm_SIZE_…` in the original."""


def published_model(size: str, modalities: Modalities, variant: Variant = "swiglu") -> FourMModelConfig:
    """A model of the original's registry, of one of `SIZES`. `variant`: gelu (with all biases), swiglu
    (`swiglu_nobias`, the released ones) or swiglu-qknorm (`swiglu_qknorm_nobias`)."""
    width, num_layers, num_heads = SIZES[size]
    is_gated = variant != "gelu"
    return FourMModelConfig(
        modalities=modalities,
        hidden_size=width,
        num_encoder_layers=num_layers,
        num_decoder_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=gated_width(width) if is_gated else 4 * width,
        activation="swish" if is_gated else "gelu",
        gated=is_gated,
        biases=not is_gated,
        query_key_norm=variant == "swiglu-qknorm",
    )


def gated_width(width: int) -> int:
    """Of each half of a gated feed-forward layer with about as many weights as a plain one four times as wide."""
    return int(2 * (4 * width) / 3)
