"""Parts that compute in float32 whatever the rest does."""

from contextlib import AbstractContextManager, nullcontext

import torch


def in_float32(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast; on "meta", which has none, nothing."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
