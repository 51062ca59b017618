"""Calls of the compiled parts of this room."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


@cache
def part(name: str) -> ModuleType | None:
    """The compiled module of this room. None: there was no compiler at installation; or one without OpenMP, and torch,
    whose operators compute the same, has several threads at this first call."""
    try:
        module = import_module(f"pretrainkit.nn.{name}")
    except ImportError:
        return None
    return module if has_openmp(module) or torch.get_num_threads() == 1 else None


def has_openmp(module: ModuleType) -> bool:
    """Whether it computes on several threads. Those that were built before they said so do."""
    return bool(getattr(module, "has_openmp", True))


def is_fake(x: Tensor) -> bool:
    """True for a tensor without numbers: cutting work into small parts only costs. Those of `pretrainkit plan` have
    `shape_only` (see `pretrainkit.training.fake_tensor`), those of torch `fake_mode`."""
    return hasattr(x, "shape_only") or hasattr(x, "fake_mode")


def call(function: Callable[..., None], *arguments: Any) -> None:
    """With tensors as arrays. Fake ones have no numbers (`pretrainkit plan` has such): nothing is called."""
    arrays = []
    for one in arguments:
        if isinstance(one, Tensor) and is_fake(one):
            return
        arrays.append(one.numpy() if isinstance(one, Tensor) else one)
    function(*arrays)
