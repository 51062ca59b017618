"""Settings of the BERT recipe. Torch-free.

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
"""gelu_tanh is `gelu_new` of Hugging Face and Sabertooth; gelu is the exact one with the error function."""

DropoutRate = Annotated[float, Field(ge=0, lt=1)]


class EncoderConfig(Config):
    """What both architectures have."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"initializer_range", "hidden_dropout", "attention_dropout"})

    vocab_size: PositiveInt | None = None
    """Rows of the embedding table; null: as many as the tokenizer of the data has pieces. A fixed number must be at
    least that (a multiple of 64 or 128 is faster on GPUs)."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_layers: PositiveInt
    """Transformer blocks."""
    num_heads: PositiveInt
    """Attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt
    """Width of the feed-forward layer (modern: of each of its two halves)."""
    initializer_range: PositiveFloat = 0.02
    """Weights start from a normal distribution of this scale, cut at two scales: their deviation is 0.88 times this."""


class BertModelConfig(EncoderConfig):
    """BERT as Google and Sabertooth built it: learned positions, layer norm after each residual sum, all biases."""

    arch: Literal["bert"] = "bert"
    """Tells the two architectures apart."""
    activation: Activation = "gelu_tanh"
    """Of the feed-forward layers and of the masked-word head."""
    hidden_dropout: DropoutRate = 0.1
    """On the embeddings and on the output of every attention and feed-forward layer."""
    attention_dropout: DropoutRate = 0.1
    """On attention probabilities."""
    max_positions: PositiveInt = 512
    """Rows of the position table: no example can have more tokens."""
    type_vocab_size: PositiveInt = 2
    """Rows of the segment table."""
    layer_norm_epsilon: PositiveFloat = 1e-12
    """Added to variances."""


class ModernModelConfig(EncoderConfig):
    """ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663): rotary positions, gated feed-forward, layer
    norm before each layer, no biases, no segments, most layers with a local window."""

    neutral_fields: ClassVar[frozenset[str]] = EncoderConfig.neutral_fields | {"max_positions", "scale_output_layers"}

    arch: Literal["modern"] = "modern"
    """Tells the two architectures apart."""
    activation: Activation = "gelu"
    """Of the gate and of the masked-word head."""
    hidden_dropout: DropoutRate = 0.0
    """On the embeddings and inside the feed-forward layers."""
    attention_dropout: DropoutRate = 0.0
    """On attention probabilities and on the output of attention layers."""
    max_positions: PositiveInt = 8192
    """Longest example meant to be read; rotary positions have no table, so this costs nothing."""
    layer_norm_epsilon: PositiveFloat = 1e-5
    """Added to variances."""
    global_every: PositiveInt = 3
    """Layers 0, n, 2n, ... see the whole example, the others a window; 1: all layers see everything."""
    local_window: PositiveInt = 128
    """Tokens a local layer sees around each token: half of them before it, half after; even."""
    global_rope_theta: PositiveFloat = 160_000.0
    """Base of the rotary wavelengths in global layers."""
    local_rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary wavelengths in local layers."""
    scale_output_layers: bool = True
    """Initialise the layers that write into the residual stream smaller by sqrt(2 x num_layers), as Megatron does."""


AnyModelConfig: TypeAlias = BertModelConfig | ModernModelConfig


def _arch_of(value: Any) -> Any:
    """The tag of the union below: `arch`, and "bert" where a dict does not say."""
    return value.get("arch", "bert") if isinstance(value, Mapping) else getattr(value, "arch", None)


ModelConfig = Annotated[
    Annotated[BertModelConfig, Tag("bert")] | Annotated[ModernModelConfig, Tag("modern")], Discriminator(_arch_of)
]


class BertObjectiveConfig(Config):
    """Masked words, and what the two segments of a pair are to each other."""

    masking_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens of an example to predict, counting [CLS] and [SEP] in, rounded down, at least one token."""
    valid_masking_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """The same on held-out data, so that runs with different rates compare."""
    max_predictions: PositiveInt | None = 20
    """Most tokens to predict in one example; null: no limit besides the rate."""
    mask_unit: Literal["token", "whole_word", "span"] = "token"
    """What is hidden together: single tokens, all pieces of a word, or runs of geometric length."""
    mean_span_length: Annotated[float, Field(ge=1), ReadBy("mask_unit", ("span",))] = 3.0
    """span only: mean run in tokens (SpanBERT uses 3.8)."""
    mask_share: Rate = 0.8
    """Of the tokens to predict, how many become the mask token."""
    random_share: Rate = 0.1
    """How many become a random token."""
    keep_share: Rate = 0.1
    """How many stay as they are. The three shares add up to 1."""
    random_replacement: Literal["learned", "whole_vocabulary_compat"] = "learned"
    """learned: random tokens are ordinary pieces. whole_vocabulary_compat: any id, also bytes and control tokens, as in
    Sabertooth, where a random pad token is then not attended to."""
    sentence_order: bool = True
    """Predict what sentence_pair says; single segments count as being as written."""
    sentence_pair: Annotated[Literal["order", "next"], ReadBy("sentence_order", (True,))] = "order"
    """order: whether the two segments were swapped (ALBERT). next: whether the second segment follows the first, or is
    as many tokens from elsewhere in the same component (BERT), which can be told by the words they share."""
    swap_probability: Annotated[Rate, ReadBy("sentence_order", (True,))] = 0.5
    """Share of the pairs to swap, or to give another second segment."""
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
    """How documents become examples and examples batches."""

    max_seq_length: Annotated[int, Field(ge=8)] = 128
    """Most tokens of an example, with [CLS] and [SEP]."""
    batching: Literal["rows", "packed"] = "packed"
    """rows: one example per row of max_seq_length, the rest padding. packed: examples one after another without
    padding. The numbers are the same; packed costs less."""
    microbatch_tokens: Annotated[PositiveInt | None, ReadBy("batching", ("packed",))] = None
    """packed only: room for so many tokens in every microbatch, filled up with padding, so that shapes never change
    (torch.compile); null: as many as there are."""
    chunking: Literal["lossless", "sabertooth"] = "lossless"
    """lossless: an example ends before the sentence that would not fit; longer sentences are split and nothing is lost.
    sabertooth: sentences are added until the example is nearly full, and what is too much is cut off: of novels 16 % of
    the tokens are never seen."""


class BertRun(RunConfig):
    """One pretraining run of the BERT recipe."""

    recipe: Literal["bert"] = "bert"
    """Name of the recipe this config belongs to."""
    model: ModelConfig
    """The architecture."""
    objective: BertObjectiveConfig = BertObjectiveConfig()
    """What is predicted."""
    data: BertDataConfig
    """What the model is fed."""

    @property
    def trained_length(self) -> int:
        return self.data.max_seq_length

    @property
    def token_budget(self) -> int | None:
        return self.data.microbatch_tokens

    @property
    def num_predictions(self) -> int:
        """Most predictions of one example: the width P of the prediction arrays in rows."""
        data, objective = self.data, self.objective
        rate = max(objective.masking_rate, objective.valid_masking_rate)
        by_rate = max(1, int(rate * data.max_seq_length))
        return by_rate if objective.max_predictions is None else objective.max_predictions

    def problems(self, world_size: int = 1) -> list[str]:
        found = super().problems(world_size)
        model, data, objective = self.model, self.data, self.objective
        if model.hidden_size % model.num_heads:
            found.append(
                f"model.hidden_size {model.hidden_size} cannot be split over model.num_heads {model.num_heads}\n"
                f"  use a width that is a multiple of the number of heads, such as {64 * model.num_heads}"
            )
        elif model.arch == "modern" and model.hidden_size // model.num_heads % 2:
            found.append(
                f"model.hidden_size {model.hidden_size} over model.num_heads {model.num_heads} gives heads of "
                f"{model.hidden_size // model.num_heads}\n  rotary positions need an even width per head"
            )
        if data.max_seq_length > model.max_positions:
            found.append(
                Conflict(
                    f"data.max_seq_length {data.max_seq_length} is more than model.max_positions "
                    f"{model.max_positions}\n"
                    f"  set data.max_seq_length={model.max_positions} or model.max_positions={data.max_seq_length}",
                    [("data.max_seq_length", model.max_positions), ("model.max_positions", data.max_seq_length)],
                )
            )
        if model.arch == "modern" and model.local_window % 2:
            found.append(f"model.local_window is {model.local_window}; it must be even: half on each side of a token")
        if model.arch == "bert" and objective.sentence_order and model.type_vocab_size < 2:
            found.append(
                f"model.type_vocab_size is {model.type_vocab_size}, but pairs of segments need 2\n"
                "  set model.type_vocab_size=2 or objective.sentence_order=false"
            )
        predicted = ("data.max_seq_length", "objective.masking_rate", "objective.valid_masking_rate")
        wanted = int(max(objective.masking_rate, objective.valid_masking_rate) * data.max_seq_length)
        if objective.max_predictions is not None and objective.max_predictions < wanted:
            found.append(
                Conflict(
                    f"objective.max_predictions {objective.max_predictions} would quietly lower the masking rate: "
                    f"a full example of {data.max_seq_length} tokens has {wanted} predictions\n"
                    f"  set objective.max_predictions={wanted + 1} or null, or a lower objective.masking_rate",
                    [("objective.max_predictions", wanted + 1)],
                    *predicted,
                )
            )
        if objective.max_predictions is not None and objective.max_predictions >= data.max_seq_length:
            found.append(
                Conflict(
                    f"objective.max_predictions {objective.max_predictions} leaves nothing to read of "
                    f"data.max_seq_length {data.max_seq_length}\n  set objective.max_predictions={wanted + 1}, or null "
                    "for no limit besides the masking rate",
                    [("objective.max_predictions", wanted + 1)],
                    *predicted,
                )
            )
        if data.microbatch_tokens is not None and data.microbatch_tokens < data.max_seq_length:
            found.append(
                Conflict(
                    f"data.microbatch_tokens {data.microbatch_tokens} has no room for one example of "
                    f"data.max_seq_length {data.max_seq_length}\n  make it at least microbatch_size x the mean length",
                    [("data.microbatch_tokens", DEFAULT)],
                    "data.max_seq_length",
                )
            )
        return found
