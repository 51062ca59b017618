"""Number formats under autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def in_float32(some: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on the device of a tensor; on "meta", which has no autocast, it does
    nothing."""
    kind = some.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


class Float32Module:
    """A module that computes outside of autocast. Sharding gathers its parameters in float32."""


_residual_is_narrow = False


def narrow_residual(is_narrow: bool) -> None:
    """Enable or disable the rounding of `residual` in this process. The setting outlives a forward pass, because blocks
    may be computed again in the backward pass."""
    global _residual_is_narrow
    _residual_is_narrow = is_narrow


def residual(x: Tensor) -> Tensor:
    """Round `x`, the residual stream of a block, to `activation_dtype` if `narrow_residual` enabled it.

    Additions and norms then read and write half as many bytes. The statistics of norms stay float32.
    """
    return x.to(activation_dtype(x)) if _residual_is_narrow else x


def activation_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of autocast on the device of `x` if autocast is on, otherwise the dtype of `x`."""
    kind = x.device.type
    # `torch.amp.is_autocast_available` would break the graph in torch 2.11.
    is_on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on else x.dtype
