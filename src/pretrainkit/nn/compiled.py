"""Calls of the compiled parts of this room."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def call(function: Callable[..., None], *arguments: Any) -> None:
    """With tensors as arrays. Fake ones have no numbers (`pretrainkit plan` has such): nothing is called."""
    arrays = []
    for one in arguments:
        if isinstance(one, FakeTensor):
            return
        arrays.append(one.numpy() if isinstance(one, Tensor) else one)
    function(*arrays)
