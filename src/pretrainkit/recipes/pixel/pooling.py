"""The patches of each text to one vector.

Dimensions: T tokens of all texts, of which each text's first is its class token; B texts, D width, H heads, K width of
one head.
Source: Rust et al. 2022, https://arxiv.org/abs/2207.06991, and its code; pma: Lee et al. 2019,
https://arxiv.org/abs/1810.00825. Where the original's pma gives padding a score of 0, here nothing is padded; and its
scores are scaled by the width of a head, not of all.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.nn.blocks import LayerNorm
from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.initialise import built
from pretrainkit.recipes.pixel.config import PixelTextConfig


class ClassPooling(nn.Module):
    """The tanh of a linear layer on the class token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, x_BD: Tensor) -> Tensor:
        """(B, D) to (B, D)."""
        return torch.tanh(self.dense(x_BD))


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


def build_pooling(
    config: PixelTextConfig, width: int, epsilon: float, dropout_rate: float, scale: float, device: torch.device
) -> ClassPooling | PatchPooling:
    """With fresh weights, of deviation `scale`, from torch's global generator; on "meta" without values."""

    def make() -> ClassPooling | PatchPooling:
        return ClassPooling(width) if config.pooling == "cls" else PatchPooling(config, width, epsilon, dropout_rate)

    @torch.no_grad()
    def initialise(pooling: nn.Module) -> None:
        for module in pooling.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=scale)
                module.bias.zero_()
            elif isinstance(module, LayerNorm):
                module.weight.fill_(1)
                module.bias.zero_()
            elif isinstance(module, AttentionPooling):
                module.query.normal_(std=scale)

    with device:
        return built(make, initialise)
