"""Encoders of other libraries: how to build them without memory, where their blocks are, which of their layers hold
several matrices, and what masks they take."""

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.nn.initialise import SkipInitialisation


def without_weights(make: Callable[[], Any]) -> Any:
    """The module that `make` makes, with its parameters on "meta" and its own tables real.

    Buffers that are no part of the state dict, such as tables of positions, would be lost on "meta": nothing fills them
    in later. A module that has any is made for real, without drawing weights, and only then emptied.
    """
    with torch.device("meta"), SkipInitialisation():
        module = make()
    if not {name for name, _ in module.named_buffers()} - module.state_dict().keys():
        return module
    with torch.device("cpu"), SkipInitialisation():
        module = make()
    emptied: dict[nn.Parameter, nn.Parameter] = {}  # shared ones stay shared
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter not in emptied:
                emptied[parameter] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
            setattr(owner, name, emptied[parameter])
    return module


_STACKED = {"qkv": 3, "kv": 2, "Wqkv": 3, "Wi": 2}
"""Names that timm and transformers give to layers of several matrices, to their number; Wi is ModernBERT's gate and
value."""


def stacked_layers(model: nn.Module) -> dict[str, int]:
    """See `pretrainkit.training.optimizers.parameters.StacksTensors`; names are seen from `model`."""
    linear = (name for name, layer in model.named_modules() if isinstance(layer, nn.Linear))
    return {name: _STACKED[leaf] for name in linear if (leaf := name.rpartition(".")[2]) in _STACKED}


def repeated_modules(model: nn.Module) -> list[nn.Module]:
    """The members of the outermost lists and chains of modules of one class: the blocks of most encoders."""
    found: list[nn.Module] = []
    for module in model.children():
        members = list(module.children())
        is_list = isinstance(module, nn.ModuleList) and members
        is_chain = isinstance(module, nn.Sequential) and len(members) > 1
        has_weights = any(True for _ in module.parameters())
        if has_weights and (is_list or is_chain) and len({type(member) for member in members}) == 1:
            found += members
        else:
            found += repeated_modules(module)
    return found


_MASKS = {"create_bidirectional_mask", "create_causal_mask"}
"""Functions of transformers that make masks; modules of encoders that can be decoders have both."""


def takes_mask_of_pairs(encoder: Any) -> bool:
    """True if a bool mask (B, 1, T, T) is to an encoder of transformers what a mask (B, T) is: if it makes its only
    mask by `create_bidirectional_mask`, which passes on masks of four dimensions, for torch's own attention."""
    makers = {name for name in vars(sys.modules[type(encoder).__module__]) if re.fullmatch("create_.*_mask", name)}
    settings = encoder.config
    is_plain = settings._attn_implementation == "sdpa" and not getattr(settings, "is_decoder", False)
    embeddings = getattr(encoder, "embeddings", None)
    embeds_masks = embeddings is not None and "attention_mask" in inspect.signature(embeddings.forward).parameters
    return is_plain and not embeds_masks and "create_bidirectional_mask" in makers and makers <= _MASKS


def mask_of_pairs(is_real_BT: Tensor) -> Tensor:
    """Return the mask (B, 1, T, T) for an encoder that takes one. Of a mask of tokens, transformers would first ask the
    device whether it hides any, and wait for it."""
    return is_real_BT[:, None, None].bool().expand(-1, 1, is_real_BT.shape[1], -1)
