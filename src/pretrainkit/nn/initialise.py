"""Initial weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

M = TypeVar("M", bound=nn.Module)
_DRAWING = frozenset({nn.init.__name__, "transformers.initialization"})
"""Modules of functions that draw weights. transformers replaces torch's by its own while it builds a model."""
_FILLING = frozenset({"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_"})


class SkipInitialisation(TorchFunctionMode):
    """Context in which the drawing functions of `torch.nn.init` do not change tensors, so weights are uninitialized
    memory. On "meta", which has no numbers, in-place operations that fill or change tensors do nothing either.

    It is for models that initialize themselves afterwards. Building on the meta device and calling `to_empty` would do
    the same, but it loads torch's whole compiler (1.5 CPU-seconds), which implements these calls for meta tensors.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) in _DRAWING:  # some methods lack it
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if getattr(func, "__name__", None) in _FILLING and args[0].is_meta:
            return args[0]
        return func(*args, **kwargs)


def built(make: Callable[[], M], initialise: Callable[[M], None]) -> M:
    """Build a module on torch's default device and initialize it from the global generator; on "meta" without values.

    The weights that torch would draw inside `make` are skipped to save time and random numbers; `initialise` sets all
    of them."""
    with SkipInitialisation():
        module = make()
    if not builds_on_meta():
        initialise(module)
    return module


def builds_on_meta() -> bool:
    """True if tensors created now have no values."""
    return torch.get_default_device().type == "meta"


@torch.no_grad()
def truncated_normal_(weight: Tensor, scale: float) -> Tensor:
    """Fill with normal values of deviation `scale`, truncated at two scales. The resulting deviation is 0.88 x scale.

    Values outside are drawn again; on a CPU this is about ten times faster than torch's inverse error function.
    """
    weight.normal_()
    while num_outside := int((is_outside := weight.abs() > 2).sum()):
        weight[is_outside] = torch.randn(num_outside, dtype=weight.dtype, device=weight.device)
    return weight.mul_(scale)


@torch.no_grad()
def initialise_layer(module: nn.Module, scale: float, *, is_truncated: bool = True) -> None:
    """Initialize a linear layer or embedding from `truncated_normal_` or the whole normal distribution, biases with 0,
    and norms as the identity.

    It changes only parameters of `module` itself, not of its children.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        if is_truncated:
            truncated_normal_(module.weight, scale)
        else:
            module.weight.normal_(std=scale)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
    elif isinstance(module, nn.LayerNorm):
        module.weight.fill_(1)
        if module.bias is not None:
            module.bias.zero_()


@torch.no_grad()
def initialise_residual_blocks(tower: nn.Module, layers: nn.ModuleList) -> None:
    """Initialize linear layers of pre-norm blocks as in OpenAI's CLIP, and all norms of `tower`: normal weights, biases
    0.

    Deviations for width D and L layers: D^-0.5 for queries, keys and values, (2 D)^-0.5 into the feed-forward layer,
    and D^-0.5 (2 L)^-0.5 for layers whose output is added to the residual stream.
    """
    for name, module in layers.named_modules():
        if isinstance(module, nn.Linear):
            width = module.out_features if name.endswith(("attention.out", "down")) else module.in_features
            scale = width**-0.5
            if name.endswith(("attention.out", "down")):
                scale *= (2 * len(layers)) ** -0.5
            elif name.endswith("up"):
                scale *= 2**-0.5
            module.weight.normal_(std=scale)
            if module.bias is not None:
                module.bias.zero_()
    for module in tower.modules():
        if isinstance(module, nn.LayerNorm):
            initialise_layer(module, 0.0)
