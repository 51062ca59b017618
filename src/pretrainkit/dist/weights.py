"""Tensors of a model by name, whole or sharded."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from pretrainkit.dist.parallelize import is_dtensor, unwrap
from pretrainkit.errors import CheckpointError

Shape = tuple[int, ...]
_HASHED_VALUES = 256
"""Number of evenly spaced values of each tensor to hash."""
_NUM_SHOWN = 4


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers (not copies) by name; tied ones once, under their first name."""
    first_names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in unwrap(model).state_dict(keep_vars=True).items():
        if first_names.setdefault(id(tensor), name) == name:
            tensors[name] = tensor
    return tensors


def as_part_of(part: Tensor, layout: Tensor, mesh: Any = None) -> Tensor:
    """Convert this rank's part of a tensor to a DTensor that is sharded like `layout`, on its mesh or on `mesh`.
    Returns `part` itself if `layout` is not sharded."""
    if not is_dtensor(layout):
        return part
    from torch.distributed.tensor import DTensor  # 0.5 s unless already loaded

    like = cast(Any, layout)
    return DTensor.from_local(
        part, mesh or like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def sharded_as(layout: Tensor, whole: Tensor) -> Tensor:
    """Shard `whole`, which every rank has, like `layout`. Returns `whole` itself if `layout` is not sharded."""
    if not is_dtensor(layout):
        return whole
    from torch.distributed.tensor import distribute_tensor

    like = cast(Any, layout)
    # src_data_rank=None: every rank has the value, so each takes its part without communication.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor, sharded or not. All ranks must call it."""
    return cast(Any, tensor).full_tensor() if is_dtensor(tensor) else tensor


def on_cpu(model: nn.Module) -> nn.Module:
    """Return the model itself if it is on the CPU, otherwise a copy there that needs no memory on the device."""
    if next(model.parameters()).device.type == "cpu":
        return model
    copies: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        copied = tensor.detach().cpu()
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied
    return copy.deepcopy(model, copies)


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return whole copies of all tensors on the CPU. Every rank must call it. Tied tensors appear under each of their
    names and share one copy."""
    copies: dict[int, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, tensor in unwrap(model).state_dict(keep_vars=True).items():
        if id(tensor) not in copies:
            copies[id(tensor)] = whole(tensor.detach()).to("cpu", copy=True)
        weights[name] = copies[id(tensor)]
    return weights


@torch.no_grad()
def load_full_state_dict(model: nn.Module, weights: Mapping[str, Tensor], origin: str = "the given weights") -> None:
    """Copy whole tensors into a model, sharded or not. Every rank must call it with the same weights.

    Tied tensors need only one of their names. Number formats are converted. Raises CheckpointError, which names
    `origin`, if names or shapes differ; then the model is unchanged.
    """
    own = unwrap(model).state_dict(keep_vars=True)
    names: dict[int, list[str]] = {}
    for name, tensor in own.items():
        names.setdefault(id(tensor), []).append(name)
    sources = {
        name: next((other for other in names[id(tensor)] if other in weights), name) for name, tensor in own.items()
    }
    available = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    available |= {name: available[source] for name, source in sources.items() if source in available}
    require_same_tensors({name: tuple(tensor.shape) for name, tensor in own.items()}, available, origin)
    for tied in names.values():
        target, value = own[tied[0]], weights[sources[tied[0]]]
        if is_dtensor(target):
            value = sharded_as(target, value.to(device=target.device, dtype=target.dtype))
        target.copy_(value)


@torch.no_grad()
def copy_beginnings(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy each of `values` into the plain model's tensor of that name, at the beginning of every dimension. Number
    formats are converted."""
    own = model.state_dict(keep_vars=True)
    for name, value in values.items():
        own[name][tuple(slice(size) for size in value.shape)].copy_(value)


def weights_fingerprint(model: nn.Module) -> str:
    """Return a hash (32 hexadecimal digits) of the name, the shape and some values of every tensor. Nearly every update
    changes it."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        # About `_HASHED_VALUES` values, evenly spaced.
        some = flat[:: max(1, len(flat) // _HASHED_VALUES)].float().cpu().contiguous()
        state.update(f"{name} {tuple(tensor.shape)}\n".encode() + some.numpy().tobytes())
    return state.hexdigest()


def require_same_tensors(expected: Mapping[str, Shape], available: Mapping[str, Shape], origin: str) -> None:
    """Raise CheckpointError if `available` does not have the names and shapes in `expected`. It lists the first few of
    each kind of difference."""
    differing = [n for n in expected.keys() & available.keys() if expected[n] != available[n]]
    problems = [
        *listed("missing tensors:", sorted(f"{n} {list(expected[n])}" for n in expected.keys() - available.keys())),
        *listed("unknown tensors:", sorted(f"{n} {list(available[n])}" for n in available.keys() - expected.keys())),
        *listed(
            "tensors of another shape:", sorted(f"{n}: {list(available[n])}, model: {list(expected[n])}" for n in differing)
        ),
    ]
    _refuse(origin, problems)


def require_same_architecture(expected: Mapping[str, Any], available: Mapping[str, Any], origin: str) -> None:
    """Raise CheckpointError if weights of the architecture `available` would compute something else in a model of the
    architecture `expected`.

    Shapes are not sufficient: the same tensors fit any number of heads. Both arguments come from
    `pretrainkit.config.base.architecture`. Fields that only one of them has are ignored: they come from another version
    of the code.
    """
    differing = [name for name in expected if name in available and expected[name] != available[name]]
    _refuse(origin, [f"model.{name}: {available[name]} in the checkpoint, {expected[name]} in the model" for name in differing])


def _refuse(origin: str, problems: Sequence[str]) -> None:
    if problems:
        raise CheckpointError(
            f"{origin} belongs to another model\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + "\n  use the config that it was trained with (config.yaml in its run folder), or start a new run"
        )


def listed(heading: str, items: Sequence[str]) -> list[str]:
    """Return one line with the first few `items`, or no line if there are none."""
    if not items:
        return []
    more = f" and {len(items) - _NUM_SHOWN} more" if len(items) > _NUM_SHOWN else ""
    return [f"{heading} {', '.join(items[:_NUM_SHOWN])}{more}"]
