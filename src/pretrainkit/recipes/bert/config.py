"""Settings of the BERT recipe. This module does not import torch.

`BertRun` is a `RunConfig` whose model, objective and data are the classes below. Presets (complete configs) are in
`presets.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, model_validator

from pretrainkit.config.base import DEFAULT, Config, Conflict, ReadBy
from pretrainkit.config.fields import Rate
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.run import RunConfig

Activation = Literal["gelu_tanh", "gelu", "relu", "swish"]
"""gelu_tanh is `gelu_new` of Hugging Face and Sabertooth; gelu is the exact function with the error function."""

DropoutRate = Annotated[float, Field(ge=0, lt=1)]


class EncoderConfig(Config):
    """Settings of both architectures."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"initializer_range", "hidden_dropout", "attention_dropout"})

    vocab_size: PositiveInt | None = None
    """Number of rows of the embedding table; null: the number of pieces of the data's tokenizer. A fixed number must be
    at least that (a multiple of 64 or 128 is faster on GPUs)."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_layers: PositiveInt
    """Number of transformer blocks."""
    num_heads: PositiveInt
    """Number of attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt
    """Width of the feed-forward layer (modern: of each of its two halves)."""
    initializer_range: PositiveFloat = 0.02
    """Scale of the normal distribution of initial weights, truncated at two scales. Their standard deviation is 0.88
    times this."""


class BertModelConfig(EncoderConfig):
    """BERT as Google and Sabertooth built it: learned positions, layer norm after each residual sum, all biases."""

    arch: Literal["bert"] = "bert"
    """Name of the architecture."""
    activation: Activation = "gelu_tanh"
    """Activation function of the feed-forward layers and of the masked-word head."""
    hidden_dropout: DropoutRate = 0.1
    """Dropout rate of the embeddings and of the output of every attention and feed-forward layer."""
    attention_dropout: DropoutRate = 0.1
    """Dropout rate of the attention probabilities."""
    max_positions: PositiveInt = 512
    """Number of rows of the position table. No example can have more tokens."""
    type_vocab_size: PositiveInt = 2
    """Number of rows of the segment table."""
    layer_norm_epsilon: PositiveFloat = 1e-12
    """Number that layer norms add to the variance."""


class ModernModelConfig(EncoderConfig):
    """ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663): rotary positions, gated feed-forward layers,
    layer norm before each layer, no biases, no segments, and local attention in most layers."""

    neutral_fields: ClassVar[frozenset[str]] = EncoderConfig.neutral_fields | {"max_positions", "scale_output_layers"}

    arch: Literal["modern"] = "modern"
    """Name of the architecture."""
    activation: Activation = "gelu"
    """Activation function of the gate and of the masked-word head."""
    hidden_dropout: DropoutRate = 0.0
    """Dropout rate of the embeddings and inside the feed-forward layers."""
    attention_dropout: DropoutRate = 0.0
    """Dropout rate of the attention probabilities and of the output of attention layers."""
    max_positions: PositiveInt = 8192
    """Length in tokens of the longest example that the model should read. Rotary positions have no table, so a large
    value costs nothing."""
    layer_norm_epsilon: PositiveFloat = 1e-5
    """Number that layer norms add to the variance."""
    global_every: PositiveInt = 3
    """Layers 0, n, 2n, ... attend to the whole example, the others to a window; 1: all layers attend to everything."""
    local_window: PositiveInt = 128
    """Number of tokens around each token that a local layer attends to: half before it, half after it; must be even."""
    global_rope_theta: PositiveFloat = 160_000.0
    """Base of the rotary wavelengths in global layers."""
    local_rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary wavelengths in local layers."""
    scale_output_layers: bool = True
    """Divide the initial scale of layers that write to the residual stream by sqrt(2 x num_layers), as in Megatron."""


AnyModelConfig: TypeAlias = BertModelConfig | ModernModelConfig


def _arch_of(value: Any) -> Any:
    """Return the tag of the union below: `arch`, or "bert" if a dict has no `arch`."""
    return value.get("arch", "bert") if isinstance(value, Mapping) else getattr(value, "arch", None)


ModelConfig = Annotated[
    Annotated[BertModelConfig, Tag("bert")] | Annotated[ModernModelConfig, Tag("modern")], Discriminator(_arch_of)
]


class BertObjectiveConfig(Config):
    """Masked words, and the relation between the two segments of a pair."""

    masking_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of an example's tokens (with [CLS] and [SEP]) to predict, rounded down, at least one token."""
    valid_masking_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Masking rate on held-out data. It is separate so that the losses of runs with different rates are comparable."""
    max_predictions: PositiveInt | None = 20
    """Maximum number of tokens to predict in one example; null: no limit besides the rate."""
    mask_unit: Literal["token", "whole_word", "span"] = "token"
    """Unit of masking: single tokens, all pieces of a word, or spans of geometrically distributed length."""
    mean_span_length: Annotated[float, Field(ge=1), ReadBy("mask_unit", ("span",))] = 3.0
    """span only: mean length of a span in tokens (SpanBERT uses 3.8)."""
    mask_share: Rate = 0.8
    """Share of the predicted tokens that become the mask token."""
    random_share: Rate = 0.1
    """Share of the predicted tokens that become a random token."""
    keep_share: Rate = 0.1
    """Share of the predicted tokens that stay unchanged. The three shares add up to 1."""
    random_replacement: Literal["learned", "whole_vocabulary_compat"] = "learned"
    """learned: random tokens are learned pieces. whole_vocabulary_compat: any id, including bytes and control tokens,
    as in Sabertooth; a random pad token is then not attended to."""
    sentence_order: bool = True
    """Also train the classification that sentence_pair chooses. Single segments have the label 0 (not swapped)."""
    sentence_pair: Annotated[Literal["order", "next"], ReadBy("sentence_order", (True,))] = "order"
    """order: predict if the two segments were swapped (ALBERT). next: predict if the second segment follows the first,
    or is a span of equal length from elsewhere in the same component (BERT), which shared words often reveal."""
    swap_probability: Annotated[Rate, ReadBy("sentence_order", (True,))] = 0.5
    """Share of the pairs that are swapped (order) or get another second segment (next)."""
    masked_lm_weight: PositiveFloat = 1.0
    """Factor of the masked-word loss."""
    sentence_order_weight: Annotated[PositiveFloat, ReadBy("sentence_order", (True,))] = 1.0
    """Factor of the loss of sentence_pair."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        total = self.mask_share + self.random_share + self.keep_share
        if abs(total - 1) > 1e-6:
            raise ValueError(
                f"mask_share {self.mask_share} + random_share {self.random_share} + keep_share {self.keep_share} = "
                f"{total:g}; the three must add up to 1"
            )
        return self


class BertDataConfig(DataConfig):
    """Settings that turn documents into examples, and examples into batches."""

    max_seq_length: Annotated[int, Field(ge=8)] = 128
    """Maximum number of tokens of an example, with [CLS] and [SEP]."""
    batching: Literal["rows", "packed"] = "packed"
    """rows: one example per row of max_seq_length, padded. packed: examples are concatenated without padding. The
    results are the same; packed costs less."""
    microbatch_tokens: Annotated[PositiveInt | None, ReadBy("batching", ("packed",))] = None
    """packed only: pad every microbatch to this many tokens, so that shapes never change (torch.compile); null: no
    padding."""
    chunking: Literal["lossless", "sabertooth"] = "lossless"
    """lossless: an example ends before the first sentence that does not fit. Sentences longer than an example are
    split, and no token is lost. sabertooth: sentences are added until the example is nearly full, and the excess is cut
    off; in novels, 16 % of the tokens are then never seen."""


class BertRun(RunConfig):
    """One pretraining run of the BERT recipe."""

    recipe: Literal["bert"] = "bert"
    """Name of the recipe of this config."""
    model: ModelConfig
    """Settings of the architecture."""
    objective: BertObjectiveConfig = BertObjectiveConfig()
    """Settings of the predictions and their losses."""
    data: BertDataConfig
    """Settings of the training and held-out data."""

    @property
    def trained_length(self) -> int:
        return self.data.max_seq_length

    @property
    def token_budget(self) -> int | None:
        return self.data.microbatch_tokens

    @property
    def num_predictions(self) -> int:
        """Maximum number of predictions of one example: the width P of the prediction arrays in rows."""
        data, objective = self.data, self.objective
        rate = max(objective.masking_rate, objective.valid_masking_rate)
        by_rate = max(1, int(rate * data.max_seq_length))
        return by_rate if objective.max_predictions is None else objective.max_predictions

    def problems(self, world_size: int = 1) -> list[str]:
        problems = super().problems(world_size)
        model, data, objective = self.model, self.data, self.objective
        if model.hidden_size % model.num_heads:
            problems.append(
                f"model.hidden_size {model.hidden_size} cannot be split over model.num_heads {model.num_heads}\n"
                f"  use a width that is a multiple of the number of heads, such as {64 * model.num_heads}"
            )
        elif model.arch == "modern" and model.hidden_size // model.num_heads % 2:
            problems.append(
                f"model.hidden_size {model.hidden_size} over model.num_heads {model.num_heads} gives heads of "
                f"width {model.hidden_size // model.num_heads}\n  rotary positions need an even width per head"
            )
        if data.max_seq_length > model.max_positions:
            problems.append(
                Conflict(
                    f"data.max_seq_length {data.max_seq_length} is more than model.max_positions "
                    f"{model.max_positions}\n"
                    f"  set data.max_seq_length={model.max_positions} or model.max_positions={data.max_seq_length}",
                    [("data.max_seq_length", model.max_positions), ("model.max_positions", data.max_seq_length)],
                )
            )
        if model.arch == "modern" and model.local_window % 2:
            problems.append(
                f"model.local_window is {model.local_window}; it must be even: half before a token, half after it"
            )
        if model.arch == "bert" and objective.sentence_order and model.type_vocab_size < 2:
            problems.append(
                f"model.type_vocab_size is {model.type_vocab_size}, but pairs of segments need 2\n"
                "  set model.type_vocab_size=2 or objective.sentence_order=false"
            )
        predicted = ("data.max_seq_length", "objective.masking_rate", "objective.valid_masking_rate")
        needed = int(max(objective.masking_rate, objective.valid_masking_rate) * data.max_seq_length)
        if objective.max_predictions is not None and objective.max_predictions < needed:
            problems.append(
                Conflict(
                    f"objective.max_predictions {objective.max_predictions} would silently lower the masking rate: "
                    f"a full example of {data.max_seq_length} tokens has {needed} predictions\n"
                    f"  set objective.max_predictions={needed + 1} or null, or a lower objective.masking_rate",
                    [("objective.max_predictions", needed + 1)],
                    *predicted,
                )
            )
        if objective.max_predictions is not None and objective.max_predictions >= data.max_seq_length:
            problems.append(
                Conflict(
                    f"objective.max_predictions {objective.max_predictions} leaves no token to read with "
                    f"data.max_seq_length {data.max_seq_length}\n  set objective.max_predictions={needed + 1}, or null "
                    "for no limit besides the masking rate",
                    [("objective.max_predictions", needed + 1)],
                    *predicted,
                )
            )
        if data.microbatch_tokens is not None and data.microbatch_tokens < data.max_seq_length:
            problems.append(
                Conflict(
                    f"data.microbatch_tokens {data.microbatch_tokens} is too small for one example of "
                    f"data.max_seq_length {data.max_seq_length}\n  set at least microbatch_size x the mean length",
                    [("data.microbatch_tokens", DEFAULT)],
                    "data.max_seq_length",
                )
            )
        return problems
