"""Calls of the compiled parts of this room."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def call(function: Callable[..., None], *arguments: Any) -> None:
    """With tensors as arrays. Fake ones have no numbers (`pretrainkit plan` has such): nothing is called."""
    if not any(isinstance(one, Tensor) and hasattr(one, "fake_mode") for one in arguments):
        function(*(one.numpy() if isinstance(one, Tensor) else one for one in arguments))
