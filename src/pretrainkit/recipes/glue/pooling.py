"""From the hidden states of an example to one vector.

Dimensions: B examples, T slots of all of them, D width.
"""

from typing import Literal

import torch
from torch import Tensor

Pooling = Literal["cls", "mean", "max"]


def pooled(x_TD: Tensor, cu_seqlens: Tensor, pooling: Pooling) -> Tensor:
    """(B, D) float32.

    Args:
        x_TD: The slots of all examples one after another.
        cu_seqlens: (B + 1,) where examples begin and end.
        pooling: cls: the first slot. mean, max: over all slots of the example, control tokens too.
    """
    x_TD, ends = x_TD.float(), cu_seqlens.long()
    if pooling == "cls":
        return x_TD[ends[:-1]]
    slots = torch.arange(len(x_TD), device=x_TD.device)
    example_T = torch.searchsorted(ends[1:], slots, right=True)
    found = x_TD.new_zeros(len(ends) - 1, x_TD.shape[1])
    if pooling == "mean":
        return found.index_add_(0, example_T, x_TD) / ends.diff()[:, None]
    return found.scatter_reduce_(0, example_T[:, None].expand_as(x_TD), x_TD, "amax", include_self=False)
