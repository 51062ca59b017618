"""Encoders of other libraries: building them without memory, their blocks and residual streams, layers with several
matrices, and masks."""

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.dist.autocast import in_float32, residual
from pretrainkit.nn.initialise import SkipInitialisation


def without_weights(make: Callable[[], Any]) -> Any:
    """Return the module that `make` builds, with its parameters on "meta" and its own tables real.

    Buffers outside of the state dict, such as tables of positions, would be lost on "meta", because nothing fills them
    later. A module with such buffers is built for real without drawing weights, and its parameters are moved to "meta".
    """
    with torch.device("meta"), SkipInitialisation():
        module = make()
    if not {name for name, _ in module.named_buffers()} - module.state_dict().keys():
        return module
    with torch.device("cpu"), SkipInitialisation():
        module = make()
    emptied: dict[nn.Parameter, nn.Parameter] = {}  # shared parameters stay shared
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter not in emptied:
                emptied[parameter] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
            setattr(owner, name, emptied[parameter])
    return module


_STACKED = {"qkv": 3, "kv": 2, "Wqkv": 3, "Wi": 2}
"""Number of matrices of layers with these names in timm and transformers; Wi is ModernBERT's gate and value."""


def stacked_layers(model: nn.Module) -> dict[str, int]:
    """Return the layers as in `pretrainkit.training.optimizers.parameters.StacksTensors`, named relative to `model`."""
    linear = (name for name, layer in model.named_modules() if isinstance(layer, nn.Linear))
    return {name: _STACKED[leaf] for name in linear if (leaf := name.rpartition(".")[2]) in _STACKED}


def repeated_modules(model: nn.Module) -> list[nn.Module]:
    """Return the members of the outermost lists or chains of modules of one class: the blocks of most encoders."""
    blocks: list[nn.Module] = []
    for module in model.children():
        members = list(module.children())
        is_list = isinstance(module, nn.ModuleList) and members
        is_chain = isinstance(module, nn.Sequential) and len(members) > 1
        has_weights = any(True for _ in module.parameters())
        if has_weights and (is_list or is_chain) and len({type(member) for member in members}) == 1:
            blocks += members
        else:
            blocks += repeated_modules(module)
    return blocks


def round_residuals(model: nn.Module) -> None:
    """Let each block round its input and the results of its layer norms by `residual`, so that its residual stream is
    as narrow as that of our own blocks. This covers streams that begin with an embedding and those that begin with a
    norm."""
    for block in repeated_modules(model):
        block.register_forward_pre_hook(_round_input)
        for module in block.modules():
            if isinstance(module, nn.LayerNorm):
                module.register_forward_hook(_round_output)


def _round_input(block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    is_stream = bool(args) and isinstance(args[0], Tensor) and args[0].is_floating_point()
    return (residual(args[0]), *args[1:]) if is_stream else args


def _round_output(norm: nn.Module, args: tuple[Any, ...], normal: Tensor) -> Tensor:
    return residual(normal)


def precision_of(encoder: Any, ids: Tensor) -> AbstractContextManager[object]:
    """Return a context in which an encoder of transformers can compute: float32 for the first DeBERTa, whose attention
    fails under autocast because it adds biases in float32 to queries."""
    return in_float32(ids) if encoder.config.model_type == "deberta" else nullcontext()


_MASKS = {"create_bidirectional_mask", "create_causal_mask"}
"""Functions of transformers that create masks; modules of encoders that can be decoders have both."""


def takes_mask_of_pairs(encoder: Any) -> bool:
    """True if a bool mask (B, 1, T, T) has the same effect on an encoder of transformers as a mask (B, T). This holds
    if it creates its only mask by `create_bidirectional_mask`, which passes on masks of four dimensions, for torch's
    attention."""
    makers = {name for name in vars(sys.modules[type(encoder).__module__]) if re.fullmatch("create_.*_mask", name)}
    settings = encoder.config
    is_plain = settings._attn_implementation == "sdpa" and not getattr(settings, "is_decoder", False)
    embeddings = getattr(encoder, "embeddings", None)
    embeds_masks = embeddings is not None and "attention_mask" in inspect.signature(embeddings.forward).parameters
    return is_plain and not embeds_masks and "create_bidirectional_mask" in makers and makers <= _MASKS


def mask_of_pairs(is_real_BT: Tensor) -> Tensor:
    """Return the mask (B, 1, T, T) for an encoder that accepts one. With a mask of tokens, transformers would first
    check on the device whether it hides any, and wait for the result."""
    return is_real_BT[:, None, None].bool().expand(-1, 1, is_real_BT.shape[1], -1)
