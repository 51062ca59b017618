"""The blocks of encoder and decoder: norm first, residual, with what the published variants differ in.

Dimensions: T tokens of the stream, S of the stream that is asked, D width, F width of the feed-forward layer, H heads,
K width of one head, E examples.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretrainkit.nn.activations import ACTIVATIONS
from pretrainkit.nn.biased_attention import PairLayout
from pretrainkit.nn.blocks import LayerNorm
from pretrainkit.recipes.fourm.model_config import FourMModelConfig


class Attention(nn.Module):
    """Of tokens to each other."""

    def __init__(self, config: FourMModelConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = (config.num_heads, width // config.num_heads)
        self.qkv = nn.Linear(width, 3 * width, bias=config.biases)
        self.out = nn.Linear(width, width, bias=config.biases)
        self.query_norm, self.key_norm = _head_norms(config)

    def stacked_layers(self) -> dict[str, int]:
        return {"qkv": 3}

    def forward(self, x_TD: Tensor, layout: PairLayout, prepared: Tensor | None) -> Tensor:
        """(T, D) to (T, D)."""
        qkv_T3HK = self.qkv(x_TD).unflatten(-1, (3, *self.heads))
        q_THK = None
        if self.query_norm is not None and self.key_norm is not None:
            q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
            q_THK, k_THK = self.query_norm(q_THK), self.key_norm(k_THK)
            qkv_T3HK = torch.stack((k_THK, v_THK.to(k_THK.dtype)), dim=1)
        scale = self.heads[1] ** -0.5
        mixed_THK = layout.attend(q_THK, qkv_T3HK, prepared, dropout_rate=0.0, scale=scale)
        return self.out(mixed_THK.flatten(1))


class CrossAttention(nn.Module):
    """Of the decoder's tokens to the encoder's."""

    def __init__(self, config: FourMModelConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = (config.num_heads, width // config.num_heads)
        self.query = nn.Linear(width, width, bias=config.biases)
        self.key_value = nn.Linear(width, 2 * width, bias=config.biases)
        self.out = nn.Linear(width, width, bias=config.biases)
        self.query_norm, self.key_norm = _head_norms(config)

    def stacked_layers(self) -> dict[str, int]:
        return {"key_value": 2}

    def forward(self, x_TD: Tensor, asked_SD: Tensor, layout: PairLayout, prepared: Tensor | None) -> Tensor:
        """(T, D) to (T, D)."""
        q_THK = self.query(x_TD).unflatten(-1, self.heads)
        kv_S2HK = self.key_value(asked_SD).unflatten(-1, (2, *self.heads))
        if self.query_norm is not None and self.key_norm is not None:
            q_THK = self.query_norm(q_THK)
            k_SHK = self.key_norm(kv_S2HK[:, 0])
            kv_S2HK = torch.stack((k_SHK, kv_S2HK[:, 1].to(k_SHK.dtype)), dim=1)
        scale = self.heads[1] ** -0.5
        return self.out(layout.attend(q_THK, kv_S2HK, prepared, dropout_rate=0.0, scale=scale).flatten(1))


class FeedForward(nn.Module):
    """activation(x U) W, or (activation(x G) * x U) W with G above U in one matrix."""

    def __init__(self, config: FourMModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.gated = config.gated
        num_halves = 2 if config.gated else 1
        self.up = nn.Linear(config.hidden_size, num_halves * config.intermediate_size, bias=config.biases)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.biases)

    def stacked_layers(self) -> dict[str, int]:
        return {"up": 2} if self.gated else {}

    def forward(self, x_TD: Tensor) -> Tensor:
        """(T, D) to (T, D)."""
        if not self.gated:
            return self.down(self.activation(self.up(x_TD)))
        gate_TF, up_TF = self.up(x_TD).chunk(2, dim=-1)
        return self.down(self.activation(gate_TF) * up_TF)


class Examples(NamedTuple):
    """Which example each token is of."""

    example_T: Tensor
    """int64."""
    num: int
    """All numbers are below."""


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward layer."""

    def __init__(self, config: FourMModelConfig, drop_path_rate: float) -> None:
        super().__init__()
        self.drop_path_rate = drop_path_rate
        self.attention_norm = norm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = norm(config)
        self.feed_forward = FeedForward(config)

    def forward(self, x_TD: Tensor, layout: PairLayout, prepared: Tensor | None, examples: Examples) -> Tensor:
        """(T, D) to (T, D)."""
        x_TD = _add(self, x_TD, self.attention(self.attention_norm(x_TD), layout, prepared), examples)
        return _add(self, x_TD, self.feed_forward(self.feed_forward_norm(x_TD)), examples)


class DecoderBlock(nn.Module):
    """Self-attention, attention to the encoder, feed-forward layer."""

    def __init__(self, config: FourMModelConfig, drop_path_rate: float) -> None:
        super().__init__()
        self.drop_path_rate = drop_path_rate
        self.attention_norm = norm(config)
        self.attention = Attention(config)
        self.query_norm = norm(config)
        self.context_norm = norm(config)
        self.cross_attention = CrossAttention(config)
        self.feed_forward_norm = norm(config)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x_TD: Tensor,
        context_SD: Tensor,
        layout: PairLayout,
        prepared: Tensor | None,
        cross_layout: PairLayout,
        cross_prepared: Tensor | None,
        examples: Examples,
    ) -> Tensor:
        """(T, D) to (T, D)."""
        x_TD = _add(self, x_TD, self.attention(self.attention_norm(x_TD), layout, prepared), examples)
        asked_SD = self.context_norm(context_SD)
        mixed_TD = self.cross_attention(self.query_norm(x_TD), asked_SD, cross_layout, cross_prepared)
        x_TD = _add(self, x_TD, mixed_TD, examples)
        return _add(self, x_TD, self.feed_forward(self.feed_forward_norm(x_TD)), examples)


def norm(config: FourMModelConfig, width: int | None = None) -> LayerNorm:
    """Of the model's width, or of another."""
    return LayerNorm(width or config.hidden_size, config.layer_norm_epsilon, has_bias=config.biases)


def _head_norms(config: FourMModelConfig) -> tuple[LayerNorm | None, LayerNorm | None]:
    if not config.query_key_norm:
        return None, None
    width = config.hidden_size // config.num_heads
    return norm(config, width), norm(config, width)


def _add(block: EncoderBlock | DecoderBlock, x_TD: Tensor, found_TD: Tensor, examples: Examples) -> Tensor:
    """Their sum, in training without what is found for some examples, and more of it for the others (Huang et al. 2016,
    https://arxiv.org/abs/1603.09382).

    In training the sum is in the memory of what a layer has just found, which is in the cache: a hook that keeps
    outputs of layers must copy them then.
    """
    rate = block.drop_path_rate
    if block.training and rate:
        is_kept_E = torch.rand(examples.num, device=x_TD.device) >= rate
        found_TD = found_TD * (is_kept_E / (1 - rate)).to(found_TD.dtype)[examples.example_T][:, None]
    is_written_into = block.training and found_TD.dtype == x_TD.dtype
    return found_TD.add_(x_TD) if is_written_into else x_TD + found_TD
