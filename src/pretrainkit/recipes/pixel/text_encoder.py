"""The encoder of a trained model for fine-tuning, without masks and without the decoder.

Dimensions: B texts, T tokens of all texts, each with a class token before its patches; F values of a patch, L patches
of the longest text, S = 1 + model.max_patches slots of a filled row, D width, H heads, K width of one head.
Sources of poolings: Rust et al. 2022, https://arxiv.org/abs/2207.06991, and its code; pma: Lee et al. 2019,
https://arxiv.org/abs/1810.00825. Our pma leaves padding out and scales scores by the width of a head; pma_padded is
that of the original.
"""

import logging
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import residual
from pretrainkit.nn.blocks import LayerNorm, Pooler
from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.initialise import built, initialise_layer
from pretrainkit.nn.layouts import stream_layout
from pretrainkit.nn.row_layout import RowLayout
from pretrainkit.recipes.pixel.config import PixelRun, PixelTextConfig
from pretrainkit.recipes.pixel.model import PixelForPretraining, block_flops, fitted_table, patch_vectors, rotation_of
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch

_TABLE, _POOLING = "position_embedding", "pooling."
_WHITE = 255
"""Value of the pixels of padding."""
_logger = logging.getLogger(__name__)


class PatchPooling(nn.Module):
    """Mean, maximum or attention over the patches of each text, including the end patch, without the class token."""

    def __init__(self, config: PixelTextConfig, width: int, epsilon: float, dropout_rate: float) -> None:
        super().__init__()
        self.kind, _, heads = config.pooling.partition(":")
        self.dropout_rate = dropout_rate
        has_linear = config.pooling_linear and self.kind != "pma"
        self.dense = nn.Linear(width, width) if has_linear else None
        self.norm = LayerNorm(width, epsilon) if config.pooling_norm else None
        self.attention = AttentionPooling(width, int(heads)) if self.kind == "pma" else None

    def forward(self, x_TD: Tensor, positions_T: Tensor, starts: Tensor) -> Tensor:
        """Pool tokens (T, D) to (B, D). Each text has a class token, at position 0, and at least one patch. `starts`
        (B + 1,): index at which each text begins, and the end of the last text."""
        if self.dense is not None:
            x_TD = F.gelu(self.dense(x_TD))
        if self.norm is not None:
            x_TD = self.norm(x_TD)
        x_TD = dropout(x_TD, self.dropout_rate, is_training=self.training).float()
        if len(starts) == 1:  # no texts, but every parameter needs a (zero) gradient
            return x_TD if self.attention is None else self.attention.pool_empty_batch(x_TD)
        is_class_token_T1 = (positions_T == 0)[:, None]
        lengths_B = starts.diff().long()
        if self.attention is not None:
            return self.attention(x_TD, is_class_token_T1, lengths_B)
        if self.kind == "max":
            return torch.segment_reduce(x_TD.masked_fill(is_class_token_T1, -torch.inf), "max", lengths=lengths_B)
        total_BD = torch.segment_reduce(x_TD.masked_fill(is_class_token_T1, 0.0), "sum", lengths=lengths_B)
        return total_BD / (lengths_B - 1)[:, None]


class AttentionPooling(nn.Module):
    """Attention of one learned query to all patches of a text."""

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
        """Pool tokens (T, D) to (B, D)."""
        heads = (self.num_heads, x_TD.shape[1] // self.num_heads)
        k_TD, v_TD = self.keys_and_values(x_TD).float().chunk(2, dim=1)
        score_TH = (k_TD.unflatten(1, heads) * self.query.view(heads)).sum(-1) * heads[1] ** -0.5
        # Softmax over the patches of each text. The highest score is subtracted first, so that exp does not overflow.
        score_TH = score_TH.masked_fill(is_class_token_T1, -torch.inf)
        highest_BH = torch.segment_reduce(score_TH.detach(), "max", lengths=lengths_B)
        weight_TH = (score_TH - highest_BH.repeat_interleave(lengths_B, dim=0, output_size=len(x_TD))).exp()
        total_BH = torch.segment_reduce(weight_TH, "sum", lengths=lengths_B)
        mixed_TD = (v_TD.unflatten(1, heads) * weight_TH[:, :, None]).flatten(1)
        mixed_BHK = torch.segment_reduce(mixed_TD, "sum", lengths=lengths_B).unflatten(1, heads)
        return self.out((mixed_BHK / total_BH[:, :, None]).flatten(1))

    def pool_empty_batch(self, x_TD: Tensor) -> Tensor:
        """Pool an empty batch, (0, D) to (0, D)."""
        return self.out(self.keys_and_values(x_TD).chunk(2, dim=1)[0] * self.query)


class PaddedPooling(nn.Module):
    """Attention of one learned query to all patches of a filled row, as in the original's code.

    Keys of padding are 0, and so are their scores. Scores are divided by the square root of the whole width. The query
    and a layer with ReLU are added.
    """

    def __init__(self, config: PixelTextConfig, width: int, epsilon: float, dropout_rate: float) -> None:
        super().__init__()
        self.num_heads, self.dropout_rate = int(config.pooling.partition(":")[2]), dropout_rate
        if width % self.num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {self.num_heads}")
        self.norm = LayerNorm(width, epsilon) if config.pooling_norm else None
        self.query = nn.Parameter(torch.zeros(width))
        self.queries, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.keys_and_values = nn.Linear(width, 2 * width)

    def stacked_layers(self) -> dict[str, int]:
        return {"keys_and_values": 2}

    def forward(self, x_BLD: Tensor, is_real_BL: Tensor) -> Tensor:
        """Pool rows (B, L, D) to (B, D). `is_real_BL` is bool, True for patches of the text and its end patch."""
        if self.norm is not None:
            x_BLD = self.norm(x_BLD)
        x_BLD = dropout(x_BLD, self.dropout_rate, is_training=self.training)
        width = x_BLD.shape[2]
        heads = (self.num_heads, width // self.num_heads)
        k_BLD, v_BLD = self.keys_and_values(x_BLD).float().chunk(2, dim=2)
        query_D = self.queries(self.query).float()
        products_BLD = k_BLD * is_real_BL[:, :, None] * query_D
        weight_BLH = (products_BLD.unflatten(2, heads).sum(-1) * width**-0.5).softmax(1)
        mixed_BHK = (v_BLD.unflatten(2, heads) * weight_BLH[..., None]).sum(1)
        pooled_BD = query_D + mixed_BHK.flatten(1)
        return pooled_BD + F.relu(self.out(pooled_BD))


class PixelTextEncoder(TextEncoder):
    """Patch embedding, positions, blocks, norm and pooling. The position table is a copy of that of the pretrained
    model, because it is trained here and may have another length."""

    def __init__(
        self, model: PixelForPretraining, positions: Tensor | None, pooling: nn.Module, config: PixelRun
    ) -> None:
        """`positions`: table (1 + patches, D); None for rotary positions."""
        super().__init__()
        self.model_config = config.model
        encoder, text = model.encoder, config.text
        self.width = config.model.hidden_size
        self.dropout_rate = config.model.hidden_dropout
        embedding_dropout = text.embedding_dropout
        self.embedding_dropout_rate = config.model.hidden_dropout if embedding_dropout is None else embedding_dropout
        self.patch, self.class_token = encoder.patch, encoder.class_token
        self.position_embedding = (
            None if positions is None else nn.Parameter(positions, requires_grad=text.train_positions)
        )
        self.layers, self.final_norm = encoder.layers, encoder.final_norm
        self.pooling = pooling

    @property
    def pooled_dropout_rate(self) -> float:
        """Dropout rate of the pooled vector. It is 0 for pooled patches, which have dropout before pooling."""
        return self.dropout_rate if isinstance(self.pooling, Pooler) else 0.0

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, batch: Batch, max_length: int) -> Tensor:
        """Return pooled vectors (B, D). A batch has `patches` (T, F) uint8 (ignored for class tokens), `positions` (T,)
        and `cu_seqlens` (B + 1,) int32. No text may have more than `max_length` patches."""
        if isinstance(self.pooling, Pooler):
            return self.pooling(self._hidden(batch, max_length, batch["cu_seqlens"][:-1].long()))
        return self.vectors_and_tokens(batch, max_length)[0]

    def vectors_and_tokens(self, batch: Batch, max_length: int) -> tuple[Tensor, Tensor]:
        if isinstance(self.pooling, PaddedPooling):
            x_BSD, is_real_BS = self._filled_rows(batch)
            return self.pooling(x_BSD[:, 1:], is_real_BS[:, 1:]), x_BSD[is_real_BS]
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
        """Return encoded tokens (T, D), or only the tokens with the ascending indices `read_B`, (B, D)."""
        patches_TF, positions_T, starts = batch["patches"], batch["positions"], batch["cu_seqlens"]
        if len(starts) == 1:  # only a class token, so that every parameter gets a (zero) gradient
            patches_TF, positions_T = patches_TF.new_zeros(1, patches_TF.shape[1]), positions_T.new_zeros(1)
            starts = torch.arange(2, dtype=torch.int32, device=starts.device)
        layout = stream_layout(starts, max_length + 1, len(positions_T))
        x_TD = self._embed(patches_TF, positions_T)
        rotation = rotation_of(self.model_config, positions_T, self.width // self.model_config.num_heads)
        for layer in self.layers[:-1]:
            x_TD = layer(x_TD, layout, rotation)
        if read_B is not None:
            layout = layout.reading(read_B)
        return self.final_norm(self.layers[-1](x_TD, layout, rotation))

    def _embed(self, patches_TF: Tensor, positions_T: Tensor) -> Tensor:
        x_TD = patch_vectors(self.patch, self.class_token, patches_TF, positions_T, self.model_config.pixel_zero)
        if self.position_embedding is not None:
            x_TD = x_TD + self.position_embedding[positions_T]
        return residual(dropout(x_TD, self.embedding_dropout_rate, is_training=self.training))

    def _filled_rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the encoded tokens of texts that are filled up with white patches, (B, S, D), and bool (B, S), True
        for tokens of the text. White patches attend to the text; nothing attends to them."""
        lengths_B = batch["cu_seqlens"].long().diff()
        B, S = len(lengths_B), 1 + self.model_config.max_patches
        layout = RowLayout(B, S, num_real_B=lengths_B)
        slots_S = torch.arange(S, device=lengths_B.device)
        is_real_BS, patches_TF = slots_S < lengths_B[:, None], batch["patches"]
        rows_BSF = patches_TF.new_full((B, S, patches_TF.shape[1]), _WHITE)
        rows_BSF[is_real_BS] = patches_TF[: int(lengths_B.sum())]  # a batch may have unused patches at its end
        positions_N = slots_S.repeat(B)
        x_ND = self._embed(rows_BSF.flatten(0, 1), positions_N)
        rotation = rotation_of(self.model_config, positions_N, self.width // self.model_config.num_heads)
        for layer in self.layers:
            x_ND = layer(x_ND, layout, rotation)
        return self.final_norm(x_ND).view(B, S, self.width), is_real_BS


def build_text_encoder(config: PixelRun, model: PixelForPretraining) -> PixelTextEncoder:
    """Build a text encoder from the parts of `model`, for texts of at most `config.model.max_patches` patches. The
    weights of the pooling are initialized from torch's global generator; on "meta" without values."""
    model_config, width, scale = config.model, config.model.hidden_size, config.model.initializer_range

    def make() -> nn.Module:
        if config.text.pooling == "cls":
            return Pooler(nn.Linear(width, width))
        kind = PaddedPooling if config.text.pooling.startswith("pma_padded") else PatchPooling
        return kind(config.text, width, model_config.layer_norm_epsilon, model_config.hidden_dropout)

    @torch.no_grad()
    def initialise(pooling: nn.Module) -> None:
        for module in pooling.modules():
            initialise_layer(module, scale, is_truncated=False)
            if isinstance(module, AttentionPooling | PaddedPooling):
                module.query.normal_(std=scale)

    with model.encoder.class_token.device:
        pooling = built(make, initialise)
    trained = model.encoder.position_embedding
    table = None
    if trained is not None:
        table = fitted_table(trained.detach(), model_config.max_patches, model.config.position_grid_width)
    return PixelTextEncoder(model, table, pooling, config)


def fitted_state(
    config: PixelRun, given: PixelRun, state: Mapping[str, Tensor], fresh: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Adapt the weights of a fine-tuned encoder with config `given` to `config`. The position table is cut, or extended
    by its formula. If the poolings differ, the weights of the pooling are those of `fresh`."""
    fitted = dict(state)
    table = fitted.get(_TABLE)
    if table is not None:
        fitted[_TABLE] = fitted_table(table, config.model.max_patches, given.model.position_grid_width)
    if _pooling(config) != _pooling(given):
        _logger.warning(
            "init_from pools by %s, this run by %s: the pooling is initialized again", _pooling(given), _pooling(config)
        )
        fitted = {name: value for name, value in fitted.items() if not name.startswith(_POOLING)}
        fitted |= {name: value for name, value in fresh.items() if name.startswith(_POOLING)}
    return fitted


def _pooling(config: PixelRun) -> str:
    text = config.text
    parts = [("linear layer", text.pooling_linear), ("norm", text.pooling_norm)] if text.pooling != "cls" else []
    return " ".join([text.pooling, *(f"with {part}" for part, is_there in parts if is_there)])


def encoder_flops(config: PixelRun, lengths_B: np.ndarray) -> float:
    """Return the matmul FLOPs of a forward and backward pass through blocks and patch embedding, for texts of
    `lengths_B` tokens, including class tokens."""
    model, lengths_B = config.model, lengths_B.astype(np.float64)
    if config.text.pooling.startswith("pma_padded"):
        lengths_B = np.full_like(lengths_B, 1 + model.max_patches)
    blocks = block_flops(model.num_layers, model.hidden_size, model.intermediate_size, lengths_B)
    return blocks + 6 * model.patch_values * model.hidden_size * float(lengths_B.sum())
