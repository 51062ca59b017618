"""Activation functions by name."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

_QUICK = 1.702


def quick_gelu(x: Tensor) -> Tensor:
    """Approximate GELU by a sigmoid, as in OpenAI's CLIP."""
    return x * torch.sigmoid(_QUICK * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "swish": F.silu,
}
"""Functions by their names in configs. gelu_tanh is `gelu_new` of Hugging Face, gelu the exact function."""
