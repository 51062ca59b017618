"""A vision transformer like CLIP's image encoder: class token, learned positions, norm before and after the blocks.

Unusual: patches are cut by a copy and embedded by one matrix product, and the last block computes only the token that
is read. The numbers equal those of transformers' `CLIPVisionModel` (tests/recipes/clip/test_clip_convert.py).

Dimensions: B images, P patches (row-major), S = P + 1 tokens, D width, F pixels of a patch with their channels.
Sources: Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929; Radford et al. 2021,
https://arxiv.org/abs/2103.00020; patch dropout: Li et al. 2022, https://arxiv.org/abs/2212.00794.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from pretrainkit.dist.autocast import residual
from pretrainkit.nn.blocks import LayerNorm, PlainBlockOptions, PlainPreNormBlock
from pretrainkit.nn.initialise import initialise_residual_blocks
from pretrainkit.nn.row_layout import RowLayout

NUM_CHANNELS = 3


def cut_patches(pixels_BCHW: Tensor, patch_size: int) -> Tensor:
    """Cut images into squares of `patch_size` x `patch_size` pixels, (B, P, F), with one channel after another in
    each."""
    B, C, H, W = pixels_BCHW.shape
    rows, columns = H // patch_size, W // patch_size
    # Dimensions after the permutation: B, rows, columns, C, height and width of a patch.
    grid = pixels_BCHW.view(B, C, rows, patch_size, columns, patch_size).permute(0, 2, 4, 1, 3, 5)
    return grid.reshape(B, rows * columns, C * patch_size**2)


def drop_patches(patches_BPF: Tensor, positions_PD: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Return a random part of each image's patches, (B, Q, F), and their positions, (B, Q, D), in their original order.

    Q is at least 1. Draws from torch's default generator of the device.
    """
    B, P, F = patches_BPF.shape
    num_kept = max(1, round(P * (1 - rate)))
    # The indices of the smallest of P random numbers are a uniform subset; sorting them keeps the order of patches.
    kept_BQ = torch.rand(B, P, device=patches_BPF.device).argsort(1)[:, :num_kept].sort(1).values
    return patches_BPF.gather(1, kept_BQ[:, :, None].expand(-1, -1, F)), positions_PD[kept_BQ]


class VisionTransformer(nn.Module):
    """Encoder that maps each image to one vector."""

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        width: int,
        num_layers: int,
        pool: str,
        patch_dropout_rate: float,
        **block: Unpack[PlainBlockOptions],
    ) -> None:
        """Build without initializing weights; see `initialise`.

        `pool` is cls (the class token) or mean (over patches), after the final norm, or mean_then_norm: the mean before
        that norm, in a model without a norm before the blocks. `patch_dropout_rate` is the share of patches left out in
        training."""
        super().__init__()
        if image_size % patch_size:
            raise ValueError(f"image_size {image_size} is not a multiple of patch_size {patch_size}")
        self.patch_size, self.width = patch_size, width
        self.pool, self.patch_dropout_rate = pool, patch_dropout_rate
        num_patches = (image_size // patch_size) ** 2
        self.patch = nn.Linear(NUM_CHANNELS * patch_size**2, width, bias=False)
        self.class_token = nn.Parameter(torch.zeros(width))
        self.position_embedding = nn.Parameter(torch.zeros(1 + num_patches, width))
        self.norm_before = nn.Identity() if pool == "mean_then_norm" else LayerNorm(width, block["epsilon"])
        self.layers = nn.ModuleList(PlainPreNormBlock(width, **block) for _ in range(num_layers))
        self.norm_after = LayerNorm(width, block["epsilon"])

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        """Map normalized pixels (B, 3, image_size, image_size) to (B, D)."""
        x_BSD = self._embed(pixels_BCHW)
        B, S, D = x_BSD.shape
        layout = RowLayout(B, S)
        x_TD = residual(self.norm_before(x_BSD.view(B * S, D)))
        for layer in self.layers[:-1]:
            x_TD = layer(x_TD, layout)
        if self.pool == "mean_then_norm":
            return self.norm_after(self.layers[-1](x_TD, layout).view(B, S, D)[:, 1:].mean(1))
        if self.pool == "mean":
            x_TD = self.norm_after(self.layers[-1](x_TD, layout))
            return x_TD.view(B, S, D)[:, 1:].mean(1)
        first_B = torch.arange(0, B * S, S, device=x_TD.device)
        # The last block computes only the class tokens.
        return self.norm_after(self.layers[-1](x_TD, layout.reading(first_B)))

    def _embed(self, pixels_BCHW: Tensor) -> Tensor:
        """Return the class token and the (kept) patches with their positions, (B, S, D)."""
        patches_BPF = cut_patches(pixels_BCHW, self.patch_size)
        positions_SD = self.position_embedding
        if self.training and self.patch_dropout_rate:
            patches_BPF, positions_BPD = drop_patches(patches_BPF, positions_SD[1:], self.patch_dropout_rate)
            first_BD = (self.class_token + positions_SD[0]).expand(len(patches_BPF), 1, -1)
            embedded_BPD = self.patch(patches_BPF)
            return torch.cat((first_BD.to(embedded_BPD.dtype), embedded_BPD + positions_BPD), dim=1)
        embedded_BPD = self.patch(patches_BPF)
        first_BD = self.class_token.to(embedded_BPD.dtype).expand(len(patches_BPF), 1, -1)
        return torch.cat((first_BD, embedded_BPD), dim=1) + positions_SD

    def initialise(self) -> None:
        """Draw normal weights from torch's global generator, with the deviations of OpenAI's CLIP."""
        with torch.no_grad():
            self.patch.weight.normal_(std=(3 * self.patch.in_features) ** -0.5)
            self.class_token.normal_(std=self.width**-0.5)
            self.position_embedding.normal_(std=self.width**-0.5)
        initialise_residual_blocks(self, self.layers)
