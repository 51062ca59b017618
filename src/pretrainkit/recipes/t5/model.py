"""T5: encoder and decoder of text-to-text models, or only one of the two.

Unlike most implementations, it reads streams of real tokens, one example after another, instead of padded rows. It
returns log-probabilities of the targets, so logits are computed only where there is a target, for a part of the
vocabulary at a time. Each parameter of the original is a parameter here, because Adafactor treats each as a whole.

Dimensions: T tokens of a stream, S of the encoder's, K predictions, D width, F of the feed-forward layer, V vocabulary,
H heads, C width of one head.
Sources: Raffel et al. 2020, https://arxiv.org/abs/1910.10683; T5X (`t5x/examples/t5`).
"""

import math
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import activation_dtype, in_float32
from pretrainkit.errors import InputError
from pretrainkit.nn.activations import ACTIVATIONS
from pretrainkit.nn.biased_attention import PairLayout
from pretrainkit.nn.blocks import RMSNorm
from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.initialise import built, truncated_normal_
from pretrainkit.nn.layouts import example_numbers, stream_pairs
from pretrainkit.nn.linear_cross_entropy import LinearCrossEntropy, TokenLoss, linear_logits
from pretrainkit.nn.relative_bias import RelativeBias
from pretrainkit.recipes.t5.config import T5ModelConfig
from pretrainkit.recipes.t5.inputs import T5Inputs
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch

_TRUNCATED_DEVIATION = 0.87962566103423978
"""Standard deviation of a standard normal distribution that is truncated at two."""


class TokenScores(NamedTuple):
    """Scores of given tokens. A tuple, so that DDP and FSDP2 find the tensors in it."""

    loss: TokenLoss
    """Loss of each token."""
    logit_sum_K: Tensor | None
    """float32, sum of the logits over the vocabulary, which label smoothing needs; None if it was not requested."""


class Attention(nn.Module):
    """Self-attention, or attention of a decoder to an encoder. No biases, and no scale: see `initialise`."""

    def __init__(self, config: T5ModelConfig) -> None:
        super().__init__()
        inner = config.num_heads * config.head_size
        self.heads = (config.num_heads, config.head_size)
        self.dropout_rate = config.dropout
        self.query = nn.Linear(config.hidden_size, inner, bias=False)
        self.key = nn.Linear(config.hidden_size, inner, bias=False)
        self.value = nn.Linear(config.hidden_size, inner, bias=False)
        self.out = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(
        self, x_TD: Tensor, layout: PairLayout, prepared: Tensor | None, encoded_SD: Tensor | None = None
    ) -> Tensor:
        """Return (T, D) from (T, D). `encoded_SD`: the encoder's output; None: self-attention."""
        rate = self.dropout_rate if self.training else 0.0
        if encoded_SD is None:
            q_THC, kv = None, self.query_key_value(x_TD)
        else:
            q_THC, kv = self.query(x_TD).unflatten(-1, self.heads), self.key_value(encoded_SD)
        return self.out(layout.attend(q_THC, kv, prepared, dropout_rate=rate).flatten(1))

    def query_key_value(self, x_TD: Tensor) -> Tensor:
        """Return queries, keys and values, (T, 3, H, C)."""
        weight = torch.cat((self.query.weight, self.key.weight, self.value.weight))
        return F.linear(x_TD, weight).unflatten(-1, (3, *self.heads))

    def key_value(self, x_SD: Tensor) -> Tensor:
        """Return keys and values, (S, 2, H, C)."""
        weight = torch.cat((self.key.weight, self.value.weight))
        return F.linear(x_SD, weight).unflatten(-1, (2, *self.heads))


class FeedForward(nn.Module):
    """The product of some projections, each through its activation, and a projection back."""

    def __init__(self, config: T5ModelConfig) -> None:
        super().__init__()
        self.activations = config.activations
        self.dropout_rate = config.dropout
        self.up = nn.ModuleList(
            nn.Linear(config.hidden_size, config.intermediate_size, bias=False) for _ in config.activations
        )
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return (T, D) from (T, D)."""
        parts = [
            up(x_TD) if name == "linear" else ACTIVATIONS[name](up(x_TD))
            for name, up in zip(self.activations, self.up, strict=True)
        ]
        return self.down(dropout(reduce(torch.mul, parts), self.dropout_rate, is_training=self.training))


class Block(nn.Module):
    """Self-attention, optional attention to an encoder, feed-forward; each has a norm before it and a residual sum
    after."""

    def __init__(self, config: T5ModelConfig, *, is_causal: bool, has_cross_attention: bool) -> None:
        super().__init__()
        self.dropout_rate = config.dropout
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.attention = Attention(config)
        self.relative_bias = _relative_bias(config, is_causal=is_causal) if config.bias_per_layer else None
        self.cross_norm = RMSNorm(config.hidden_size, config.norm_epsilon) if has_cross_attention else None
        self.cross_attention = Attention(config) if has_cross_attention else None
        self.feed_forward_norm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x_TD: Tensor,
        layout: PairLayout,
        prepared: Tensor | None,
        encoded_SD: Tensor | None = None,
        cross_layout: PairLayout | None = None,
        cross_prepared: Tensor | None = None,
    ) -> Tensor:
        """Return (T, D) from (T, D)."""
        if self.relative_bias is not None:
            prepared = layout.prepare(self.relative_bias, activation_dtype(x_TD))
        x_TD = x_TD + self._drop(self.attention(self.attention_norm(x_TD), layout, prepared))
        if self.cross_attention is not None:
            assert self.cross_norm is not None
            assert cross_layout is not None
            mixed_TD = self.cross_attention(self.cross_norm(x_TD), cross_layout, cross_prepared, encoded_SD)
            x_TD = x_TD + self._drop(mixed_TD)
        return x_TD + self._drop(self.feed_forward(self.feed_forward_norm(x_TD)))

    def _drop(self, x_TD: Tensor) -> Tensor:
        return dropout(x_TD, self.dropout_rate, is_training=self.training)


class Stack(nn.Module):
    """The layers of an encoder or a decoder, with the bias they share and the norm at their end."""

    def __init__(self, config: T5ModelConfig, num_layers: int, *, is_causal: bool, has_cross_attention: bool) -> None:
        super().__init__()
        self.dropout_rate = config.dropout
        self.layers = nn.ModuleList(
            Block(config, is_causal=is_causal, has_cross_attention=has_cross_attention) for _ in range(num_layers)
        )
        self.relative_bias = None if config.bias_per_layer else _relative_bias(config, is_causal=is_causal)
        self.final_norm = RMSNorm(config.hidden_size, config.norm_epsilon)

    def forward(
        self,
        x_TD: Tensor,
        layout: PairLayout,
        encoded_SD: Tensor | None = None,
        cross_layout: PairLayout | None = None,
    ) -> Tensor:
        """Return (T, D) from embeddings (T, D)."""
        dtype = activation_dtype(x_TD)
        x_TD = dropout(x_TD, self.dropout_rate, is_training=self.training)
        prepared = None if self.relative_bias is None else layout.prepare(self.relative_bias, dtype)
        cross_prepared = None if cross_layout is None else cross_layout.prepare(None, dtype)
        for layer in self.layers:
            x_TD = layer(x_TD, layout, prepared, encoded_SD, cross_layout, cross_prepared)
        return dropout(self.final_norm(x_TD), self.dropout_rate, is_training=self.training)


class T5(nn.Module):
    """Embeddings, stacks and logits."""

    def __init__(self, config: T5ModelConfig) -> None:
        """Raise ValueError if `config.vocab_size` is None. Weights are not initialized: see `initialise`."""
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("model.vocab_size is not set: bind the config to its data, or set it")
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoder = self.decoder = None
        if config.num_encoder_layers is not None:
            self.encoder = Stack(config, config.num_encoder_layers, is_causal=False, has_cross_attention=False)
        if config.num_decoder_layers is not None:
            self.decoder = Stack(
                config, config.num_decoder_layers, is_causal=True, has_cross_attention=self.encoder is not None
            )
        self.logits = None if config.tied_logits else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.loss = LinearCrossEntropy()

    def blocks(self) -> list[nn.Module]:
        """Return the submodules to compile, shard and recompute one by one."""
        return [block for stack in (self.encoder, self.decoder) if stack is not None for block in stack.layers]

    def forward(
        self, inputs: T5Inputs, token_K: Tensor | None = None, *, has_logit_sum: bool = False
    ) -> TokenScores | Tensor:
        """Return scores of the true tokens `token_K` at `inputs.predicted_K`, or float32 logits (K, V) without
        `token_K`."""
        hidden_TD = self.hidden(inputs)
        hidden_KD = hidden_TD if inputs.predicted_K is None else hidden_TD[inputs.predicted_K]
        return self.head(hidden_KD, token_K, has_logit_sum=has_logit_sum)

    def hidden(self, inputs: T5Inputs) -> Tensor:
        """Return the last stack's output for its stream, (T, D)."""
        streams = [ids for ids in (inputs.encoder_ids_S, inputs.decoder_ids_T) if ids is not None]
        x = self.embed(torch.cat(streams))
        if self.encoder is None or inputs.encoder_layout is None:
            assert self.decoder is not None
            assert inputs.decoder_layout is not None
            return self.decoder(x, inputs.decoder_layout)
        x_SD = x[: len(streams[0])]
        encoded_SD = self.encoder(x_SD, inputs.encoder_layout)
        if self.decoder is None:
            return encoded_SD
        assert inputs.decoder_layout is not None
        return self.decoder(x[len(streams[0]) :], inputs.decoder_layout, encoded_SD, inputs.cross_layout)

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings (*ids.shape, D) in the dtype of activations."""
        x = self.embedding(ids)
        return x.to(activation_dtype(x))

    def head(self, hidden_KD: Tensor, token_K: Tensor | None, *, has_logit_sum: bool = False) -> TokenScores | Tensor:
        """Return the result of `forward` from hidden states. It is always computed in float32."""
        hidden_KD = hidden_KD.to(torch.promote_types(hidden_KD.dtype, torch.float32))
        weight_VD = self.embedding.weight if self.logits is None else self.logits.weight
        if self.logits is None:
            hidden_KD = hidden_KD * self.config.hidden_size**-0.5
        weight_VD = weight_VD.to(hidden_KD.dtype)  # FSDP2 may gather it in another dtype
        with in_float32(hidden_KD):
            if token_K is None:
                return linear_logits(hidden_KD, weight_VD, None)
            loss = self.loss(hidden_KD, weight_VD, None, token_K)
            return TokenScores(loss, hidden_KD @ weight_VD.sum(0) if has_logit_sum else None)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw new weights from torch's global generator, with the deviations of T5X or of transformers."""
        config = self.config
        is_hf = config.init_style == "hf"
        width, inner = config.hidden_size, config.num_heads * config.head_size
        self.embedding.weight.normal_()
        if self.logits is not None:
            _normal(self.logits.weight, 1.0 if is_hf else width**-0.5, is_cut=not is_hf)
        for module in self.modules():
            if isinstance(module, Attention):
                _normal(module.query.weight, (width * config.head_size) ** -0.5)
                _normal(module.key.weight, width**-0.5)
                _normal(module.value.weight, width**-0.5)
                _normal(module.out.weight, inner**-0.5)
            elif isinstance(module, FeedForward):
                for up in module.up:
                    assert isinstance(up, nn.Linear)
                    _normal(up.weight, width**-0.5, is_cut=not is_hf)
                _normal(module.down.weight, config.intermediate_size**-0.5, is_cut=not is_hf)
            elif isinstance(module, RelativeBias):
                if is_hf:
                    _normal(module.weight, width**-0.5)
                else:
                    limit = math.sqrt(6 / sum(module.weight.shape))
                    module.weight.uniform_(-limit, limit)
            elif isinstance(module, RMSNorm):
                module.weight.fill_(1)


def _normal(weight: Tensor, deviation: float, *, is_cut: bool = False) -> None:
    """Draw normal values; if `is_cut`, none beyond two deviations, rescaled so that the deviation is still right."""
    if is_cut:
        truncated_normal_(weight, deviation / _TRUNCATED_DEVIATION)
    else:
        weight.normal_(0, deviation)


def _relative_bias(config: T5ModelConfig, *, is_causal: bool) -> RelativeBias:
    sizes = {"num_buckets": config.num_buckets, "max_distance": config.max_distance}
    return RelativeBias(config.num_heads, **sizes, is_bidirectional=not is_causal)


def build(config: T5ModelConfig) -> T5:
    """Return the model on torch's default device, initialized from its global generator; without values on "meta"."""
    return built(lambda: T5(config), T5.initialise)


class T5TextEncoder(TextEncoder):
    """Embeddings and encoder. It ignores `token_type_ids` and `positions`."""

    def __init__(self, model: T5) -> None:
        """Raise InputError if the model has no encoder."""
        super().__init__()
        if model.encoder is None:
            raise InputError("this T5 model has no encoder, only a decoder\n  use a model with an encoder")
        self.width, self.dropout_rate = model.config.hidden_size, model.config.dropout
        self.head_width = model.config.head_size
        self.embedding, self.encoder = model.embedding, model.encoder

    def blocks(self) -> list[torch.nn.Module]:
        return list(self.encoder.layers)

    def forward(self, batch: Batch, max_length: int) -> Tensor:
        return self.vectors_and_tokens(batch, max_length)[0]

    def vectors_and_tokens(self, batch: Batch, max_length: int) -> tuple[Tensor, Tensor]:
        x_TD, ends = self.tokens(batch, max_length), batch["cu_seqlens"].long()
        example_T = example_numbers(ends, len(x_TD))
        sum_BD = x_TD.new_zeros(len(ends) - 1, self.width).index_add_(0, example_T, x_TD)
        return sum_BD / ends.diff()[:, None], x_TD

    def tokens(self, batch: Batch, max_length: int) -> Tensor:
        x_TD = self.embedding(batch["input_ids"])
        x_TD = x_TD.to(activation_dtype(x_TD))
        has_dropout = self.training and self.dropout_rate > 0
        starts = batch["cu_seqlens"].long()
        return self.encoder(x_TD, stream_pairs(starts, len(x_TD), self.head_width, has_dropout=has_dropout))
