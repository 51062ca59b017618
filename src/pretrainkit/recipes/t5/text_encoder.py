"""The encoder of a trained T5 alone, its tokens averaged, to be trained further.

Dimensions: B examples, T tokens, D width.
Source: Ni et al. 2021, https://arxiv.org/abs/2108.08877, who found the mean to be the best vector of a text.
"""

import torch
from torch import Tensor

from pretrainkit.errors import InputError
from pretrainkit.nn.autocast import activation_dtype
from pretrainkit.nn.layouts import example_numbers, stream_pairs
from pretrainkit.recipes.t5.model import T5
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch


class T5TextEncoder(TextEncoder):
    """Embeddings and encoder; `token_type_ids` and `positions` are not read."""

    def __init__(self, model: T5) -> None:
        """Raises InputError where the model has no encoder."""
        super().__init__()
        if model.encoder is None:
            raise InputError("this T5 is a decoder alone\n  give one with an encoder")
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
        return self.encoder(
            x_TD, stream_pairs(batch["cu_seqlens"].long(), len(x_TD), self.head_width, has_dropout=has_dropout)
        )
