"""Transformer blocks over a stream of tokens.

Dimensions: T tokens, D width, F width of the feed-forward layer.
"""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor, nn

from pretrainkit.dist.autocast import residual
from pretrainkit.nn.activations import ACTIVATIONS
from pretrainkit.nn.attention import AttentionLayout, SelfAttention
from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.rotary import Rotation


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last dimension."""

    def __init__(self, width: int, epsilon: float, *, has_bias: bool = True) -> None:
        super().__init__(width, eps=epsilon, bias=has_bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, with a learned scale that starts at 1:
    y = x / sqrt(mean(x^2) + epsilon) * scale, without mean subtraction and without bias.

    Source: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467; T5 uses it as its only norm. The statistic is
    float32 for any type of activations. The normalized value is converted to their type before it is multiplied by the
    scale.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_TD: Tensor) -> Tensor:
        """Map (..., D) to the same shape and type."""
        wide = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return normal.to(x_TD.dtype) * self.weight.to(x_TD.dtype)


class Pooler(nn.Module):
    """Computes the vector of a text from one token. BERT: dense layer, tanh. ModernBERT: dense layer, activation and
    norm of its masked-word head, as in transformers' fine-tuning."""

    def __init__(
        self, dense: nn.Linear, activation: Callable[[Tensor], Tensor] = torch.tanh, norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.dense, self.activation, self.norm = dense, activation, norm

    def forward(self, x_BD: Tensor) -> Tensor:
        """Map (B, D) to (B, D)."""
        x_BD = self.activation(self.dense(x_BD))
        return x_BD if self.norm is None else self.norm(x_BD)


class FeedForward(nn.Module):
    """Two linear layers with an activation in between."""

    def __init__(self, width: int, inner_width: int, activation: str, *, has_bias: bool = True) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(width, inner_width, bias=has_bias)
        self.down = nn.Linear(inner_width, width, bias=has_bias)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Map (T, D) to (T, D)."""
        return self.down(self.activation(self.up(x_TD)))


class GatedFeedForward(nn.Module):
    """activation(a) x b for the two halves a, b of one linear layer (GeGLU if the activation is GELU), then another
    layer.

    Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.
    """

    def __init__(
        self, width: int, inner_width: int, activation: str, dropout_rate: float = 0.0, *, has_bias: bool = False
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dropout_rate = dropout_rate
        self.up = nn.Linear(width, 2 * inner_width, bias=has_bias)
        self.down = nn.Linear(inner_width, width, bias=has_bias)

    def stacked_layers(self) -> dict[str, int]:
        return {"up": 2}

    def forward(self, x_TD: Tensor) -> Tensor:
        """Map (T, D) to (T, D)."""
        gate_TF, value_TF = self.up(x_TD).chunk(2, dim=-1)
        inner_TF = self.activation(gate_TF) * value_TF
        return self.down(dropout(inner_TF, self.dropout_rate, is_training=self.training))


class PostNormBlock(nn.Module):
    """BERT's layer: norm after each residual sum (Vaswani et al. 2017)."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        inner_width: int,
        *,
        activation: str,
        dropout_rate: float,
        attention_dropout_rate: float,
        epsilon: float,
    ) -> None:
        super().__init__()
        self.dropout_rate = dropout_rate
        self.attention = SelfAttention(width, num_heads, has_bias=True, dropout_rate=attention_dropout_rate)
        self.attention_norm = LayerNorm(width, epsilon)
        self.feed_forward = FeedForward(width, inner_width, activation)
        self.feed_forward_norm = LayerNorm(width, epsilon)

    def forward(self, x_TD: Tensor, layout: AttentionLayout, rotation: Rotation | None = None) -> Tensor:
        """Map (T, D) to (T, D), or to the rows of the query tokens (see `AttentionLayout.reading`)."""
        rate, is_training = self.dropout_rate, self.training
        mixed_TD = dropout(self.attention(x_TD, layout, rotation), rate, is_training=is_training)
        x_TD = residual(self.attention_norm(layout.query_rows(x_TD) + mixed_TD))
        inner_TD = dropout(self.feed_forward(x_TD), rate, is_training=is_training)
        return residual(self.feed_forward_norm(x_TD + inner_TD))


class PlainBlockOptions(TypedDict):
    """Settings that all blocks of a tower of `PlainPreNormBlock` share, besides their width."""

    num_heads: int
    inner_width: int
    activation: str
    attention_dropout_rate: float
    epsilon: float


class PlainPreNormBlock(nn.Module):
    """The layer of vision transformers and of CLIP: norm before attention and feed-forward, biases everywhere."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        inner_width: int,
        *,
        activation: str,
        attention_dropout_rate: float,
        epsilon: float,
        dropout_rate: float = 0.0,
    ) -> None:
        """`dropout_rate` applies to the outputs of attention and feed-forward."""
        super().__init__()
        self.dropout_rate = dropout_rate
        self.attention_norm = LayerNorm(width, epsilon)
        self.attention = SelfAttention(width, num_heads, has_bias=True, dropout_rate=attention_dropout_rate)
        self.feed_forward_norm = LayerNorm(width, epsilon)
        self.feed_forward = FeedForward(width, inner_width, activation)

    def forward(self, x_TD: Tensor, layout: AttentionLayout, rotation: Rotation | None = None) -> Tensor:
        """Map (T, D) to (T, D), or to the rows of the query tokens (see `AttentionLayout.reading`)."""
        rate, is_training = self.dropout_rate, self.training
        mixed_TD = self.attention(self.attention_norm(x_TD), layout, rotation)
        x_TD = layout.query_rows(x_TD) + dropout(mixed_TD, rate, is_training=is_training)
        return x_TD + dropout(self.feed_forward(self.feed_forward_norm(x_TD)), rate, is_training=is_training)


class PreNormBlock(nn.Module):
    """ModernBERT's layer: norm before attention and feed-forward, gated feed-forward, no biases."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        inner_width: int,
        *,
        activation: str,
        dropout_rate: float,
        attention_dropout_rate: float,
        epsilon: float,
        window: int | None,
        has_attention_norm: bool,
    ) -> None:
        """`has_attention_norm` is False in the first layer, whose input the embedding norm has just normalized."""
        super().__init__()
        self.attention_dropout_rate = attention_dropout_rate
        self.attention_norm = LayerNorm(width, epsilon, has_bias=False) if has_attention_norm else nn.Identity()
        self.attention = SelfAttention(
            width, num_heads, has_bias=False, dropout_rate=attention_dropout_rate, window=window
        )
        self.feed_forward_norm = LayerNorm(width, epsilon, has_bias=False)
        self.feed_forward = GatedFeedForward(width, inner_width, activation, dropout_rate)

    def forward(self, x_TD: Tensor, layout: AttentionLayout, rotation: Rotation | None = None) -> Tensor:
        """Map (T, D) to (T, D), or to the rows of the query tokens (see `AttentionLayout.reading`)."""
        mixed_TD = self.attention(self.attention_norm(x_TD), layout, rotation)
        x_TD = layout.query_rows(x_TD) + dropout(mixed_TD, self.attention_dropout_rate, is_training=self.training)
        return x_TD + self.feed_forward(self.feed_forward_norm(x_TD))
