"""A text transformer like CLIP's text encoder: learned positions, norm before each layer and at the end.

Unusual: on a CPU, padding of captions is skipped everywhere except in attention, and the last block computes only the
token that is read. The numbers equal those of transformers' `CLIPTextModel` (tests/recipes/clip/test_clip_convert.py).

Dimensions: B captions, S slots of a row, T tokens of the stream, D width.
Source: Radford et al. 2021, https://arxiv.org/abs/2103.00020.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from pretrainkit.dist.autocast import residual
from pretrainkit.nn.blocks import LayerNorm, PlainBlockOptions, PlainPreNormBlock
from pretrainkit.nn.cpu.dispatch import drops_padding
from pretrainkit.nn.initialise import initialise_residual_blocks
from pretrainkit.nn.row_layout import RowLayout, without_padding

_WORTH_LEAVING_OUT = 0.1
"""Share of padding above which skipping it saves more than moving tokens between rows and stream costs."""


class TextTransformer(nn.Module):
    """Encoder that maps each caption to one vector."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_positions: int,
        width: int,
        num_layers: int,
        is_causal: bool,
        pool: str,
        **block: Unpack[PlainBlockOptions],
    ) -> None:
        """Build without initializing weights; see `initialise`.

        With `is_causal`, tokens see only themselves and the tokens before them. `pool` is eos (the last real token),
        cls (the first), mean (over real tokens), eos_padded or last (the last real token, or the last slot, and padding
        is attended to), after the final norm.
        """
        super().__init__()
        self.width, self.is_causal, self.pool = width, is_causal, pool
        self.token = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Parameter(torch.zeros(max_positions, width))
        self.layers = nn.ModuleList(PlainPreNormBlock(width, **block) for _ in range(num_layers))
        self.norm_after = LayerNorm(width, block["epsilon"])

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, ids_BS: Tensor, num_tokens_B: Tensor | None = None) -> Tensor:
        """Map integer ids and the number of real tokens of each caption (from 1 to S; None: all) to (B, D). Raises
        ValueError if the rows are longer than the position table."""
        B, S = ids_BS.shape
        if len(self.position_embedding) < S:
            raise ValueError(f"captions of {S} tokens, but the model has {len(self.position_embedding)} positions")
        attends_padding = self.pool in ("eos_padded", "last")
        real_B = None if num_tokens_B is None or attends_padding else num_tokens_B.long()
        layout = RowLayout(B, S, self.is_causal, real_B)
        slots = None
        most_tokens = (1 - _WORTH_LEAVING_OUT) * ids_BS.numel()
        if real_B is not None and drops_padding(ids_BS) and int(real_B.sum()) < most_tokens:
            layout, slots = without_padding(layout)
        x_TD = residual(self._embed(ids_BS, slots))
        for layer in self.layers[:-1]:
            x_TD = layer(x_TD, layout)
        if self.pool == "mean":
            return self._mean(self.norm_after(self.layers[-1](x_TD, layout)), layout)
        read_B = self._first_tokens(layout, x_TD)
        if self.pool != "cls":
            num_before_end_B = num_tokens_B if self.pool == "eos_padded" else real_B
            read_B = read_B + (S if num_before_end_B is None else num_before_end_B) - 1
        # The last block computes only the tokens that are read.
        return self.norm_after(self.layers[-1](x_TD, layout.reading(read_B)))

    def _embed(self, ids_BS: Tensor, slots_T: Tensor | None) -> Tensor:
        """Return the embeddings of all slots, or of those in `slots_T`, (T, D)."""
        B, S = ids_BS.shape
        if slots_T is None:
            x_BSD = self.token(ids_BS) + self.position_embedding[:S]
            return x_BSD.view(B * S, -1)
        return self.token(ids_BS.flatten()[slots_T]) + self.position_embedding.index_select(0, slots_T % S)

    @staticmethod
    def _first_tokens(layout: RowLayout, x_TD: Tensor) -> Tensor:
        """Return the position of the first token of each row in the stream."""
        if layout.slot_T is None or layout.num_real_B is None:
            return torch.arange(layout.num_rows, device=x_TD.device) * layout.length
        return layout.num_real_B.cumsum(0) - layout.num_real_B

    @staticmethod
    def _mean(x_TD: Tensor, layout: RowLayout) -> Tensor:
        """Return the mean over the real tokens of each row, (B, D)."""
        is_real_BS = layout.is_real()
        if is_real_BS is None or layout.num_real_B is None:
            return x_TD.view(layout.num_rows, layout.length, -1).mean(1)
        if layout.slot_T is None:
            sum_BD = torch.einsum("bsd,bs->bd", x_TD.view(*is_real_BS.shape, -1), is_real_BS.to(x_TD.dtype))
        else:
            # Slots are numbered row by row.
            row_T = layout.slot_T // layout.length
            sum_BD = x_TD.new_zeros(layout.num_rows, x_TD.shape[1]).index_add_(0, row_T, x_TD)
        return sum_BD / layout.num_real_B[:, None]

    def initialise(self) -> None:
        """Draw normal weights from torch's global generator, with the deviations of OpenAI's CLIP."""
        with torch.no_grad():
            self.token.weight.normal_(std=0.02)
            self.position_embedding.normal_(std=0.01)
        initialise_residual_blocks(self, self.layers)
