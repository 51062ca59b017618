"""Tensors without numbers."""

from torch import Tensor


def is_fake(x: Tensor) -> bool:
    """True for a tensor without numbers: cutting work into small parts only costs. Those of `pretrainkit plan` have
    `shape_only` (see `pretrainkit.training.fake_tensor`), those of torch `fake_mode`."""
    return hasattr(x, "shape_only") or hasattr(x, "fake_mode")
