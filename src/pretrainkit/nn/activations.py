"""Activation functions by name, fast on a CPU too."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_SQRT_8_OVER_PI = math.sqrt(8 / math.pi)
_CUBIC = 0.044715
_QUICK = 1.702


class _TanhGelu(torch.autograd.Function):
    """gelu_tanh(x) = x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3), because (1 + tanh u) / 2 = sigmoid(2u).

    torch's CPU kernel evaluates a tanh forward and another one backward; a sigmoid that is kept costs a third of that.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        wide = _at_least_float32(x)
        gate = wide.square().mul_(_CUBIC).add_(1).mul_(wide).mul_(_SQRT_8_OVER_PI).sigmoid_()
        ctx.save_for_backward(x, gate)
        return (wide * gate).to(x.dtype)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        x, gate = ctx.saved_tensors  # type: ignore[attr-defined]
        # d/dx x s(v) = s + x s (1 - s) v' with v' = sqrt(8/pi) (1 + 3 * 0.044715 x^2)
        wide = _at_least_float32(x)
        slope = wide.square().mul_(3 * _CUBIC * _SQRT_8_OVER_PI).add_(_SQRT_8_OVER_PI).mul_(wide)
        slope.mul_(1 - gate).add_(1).mul_(gate)
        return slope.mul_(grad).to(x.dtype)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


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
