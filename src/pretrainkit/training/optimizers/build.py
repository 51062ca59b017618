"""Build the optimizer: parameter groups, weight decay, the algorithms, gradient clipping.

AdamW is u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p and p -= lr * u. torch applies the decay first; the two
differ in rounding only. The compatible modes reproduce Sabertooth, https://github.com/nikitakit/sabertooth.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from pretrainkit.dist.devices import has_fused_optimizers, reads_at_once
from pretrainkit.dist.parallelize import HasBlocks, unwrap
from pretrainkit.errors import ConfigError
from pretrainkit.training.eager import EagerAdamW
from pretrainkit.training.optimizers.adafactor import Adafactor
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.optimizers.muon import Muon
from pretrainkit.training.optimizers.parameters import local_tensors, plain_name, stacked_parameters, tensor_norms
from pretrainkit.training.optimizers.per_tensor import Lamb, Lars, Lion, ScaledAdamW, Sgd
from pretrainkit.training.precision import Precision, has_fast_bfloat16

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.modules.batchnorm._NormBase)
_FUSED_QUERY_KEY_VALUE = "qkv"
_WITHOUT_DECAY = frozenset(
    {"class_token", "cls_token", "dist_token", "mask_token", "reg_token", "position_embedding", "pos_embed"}
    | {"log_scale", "temperature"}
)
"""Parameters outside of linear layers and embeddings: single tokens, positions of vision transformers, temperatures."""


def decays_by_name(owner: nn.Module, name: str) -> bool:
    """True if a parameter of the module `owner` decays in mode by_name. Everything decays except biases, parameters of
    norm layers (torch's, or of a class named `...Norm`), temperatures, and tokens and positions that are parameters of
    their own (not rows of an embedding)."""
    leaf = name.rpartition(".")[2]
    is_norm = isinstance(owner, _NORMS) or type(owner).__name__.endswith("Norm")
    return not (is_norm or leaf == "bias" or leaf.endswith("_bias") or leaf in _WITHOUT_DECAY)


def decays_in_compat(name: str, parameter: Tensor) -> bool:
    """True if the parameter decays in mode by_ndim_compat. In Sabertooth of 2022 every tensor that is not 1-D decays.

    There, query, key and value biases had the shape (heads, width of a head) and therefore decayed. Here they are 1-D
    and fused in the linear layer `qkv` (or separate in `query`, `key` and `value`).
    """
    owner, _, leaf = plain_name(name).rpartition(".")
    is_projection = owner.rpartition(".")[2] in (_FUSED_QUERY_KEY_VALUE, "query", "key", "value")
    return parameter.ndim != 1 or (leaf == "bias" and is_projection)


def decayed_names(model: nn.Module, config: OptimizerConfig) -> dict[str, bool]:
    """Map the name of every trainable parameter to True if it decays. Names are those of `model.named_parameters()`,
    with shared parameters once."""
    owners = {id(parameter): module for module in model.modules() for parameter in module.parameters(recurse=False)}
    return {
        name: config.decay_mask == "all"
        or (
            decays_by_name(owners[id(parameter)], name)
            if config.decay_mask == "by_name"
            else decays_in_compat(name, parameter)
        )
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer for `model`, with a parameter group for each combination of weight decay and learning rate.

    Call it after sharding, and set the learning rate with `set_learning_rate` before every step. Raises ConfigError if
    the pattern of an entry in `config.groups` matches no parameter name."""
    if config.name == "adafactor":
        config = config.changed(weight_decay=config.adafactor.decay_rate_of_parameters)
    parameters, stacked = dict(model.named_parameters()), stacked_parameters(model)
    groups = _parameter_groups(model, config, parameters, stacked)
    settings: dict[str, Any] = {"lr": config.peak_lr}
    if config.name == "adafactor":
        return Adafactor(groups, **settings, config=config.adafactor, stacked=stacked)
    if config.name == "sgd":
        return Sgd(groups, **settings, momentum=config.momentum, nesterov=config.nesterov)
    if config.name == "lars":
        return Lars(groups, **settings, momentum=config.momentum, nesterov=config.nesterov, stacked=stacked)
    settings["betas"] = (config.beta1, config.beta2)
    if config.name == "lion":
        return Lion(groups, **settings)
    settings["eps"] = config.epsilon
    if config.name == "muon":
        is_fast = all(has_fast_bfloat16(p.device) for p in parameters.values())
        dtype = torch.bfloat16 if is_fast else torch.float32
        return Muon(groups, **settings, momentum=config.momentum, dtype=dtype)
    if config.name == "lamb":
        return Lamb(groups, **settings, stacked=stacked)
    if config.scale_by_parameter_rms:
        return ScaledAdamW(groups, **settings, stacked=stacked)
    is_fused = has_fused_optimizers(p for p in parameters.values() if p.requires_grad)
    return EagerAdamW(groups, **settings, fused=is_fused)


def _parameter_groups(
    model: nn.Module, config: OptimizerConfig, parameters: Mapping[str, Tensor], stacked: Mapping[Tensor, int]
) -> list[dict[str, Any]]:
    matrices = _hidden_matrices(model, stacked) if config.name == "muon" else {}
    members: dict[tuple[float, float, int], list[Tensor]] = {}
    unused = {group.pattern for group in config.groups}
    scales = {} if config.layer_decay is None else layer_scales(model, config.layer_decay)
    for name, is_decayed in decayed_names(model, config).items():
        weight_decay, lr_scale = config.weight_decay if is_decayed else 0.0, 1.0
        for group in config.groups:
            if re.search(group.pattern, plain_name(name)):
                unused.discard(group.pattern)
                lr_scale = lr_scale if group.lr_scale is None else group.lr_scale
                weight_decay = weight_decay if group.weight_decay is None else group.weight_decay
        lr_scale *= scales.get(name, 1.0)
        num_parts = matrices.get(id(parameters[name]), 0)
        members.setdefault((weight_decay, lr_scale, num_parts), []).append(parameters[name])
    if unused:
        names = ", ".join(plain_name(name) for name in list(parameters)[:3])
        raise ConfigError(
            f"optimizer.groups: no trainable parameter has a name with {' or '.join(map(repr, sorted(unused)))}\n"
            f"  the names look like {names}"
        )
    names_of_key = ("weight_decay", "lr_scale", *(["num_parts"] if config.name == "muon" else []))
    return [
        {"params": members[key], **dict(zip(names_of_key, key, strict=False))} for key in sorted(members, reverse=True)
    ]


def layer_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter, by its name in `model.named_parameters()`.

    The last of n blocks has the factor `decay`, the first one `decay` ** n. Parameters before the blocks have
    `decay` ** (n + 1). Parameters after the blocks and single numbers have 1. Blocks whose names have the same first
    part belong to the same encoder; each encoder is counted separately. Source, including the powers: Bao et al. 2021
    (BEiT), https://arxiv.org/abs/2106.08254.
    """
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    encoders: dict[str, list[nn.Module]] = {}
    for block in cast(HasBlocks, unwrap(model)).blocks():
        first = names[id(next(block.parameters()))].partition(".")[0]
        encoders.setdefault(first, []).append(block)
    depths = {
        id(parameter): len(blocks) - index
        for blocks in encoders.values()
        for index, block in enumerate(blocks)
        for parameter in block.parameters()
    }
    longest, passed, scales = max(map(len, encoders.values()), default=0), set[str](), {}
    for name, parameter in model.named_parameters():
        first = plain_name(name).partition(".")[0]
        if id(parameter) in depths:
            passed.add(first)
            depth = depths[id(parameter)]
        elif parameter.numel() == 1:
            depth = 0
        else:
            blocks = encoders.get(first)
            is_after = bool(passed) if blocks is None else first in passed
            depth = 0 if is_after else 1 + (longest if blocks is None else len(blocks))
        scales[name] = decay**depth
    return scales


def _hidden_matrices(model: nn.Module, stacked: Mapping[Tensor, int]) -> dict[int, int]:
    """Map the id of the weight of each linear layer in the model's blocks to the number of matrices that it contains.
    Embeddings and heads are not included, because their rows or columns are words and classes."""
    return {
        id(layer.weight): stacked.get(layer.weight, 1)
        for block in cast(HasBlocks, unwrap(model)).blocks()
        for layer in block.modules()
        if isinstance(layer, nn.Linear)
    }


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return all parameters that the optimizer updates. This is faster than to search the model in every step."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr`, times the factor of its group, for each parameter from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the learning rate of each group of parameters as lr/FACTOR, where there are several factors."""
    rates = {f"lr/{group.get('lr_scale', 1.0):.4g}": float(group["lr"]) for group in optimizer.param_groups}
    return rates if len(rates) > 1 else {}


def step_if_finite(optimizer: torch.optim.Optimizer, precision: Precision, norm: Tensor) -> Tensor:
    """Update the parameters unless the gradient is not finite. A skipped update leaves parameters, moments and step
    counts unchanged. Returns True, as a bool scalar on the device, if the update was skipped.

    With loss scaling, call `unscale_` before; this function adapts the scale. `norm` comes from `clip_gradients` and is
    the same on all ranks, so that all ranks decide alike. The kernels of every optimizer of `build_optimizer` make the
    decision on the device, so the host does not wait until the result is read. The exception is AdamW on devices for
    which `has_fused_optimizers` is False.
    """
    is_skipped = (norm - norm) != 0  # `~norm.isfinite()` in two kernels instead of five: NaN where norm is not finite
    if precision.scaler is not None:
        precision.step(optimizer)
    elif getattr(optimizer, "_step_supports_amp_scaling", False):
        # These are the attributes that torch.amp.GradScaler sets on fused optimizers, here without a scale.
        fused: Any = optimizer
        fused.grad_scale, fused.found_inf = None, is_skipped.float()
        try:
            optimizer.step()
        finally:
            del fused.grad_scale, fused.found_inf
    elif not is_skipped.item():
        optimizer.step()
    return is_skipped


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], config: OptimizerConfig) -> Tensor:
    """Scale all gradients in place so that their global norm is at most `config.max_grad_norm` (0: no limit).

    Mode norm: multiply by c / norm if norm >= c, without an epsilon. Mode squared_norm_legacy: the same with the
    squared norm instead of the norm, so 0.4 clips from a norm of 0.632 on and leaves 0.4 / norm. Mode value: clamp
    each element to -c ... c.

    Returns:
        The norm before clipping, a float32 scalar on the gradients' device; not finite if a gradient is not finite. It
        is the norm over all shards, so all ranks must call this function and all get the same number. The host does not
        wait for the device.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.zeros(())
    shards = local_tensors(grads)
    norm = torch.linalg.vector_norm(tensor_norms(shards, grads))
    if config.max_grad_norm and config.clip == "value":
        torch._foreach_clamp_min_(shards, -config.max_grad_norm)
        torch._foreach_clamp_max_(shards, config.max_grad_norm)
    elif config.max_grad_norm:
        size = norm.square() if config.clip == "squared_norm_legacy" else norm
        factor = torch.where(size < config.max_grad_norm, 1.0, config.max_grad_norm / size)
        if not reads_at_once(factor.device) or factor.item() != 1:
            torch._foreach_mul_(shards, factor)
    return norm.float()
