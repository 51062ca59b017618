"""From the hidden states of an example to one vector.

Dimensions: B examples, T slots of all of them, D width.
"""

from typing import Literal

import torch
from torch import Tensor

from pretrainkit.training.objective import Batch

Pooling = Literal["cls", "mean", "max", "texts"]


def pooled_width(width: int, pooling: Pooling | None, *, is_pair: bool) -> int:
    """Values of the vector that stands for an example of an encoder of this width."""
    return 4 * width if pooling == "texts" and is_pair else width


def pooled(x_TD: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """(B, D) float32, or (B, 4 D) of the texts of pairs.

    Args:
        x_TD: The slots of all examples one after another.
        batch: Says where examples begin and end, and where their second texts begin; see `ReadExamples.build`.
        pooling: cls: the first slot. mean, max: over all slots of the example, control tokens too. texts: of pairs the
            means u and v over the slots of either text, |u - v| and u v, as in InferSent (Conneau et al. 2017,
            https://arxiv.org/abs/1705.02364) and the baselines of GLUE; of single texts the mean.
    """
    x_TD, ends = x_TD.float(), batch["cu_seqlens"].long()
    if pooling == "cls":
        return x_TD[ends[:-1]]
    if pooling == "max":
        found = x_TD.new_zeros(len(ends) - 1, x_TD.shape[1])
        place_TD = _stretch_of(ends, x_TD)[:, None].expand_as(x_TD)
        return found.scatter_reduce_(0, place_TD, x_TD, "amax", include_self=False)
    if pooling == "mean" or "second_begins" not in batch:
        return _means(x_TD, ends)
    bounds = torch.stack([ends[:-1], ends[:-1] + batch["second_begins"]], 1).flatten()
    u_BD, v_BD = _means(x_TD, torch.cat([bounds, ends[-1:]])).unflatten(0, (-1, 2)).unbind(1)
    return torch.cat([u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD], 1)


def _means(x_TD: Tensor, ends: Tensor) -> Tensor:
    """Of every stretch of slots; `ends` is 0 and the end of each."""
    found = x_TD.new_zeros(len(ends) - 1, x_TD.shape[1])
    return found.index_add_(0, _stretch_of(ends, x_TD), x_TD) / ends.diff()[:, None]


def _stretch_of(ends: Tensor, x_TD: Tensor) -> Tensor:
    """(T,) the number of the stretch that each slot lies in."""
    return torch.searchsorted(ends[1:], torch.arange(len(x_TD), device=x_TD.device), right=True)
