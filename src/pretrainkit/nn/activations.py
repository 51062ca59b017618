"""Activation functions by name, fast on a CPU too."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.fake import is_fake

_SQRT_8_OVER_PI = math.sqrt(8 / math.pi)
_CUBIC = 0.044715
_QUICK = 1.702
_BLOCK = 1 << 15
"""Elements that a thread works on at a time on a CPU; torch gives no thread fewer."""


class _TanhGelu(torch.autograd.Function):
    """gelu_tanh(x) = x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3), because (1 + tanh u) / 2 = sigmoid(2u).

    torch's CPU kernel evaluates a tanh forward and another one backward; a sigmoid that is kept costs a third of that.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        gate = x.new_empty(x.shape, dtype=_wide_dtype(x))
        product = torch.empty_like(gate, dtype=x.dtype)
        for x_part, gate_part, product_part in zip(_blocks(x), _blocks(gate), _blocks(product), strict=True):
            wide = x_part.to(gate.dtype)
            torch.square(wide, out=gate_part).mul_(_CUBIC).add_(1).mul_(wide).mul_(_SQRT_8_OVER_PI).sigmoid_()
            product_part.copy_(wide * gate_part)
        ctx.save_for_backward(x, gate)
        return product

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        x, gate = ctx.saved_tensors  # type: ignore[attr-defined]
        # d/dx x s(v) = s + x s (1 - s) v' with v' = sqrt(8/pi) (1 + 3 * 0.044715 x^2)
        found = torch.empty_like(gate, dtype=x.dtype)
        parts = zip(_blocks(x), _blocks(gate), _blocks(grad), _blocks(found), strict=True)
        for x_part, gate_part, grad_part, found_part in parts:
            wide = x_part.to(gate.dtype)
            slope = wide.square().mul_(3 * _CUBIC * _SQRT_8_OVER_PI).add_(_SQRT_8_OVER_PI).mul_(wide)
            slope.mul_(1 - gate_part).add_(1).mul_(gate_part)
            found_part.copy_(slope.mul_(grad_part))
        return found


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    """Views of some rows each, so small that they stay in the cache from one operation to the next."""
    if x.ndim < 2 or is_fake(x):
        return (x,)
    return x.split(max(1, torch.get_num_threads() * _BLOCK * len(x) // max(1, x.numel())))


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU (`gelu_new` of Hugging Face)."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return _TanhGelu.apply(x)
    return F.gelu(x, approximate="tanh")


class _QuickGelu(torch.autograd.Function):
    """x * sigmoid(1.702 x), which keeps its input alone: the sigmoid is made again in the backward pass."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x * _QUICK).sigmoid_().mul_(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        # d/dx x s(v) = s (1 + v (1 - s)) with v = 1.702 x
        inner = x * _QUICK
        gate = inner.sigmoid()
        return inner.mul_(1 - gate).add_(1).mul_(gate).mul_(grad)


def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU in OpenAI's CLIP."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return _QuickGelu.apply(x)
    return x * torch.sigmoid(_QUICK * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": gelu_tanh,
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "swish": F.silu,
}
"""Name in configs to function."""
