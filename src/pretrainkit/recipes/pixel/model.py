"""The masked autoencoder for rendered text. Its encoder reads visible patches; its decoder predicts hidden ones.

Unusual features: texts follow one another without padding; grey patches are embedded with the sum of the weights of the
three colours; the decoder's last block and its output layer compute only hidden patches. The outputs equal those of
transformers' `ViTMAEForPreTraining` with its attention mask (tests/recipes/pixel/test_pixel_convert.py).

Dimensions: V tokens of the encoder, T of the decoder, K patches to predict, D and E widths of encoder and decoder, F
values of a patch, L patches of a position table.
Sources: Rust et al. 2022, https://arxiv.org/abs/2207.06991; He et al. 2021, https://arxiv.org/abs/2111.06377.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.dist.autocast import residual
from pretrainkit.dist.compiled import vary
from pretrainkit.nn.blocks import LayerNorm, PlainPreNormBlock
from pretrainkit.nn.initialise import built, initialise_layer
from pretrainkit.nn.layouts import stream_layout
from pretrainkit.nn.rotary import Rotation, rotation
from pretrainkit.recipes.pixel.config import NUM_CHANNELS, PixelModelConfig, Zero
from pretrainkit.training.objective import Batch


class PixelEncoder(nn.Module):
    """Encodes visible patches."""

    def __init__(self, config: PixelModelConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.patch = nn.Linear(config.patch_values, width)
        self.class_token = nn.Parameter(torch.zeros(width))
        self.position_embedding = _table(config, width)
        self.layers = _blocks(config, config.num_layers, width, config.num_heads, config.intermediate_size)
        self.final_norm = LayerNorm(width, config.layer_norm_epsilon)

    def forward(self, batch: Batch, max_patches: int) -> Tensor:
        """Return encoded tokens (V, D) after the final norm. Arguments are those of `PixelForPretraining.forward`."""
        positions_V = batch["visible_positions"]
        layout = stream_layout(batch["visible_starts"], max_patches + 1, len(positions_V))
        x_VD = residual(self.embed(batch["visible_patches"], positions_V))
        rotation_V = rotation_of(self.config, positions_V, x_VD.shape[1] // self.config.num_heads)
        for layer in self.layers:
            vary(x_VD)
            x_VD = layer(x_VD, layout, rotation_V)
        return self.final_norm(x_VD)

    def embed(self, patches_VF: Tensor, positions_V: Tensor) -> Tensor:
        """Embed uint8 patches and their positions as (V, D)."""
        x_VD = patch_vectors(self.patch, self.class_token, patches_VF, positions_V, self.config.pixel_zero)
        return x_VD if self.position_embedding is None else x_VD + self.position_embedding[positions_V]


def patch_vectors(patch: nn.Linear, class_token: Tensor, patches_VF: Tensor, positions_V: Tensor, zero: Zero) -> Tensor:
    """Embed uint8 patches as (V, D) without positions. Tokens at position 0 get `class_token` (D,)."""
    weight = patch.weight
    if patches_VF.shape[1] != weight.shape[1]:
        weight = weight.unflatten(1, (-1, NUM_CHANNELS)).sum(-1)  # grey: one product instead of three
    values_VF = patches_VF.to(weight.dtype) / 255
    if zero == "white":
        values_VF = 1 - values_VF
    x_VD = F.linear(values_VF, weight, patch.bias)
    is_class_token_V1 = (positions_V == 0)[:, None]
    return torch.where(is_class_token_V1, class_token.to(x_VD.dtype), x_VD)


class PixelDecoder(nn.Module):
    """Predicts the pixels of hidden patches from encoded visible patches."""

    def __init__(self, config: PixelModelConfig) -> None:
        super().__init__()
        self.config, width = config, config.decoder_hidden_size
        self.embed = nn.Linear(config.hidden_size, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.position_embedding = _table(config, width)
        sizes = (config.decoder_num_layers, width, config.decoder_num_heads, config.decoder_intermediate_size)
        self.layers = _blocks(config, *sizes)
        self.final_norm = LayerNorm(width, config.decoder_norm_epsilon)
        self.predict = nn.Linear(width, config.patch_values)

    def forward(self, visible_VD: Tensor, batch: Batch, max_patches: int) -> Tensor:
        """Return predicted pixels (K, F)."""
        positions_T = batch["positions"]
        layout = stream_layout(batch["starts"], max_patches + 1, len(positions_T))
        x_VE = self.embed(visible_VD)
        hidden_TE = self.mask_token.to(x_VE.dtype).expand(len(positions_T), -1)
        x_TE = hidden_TE.index_copy(0, batch["visible_slots"].long(), x_VE)
        if self.position_embedding is not None:
            x_TE = x_TE + self.position_embedding[positions_T]
        rotation_T = rotation_of(self.config, positions_T, x_TE.shape[1] // self.config.decoder_num_heads)
        x_TE = residual(x_TE)
        for layer in self.layers[:-1]:
            vary(x_TE)
            x_TE = layer(x_TE, layout, rotation_T)
        # The last block computes only the patches to predict.
        vary(x_TE)
        reading = layout.reading(batch["target_slots"].long())
        x_KE = reading.read(self.final_norm(self.layers[-1](x_TE, reading, rotation_T)))
        return self.predict(x_KE)


class PixelForPretraining(nn.Module):
    """Encoder and decoder. Position tables are parameters that are not trained, as in published checkpoints."""

    def __init__(self, config: PixelModelConfig) -> None:
        """Create the model without initializing its weights; `initialise` does that."""
        super().__init__()
        self.config = config
        self.encoder = PixelEncoder(config)
        self.decoder = PixelDecoder(config)

    def blocks(self) -> list[nn.Module]:
        """List the submodules to compile, shard and recompute one by one."""
        return [*self.encoder.layers, *self.decoder.layers]

    def forward(self, batch: Batch, max_patches: int) -> Tensor:
        """Return the predicted pixels of hidden patches (K, F), in row-major order with colours last. They are
        standardized if the model was trained with `normalize_target`.

        Args:
            batch: Output of `batch.pack`.
            max_patches: Maximum number of patches of a text.
        """
        return self.decoder(self.encoder(batch, max_patches), batch, max_patches)

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialize the weights from torch's global generator."""
        config = self.config
        for module in self.modules():
            initialise_layer(module, config.initializer_range, is_truncated=False)
        if config.patch_initialization == "xavier":
            patch = self.encoder.patch
            nn.init.xavier_uniform_(patch.weight)
            bound = patch.in_features**-0.5
            patch.bias.uniform_(-bound, bound)
        for part, token in ((self.encoder, self.encoder.class_token), (self.decoder, self.decoder.mask_token)):
            token.normal_(std=config.initializer_range)
            if (table := part.position_embedding) is not None:
                table.copy_(position_table(config.max_patches, table.shape[1], config.position_grid_width))


def _table(config: PixelModelConfig, width: int) -> nn.Parameter | None:
    """Return the table of position vectors, (1 + patches, width); None for rotary positions."""
    if config.positions == "rotary":
        return None
    return nn.Parameter(torch.zeros(1 + config.max_patches, width), requires_grad=False)


def rotation_of(config: PixelModelConfig, positions_T: Tensor, head_width: int) -> Rotation | None:
    """Return the angles of rotary positions; None for grid positions."""
    if config.positions == "grid":
        return None
    return rotation(positions_T, head_width, config.rotary_theta)


def _blocks(config: PixelModelConfig, num_layers: int, *sizes: int) -> nn.ModuleList:
    """Return transformer blocks; `sizes`: width, number of heads and inner width."""
    settings: dict[str, Any] = {
        "activation": config.activation,
        "dropout_rate": config.hidden_dropout,
        "attention_dropout_rate": config.attention_dropout,
        "epsilon": config.layer_norm_epsilon,
    }
    return nn.ModuleList(PlainPreNormBlock(*sizes, **settings) for _ in range(num_layers))


def block_flops(num_layers: int, width: int, inner_width: int, num_tokens_B: NDArray[np.float64]) -> float:
    """Return the matmul FLOPs of a forward and backward pass through blocks, for texts of `num_tokens_B` tokens: 6 x
    the number of weights per token, and 12 x width x t^2 for the attention of a text of t tokens."""
    weights = 4 * width**2 + 2 * width * inner_width
    return num_layers * float(6 * weights * num_tokens_B.sum() + 12 * width * np.square(num_tokens_B).sum())


def build(config: PixelModelConfig) -> PixelForPretraining:
    """Build the model on torch's default device, initialized from its global generator; on "meta" without values."""
    return built(lambda: PixelForPretraining(config), PixelForPretraining.initialise)


def position_table(num_patches: int, width: int, grid_width: int) -> Tensor:
    """Return fixed sine-cosine positions of patches on a grid, as for the square images of the masked autoencoder,
    float32 (1 + L, D). Row 0, of the class token, is 0. They are computed in float64.

    Source: https://github.com/facebookresearch/mae (util/pos_embed.py), in which the column comes before the row.
    `grid_width` is the number of patches per row of the grid. A longer table begins with the rows of a shorter one of
    the same `grid_width`, so that lengths can change without training. `width` must be a multiple of 4.
    """
    omega = 10_000.0 ** -(np.arange(width // 4) / (width / 4))
    row_L, column_L = np.divmod(np.arange(num_patches), grid_width)
    angles = [column_L[:, None] * omega, row_L[:, None] * omega]
    table = np.zeros((1 + num_patches, width))
    table[1:] = np.concatenate([wave(angle) for angle in angles for wave in (np.sin, np.cos)], axis=1)
    return torch.from_numpy(table.astype(np.float32))


def fitted_table(table: Tensor, num_patches: int, grid_width: int) -> Tensor:
    """Return a copy of a position table (1 + patches, D) for another number of patches: cut, or extended by the formula
    of `position_table`, even if its own rows were trained."""
    longer = position_table(num_patches, table.shape[1], grid_width).to(table)
    kept = min(len(table), len(longer))
    return torch.cat((table[:kept], longer[kept:]))
