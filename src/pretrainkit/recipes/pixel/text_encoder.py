"""The encoder of a trained model without masks and without the decoder, to be trained further.

Dimensions: B texts, T tokens of all of them, each text with a class token in front of its patches; F values of a patch,
L patches of the longest text, D width, H heads, K width of one head.
Source of poolings: Rust et al. 2022, https://arxiv.org/abs/2207.06991, and its code; pma: Lee et al. 2019,
https://arxiv.org/abs/1810.00825. Where the original's pma gives padding a score of 0, here nothing is padded; and its
scores are scaled by the width of a head, not of all.
"""

import logging
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.blocks import LayerNorm, Pooler
from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.initialise import built, initialise_layer
from pretrainkit.nn.layouts import stream_layout
from pretrainkit.recipes.pixel.config import PixelRun, PixelTextConfig
from pretrainkit.recipes.pixel.model import PixelForPretraining, block_flops, fitted_table, patch_vectors, rotation_of
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch

_TABLE, _POOLING = "position_embedding", "pooling."
_logger = logging.getLogger(__name__)


class PatchPooling(nn.Module):
    """Mean, maximum or attention over the patches of each text, the end patch included and the class token not."""

    def __init__(self, config: PixelTextConfig, width: int, epsilon: float, dropout_rate: float) -> None:
        super().__init__()
        self.kind, _, heads = config.pooling.partition(":")
        self.dropout_rate = dropout_rate
        has_linear = config.pooling_linear and self.kind != "pma"
        self.dense = nn.Linear(width, width) if has_linear else None
        self.norm = LayerNorm(width, epsilon) if config.pooling_norm else None
        self.attention = AttentionPooling(width, int(heads)) if self.kind == "pma" else None

    def forward(self, x_TD: Tensor, positions_T: Tensor, starts: Tensor) -> Tensor:
        """(T, D) to (B, D): of texts with a class token, whose position is 0, and at least one patch; `starts` are
        (B + 1,), where texts begin, and the end of the last."""
        if self.dense is not None:
            x_TD = F.gelu(self.dense(x_TD))
        if self.norm is not None:
            x_TD = self.norm(x_TD)
        x_TD = dropout(x_TD, self.dropout_rate, is_training=self.training).float()
        if len(starts) == 1:  # no texts, but every parameter has its (zero) gradient
            return x_TD if self.attention is None else self.attention.of_none(x_TD)
        is_class_token_T1 = (positions_T == 0)[:, None]
        lengths_B = starts.diff().long()
        if self.attention is not None:
            return self.attention(x_TD, is_class_token_T1, lengths_B)
        if self.kind == "max":
            return torch.segment_reduce(x_TD.masked_fill(is_class_token_T1, -torch.inf), "max", lengths=lengths_B)
        total_BD = torch.segment_reduce(x_TD.masked_fill(is_class_token_T1, 0.0), "sum", lengths=lengths_B)
        return total_BD / (lengths_B - 1)[:, None]


class AttentionPooling(nn.Module):
    """One learned query looks at all patches of a text."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.query = nn.Parameter(torch.zeros(width))
        self.keys_and_values = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def stacked_layers(self) -> dict[str, int]:
        return {"keys_and_values": 2}

    def forward(self, x_TD: Tensor, is_class_token_T1: Tensor, lengths_B: Tensor) -> Tensor:
        """(T, D) to (B, D)."""
        heads = (self.num_heads, x_TD.shape[1] // self.num_heads)
        k_TD, v_TD = self.keys_and_values(x_TD).float().chunk(2, dim=1)
        score_TH = (k_TD.unflatten(1, heads) * self.query.view(heads)).sum(-1) * heads[1] ** -0.5
        # A softmax over the patches of each text: the highest score is subtracted first, as exp overflows otherwise.
        score_TH = score_TH.masked_fill(is_class_token_T1, -torch.inf)
        highest_BH = torch.segment_reduce(score_TH.detach(), "max", lengths=lengths_B)
        weight_TH = (score_TH - highest_BH.repeat_interleave(lengths_B, dim=0, output_size=len(x_TD))).exp()
        total_BH = torch.segment_reduce(weight_TH, "sum", lengths=lengths_B)
        mixed_TD = (v_TD.unflatten(1, heads) * weight_TH[:, :, None]).flatten(1)
        mixed_BHK = torch.segment_reduce(mixed_TD, "sum", lengths=lengths_B).unflatten(1, heads)
        return self.out((mixed_BHK / total_BH[:, :, None]).flatten(1))

    def of_none(self, x_TD: Tensor) -> Tensor:
        """(0, D) to (0, D)."""
        return self.out(self.keys_and_values(x_TD).chunk(2, dim=1)[0] * self.query)


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
        return self.dropout_rate if isinstance(self.pooling, Pooler) else 0.0

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, batch: Batch, max_length: int) -> Tensor:
        """(B, D). A batch has `patches` (T, F) uint8, anything for class tokens, `positions` (T,) and `cu_seqlens`
        (B + 1,) int32; no text has more than `max_length` patches."""
        if isinstance(self.pooling, Pooler):
            return self.pooling(self._hidden(batch, max_length, batch["cu_seqlens"][:-1].long()))
        return self.vectors_and_tokens(batch, max_length)[0]

    def vectors_and_tokens(self, batch: Batch, max_length: int) -> tuple[Tensor, Tensor]:
        x_TD, starts = self.tokens(batch, max_length), batch["cu_seqlens"]
        if isinstance(self.pooling, Pooler):
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
    """The parts of `model` for texts of at most `config.model.max_patches` patches, and a pooling with fresh weights
    from torch's global generator; on "meta" without values."""
    wanted, width, scale = config.model, config.model.hidden_size, config.model.initializer_range

    def make() -> Pooler | PatchPooling:
        if config.text.pooling == "cls":
            return Pooler(nn.Linear(width, width))
        return PatchPooling(config.text, width, wanted.layer_norm_epsilon, wanted.hidden_dropout)

    @torch.no_grad()
    def initialise(pooling: nn.Module) -> None:
        for module in pooling.modules():
            initialise_layer(module, scale, is_truncated=False)
            if isinstance(module, AttentionPooling):
                module.query.normal_(std=scale)

    with model.encoder.class_token.device:
        pooling = built(make, initialise)
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
    """Matmul FLOPs of a forward and backward pass over texts of so many tokens, class tokens included: of the blocks,
    and the embedding of patches."""
    model, lengths_B = config.model, lengths_B.astype(np.float64)
    blocks = block_flops(model.num_layers, model.hidden_size, model.intermediate_size, lengths_B)
    return blocks + 6 * model.patch_values * model.hidden_size * float(lengths_B.sum())
