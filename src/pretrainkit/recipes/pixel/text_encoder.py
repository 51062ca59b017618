"""The encoder of a trained model without masks and without the decoder, to be trained further.

Dimensions: B texts, T tokens of all of them, each text with a class token in front of its patches; F values of a patch,
L patches of the longest text, D width.
"""

import logging
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.layouts import stream_layout
from pretrainkit.recipes.pixel.config import PixelRun
from pretrainkit.recipes.pixel.model import PixelForPretraining, fitted_table, patch_vectors, rotation_of
from pretrainkit.recipes.pixel.pooling import ClassPooling, build_pooling
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch

_TABLE, _POOLING = "position_embedding", "pooling."
_logger = logging.getLogger(__name__)


class PixelTextEncoder(TextEncoder):
    """Patches, positions, blocks, norm and pooling. The table of positions is a copy of the trained model's, for it is
    trained here and may be of another length."""

    def __init__(
        self, model: PixelForPretraining, positions: Tensor | None, pooling: nn.Module, config: PixelRun
    ) -> None:
        """`positions`: (1 + patches, D); None: positions are rotary."""
        super().__init__()
        self.model_config = config.model
        encoder, text = model.encoder, config.text
        self.width = config.model.hidden_size
        self.dropout_rate = config.model.hidden_dropout
        given = text.embedding_dropout
        self.embedding_dropout_rate = config.model.hidden_dropout if given is None else given
        self.patch, self.class_token = encoder.patch, encoder.class_token
        self.position_embedding = (
            None if positions is None else nn.Parameter(positions, requires_grad=text.train_positions)
        )
        self.layers, self.final_norm = encoder.layers, encoder.final_norm
        self.pooling = pooling

    @property
    def pooled_dropout_rate(self) -> float:
        """Patches are dropped before they are pooled."""
        return self.dropout_rate if isinstance(self.pooling, ClassPooling) else 0.0

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, batch: Batch, max_length: int) -> Tensor:
        """(B, D). A batch has `patches` (T, F) uint8, anything for class tokens, `positions` (T,) and `cu_seqlens`
        (B + 1,) int32; no text has more than `max_length` patches."""
        if isinstance(self.pooling, ClassPooling):
            return self.pooling(self._hidden(batch, max_length, batch["cu_seqlens"][:-1].long()))
        return self.vectors_and_tokens(batch, max_length)[0]

    def vectors_and_tokens(self, batch: Batch, max_length: int) -> tuple[Tensor, Tensor]:
        x_TD, starts = self.tokens(batch, max_length), batch["cu_seqlens"]
        if isinstance(self.pooling, ClassPooling):
            return self.pooling(x_TD[starts[:-1].long()]), x_TD
        return self.pooling(x_TD, batch["positions"], starts), x_TD

    def tokens(self, batch: Batch, max_length: int) -> Tensor:
        x_TD = self._hidden(batch, max_length, None)
        return x_TD[: len(batch["positions"])]

    def freeze_pooling(self) -> None:
        self.pooling.requires_grad_(False)

    def _hidden(self, batch: Batch, max_length: int, read_B: Tensor | None) -> Tensor:
        """(T, D), or (B, D): only the tokens `read_B`, which ascend."""
        patches_TF, positions_T, starts = batch["patches"], batch["positions"], batch["cu_seqlens"]
        if len(starts) == 1:  # a class token alone, so that every parameter has its (zero) gradient
            patches_TF, positions_T = patches_TF.new_zeros(1, patches_TF.shape[1]), positions_T.new_zeros(1)
            starts = torch.arange(2, dtype=torch.int32, device=starts.device)
        layout = stream_layout(starts, max_length + 1, len(positions_T))
        x_TD = patch_vectors(self.patch, self.class_token, patches_TF, positions_T, self.model_config.pixel_zero)
        if self.position_embedding is not None:
            x_TD = x_TD + self.position_embedding[positions_T]
        x_TD = dropout(x_TD, self.embedding_dropout_rate, is_training=self.training)
        rotation = rotation_of(self.model_config, positions_T, self.width // self.model_config.num_heads)
        for layer in self.layers[:-1]:
            x_TD = layer(x_TD, layout, rotation)
        if read_B is not None:
            layout = layout.reading(read_B)
        return self.final_norm(self.layers[-1](x_TD, layout, rotation))


def build_text_encoder(config: PixelRun, model: PixelForPretraining) -> PixelTextEncoder:
    """The parts of `model` for texts of at most `config.model.max_patches` patches, and a fresh pooling."""
    wanted = config.model
    pooling = build_pooling(
        config.text,
        wanted.hidden_size,
        wanted.layer_norm_epsilon,
        wanted.hidden_dropout,
        wanted.initializer_range,
        model.encoder.class_token.device,
    )
    trained = model.encoder.position_embedding
    table = None
    if trained is not None:
        table = fitted_table(trained.detach(), wanted.max_patches, model.config.position_grid_width)
    return PixelTextEncoder(model, table, pooling, config)


def fitted_state(
    config: PixelRun, given: PixelRun, state: Mapping[str, Tensor], fresh: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Weights of a fine-tuned encoder of config `given` for one of `config`: the table of positions is cut, or goes on
    by its formula, and where texts are pooled otherwise the pooling is that of `fresh`."""
    found = dict(state)
    table = found.get(_TABLE)
    if table is not None:
        found[_TABLE] = fitted_table(table, config.model.max_patches, given.model.position_grid_width)
    if _pooling(config) != _pooling(given):
        _logger.warning("init_from pools by %s: the pooling starts anew, by %s", _pooling(given), _pooling(config))
        found = {name: value for name, value in found.items() if not name.startswith(_POOLING)}
        found |= {name: value for name, value in fresh.items() if name.startswith(_POOLING)}
    return found


def _pooling(config: PixelRun) -> str:
    text = config.text
    parts = [("linear layer", text.pooling_linear), ("norm", text.pooling_norm)] if text.pooling != "cls" else []
    return " ".join([text.pooling, *(f"with {part}" for part, is_there in parts if is_there)])


def encoder_flops(config: PixelRun, lengths_B: np.ndarray) -> float:
    """Matmul FLOPs of a forward and backward pass over texts of so many tokens, class tokens included: 6 x the weights
    of all blocks per token, 12 x width x t^2 for the attention of t tokens, and the embedding of patches."""
    model, lengths_B = config.model, lengths_B.astype(np.float64)
    weights = 4 * model.hidden_size**2 + 2 * model.hidden_size * model.intermediate_size
    per_token = 6 * model.num_layers * weights + 6 * model.patch_values * model.hidden_size
    return float(per_token * lengths_B.sum() + 12 * model.num_layers * model.hidden_size * np.square(lengths_B).sum())
