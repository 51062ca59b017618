"""Number formats under autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def in_float32(some: Tensor) -> AbstractContextManager[object]:
    """A context without autocast on the device of a tensor; on "meta", which has none, nothing."""
    kind = some.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def activation_dtype(x: Tensor) -> torch.dtype:
    """What autocast computes in on the device of `x`, where it is on; else the dtype of `x`."""
    kind = x.device.type
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on else x.dtype
