"""Weights of a decoder as steps of decoding read them: side by side where the same tokens meet them, in the type of the
activations, and on a CPU transposed, which products of few tokens read faster.

A step is a product of a few tokens with every weight, so its time is that of reading the weights: made once for all
steps of an answer.

Dimensions: B tokens, D width, E widths side by side, F feed-forward width, H heads, C width of one head, V vocabulary.
"""

import torch
from torch import Tensor

from pretrainkit.nn.activations import ACTIVATIONS
from pretrainkit.nn.autocast import in_float32
from pretrainkit.nn.cpu.dispatch import laid_out
from pretrainkit.recipes.t5.model import T5, Attention, Block


class AttentionWeights:
    """Of one attention."""

    def __init__(self, attention: Attention, dtype: torch.dtype, *, is_cross: bool) -> None:
        asked = [attention.query] if is_cross else [attention.query, attention.key, attention.value]
        self.in_DE = _transposed(torch.cat([one.weight for one in asked]), dtype)
        """To queries; of self-attention to queries, keys and values."""
        self.out_ED = _transposed(attention.out.weight, dtype)


class BlockWeights:
    """Of one block."""

    def __init__(self, block: Block, dtype: torch.dtype) -> None:
        """dtype: of the activations."""
        self.own = AttentionWeights(block.attention, dtype, is_cross=False)
        cross = block.cross_attention
        self.cross = None if cross is None else AttentionWeights(cross, dtype, is_cross=True)
        self._activations = block.feed_forward.activations
        self._up_DE = _transposed(torch.cat(list(block.feed_forward.up.parameters())), dtype)
        self._down_FD = _transposed(block.feed_forward.down.weight, dtype)

    def feed_forward(self, x_BD: Tensor) -> Tensor:
        """(B, D) to (B, D), as `FeedForward` where nothing is dropped."""
        parts = (x_BD @ self._up_DE).chunk(len(self._activations), -1)
        inner_BF = _activated(self._activations[0], parts[0])
        for name, part_BF in zip(self._activations[1:], parts[1:], strict=True):
            inner_BF = inner_BF * _activated(name, part_BF)
        return inner_BF @ self._down_FD


class Logits:
    """The output layer of a model."""

    def __init__(self, model: T5) -> None:
        weight_VD = model.embedding.weight if model.logits is None else model.logits.weight
        self._scale = model.config.hidden_size**-0.5 if model.logits is None else 1.0
        self._table_DV = _transposed(weight_VD, torch.promote_types(weight_VD.dtype, torch.float32))

    @property
    def dtype(self) -> torch.dtype:
        """Of the logits."""
        return self._table_DV.dtype

    def __call__(self, hidden_BD: Tensor, out_BV: Tensor | None = None) -> Tensor:
        """(B, V), where `out_BV` is or in fresh memory."""
        wide_BD = hidden_BD.to(self.dtype) * self._scale
        with in_float32(wide_BD):
            return torch.mm(wide_BD, self._table_DV, out=out_BV)


def _activated(name: str, x_BF: Tensor) -> Tensor:
    return x_BF if name == "linear" else ACTIVATIONS[name](x_BF)


def _transposed(weight_ED: Tensor, dtype: torch.dtype) -> Tensor:
    """(D, E)."""
    return laid_out(weight_ED.detach().to(dtype).t())
