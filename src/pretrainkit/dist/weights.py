"""The tensors of a model by name, whole or sharded."""

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
"""Number of values of each tensor to hash, evenly spaced."""
_NUM_SHOWN = 4


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers themselves (not copies) by name; tied ones once, under their first name."""
    first_names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in unwrap(model).state_dict(keep_vars=True).items():
        if first_names.setdefault(id(tensor), name) == name:
            tensors[name] = tensor
    return tensors


def as_part_of(part: Tensor, layout: Tensor, mesh: Any = None) -> Tensor:
    """`part` as this rank's part of a tensor that is sharded as `layout` is, on its mesh or another one; `part` itself
    where `layout` is whole."""
    if not is_dtensor(layout):
        return part
    from torch.distributed.tensor import DTensor  # half a second; loaded by whoever sharded

    like = cast(Any, layout)
    return DTensor.from_local(
        part, mesh or like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def sharded_as(layout: Tensor, whole: Tensor) -> Tensor:
    """`whole`, which every rank has, sharded as `layout` is; `whole` itself where that is not sharded."""
    if not is_dtensor(layout):
        return whole
    from torch.distributed.tensor import distribute_tensor

    like = cast(Any, layout)
    # src_data_rank=None: every rank has the value, so each takes its part without sending anything.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, sharded or not. All ranks must call it."""
    return cast(Any, tensor).full_tensor() if is_dtensor(tensor) else tensor


def allocate(model: nn.Module, device: str) -> nn.Module:
    """Memory, without values, for what is on "meta"; what is real already (such as tables of positions) is moved.

    `nn.Module.to_empty` would lose the latter.
    """

    def allocated(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor.to(device)
        if is_dtensor(tensor):
            return torch.empty_like(tensor, device=device)
        # The same, without the third of a second for which torch loads what it reasons about shapes with.
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    return model._apply(allocated)


def on_cpu(model: nn.Module) -> nn.Module:
    """The model itself where it is on the CPU, else a copy there, for which its device needs no memory."""
    if next(model.parameters()).device.type == "cpu":
        return model
    copies: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        copied = tensor.detach().cpu()
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied
    return copy.deepcopy(model, copies)


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all tensors on the CPU, whole. Every rank must call it. Tied tensors appear under each of their names
    and share one copy."""
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
    `origin`, where names or shapes differ; the model is unchanged then.
    """
    own = unwrap(model).state_dict(keep_vars=True)
    names: dict[int, list[str]] = {}
    for name, tensor in own.items():
        names.setdefault(id(tensor), []).append(name)
    sources = {
        name: next((other for other in names[id(tensor)] if other in weights), name) for name, tensor in own.items()
    }
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    given |= {name: given[source] for name, source in sources.items() if source in given}
    require_same_tensors({name: tuple(tensor.shape) for name, tensor in own.items()}, given, origin)
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
    """32 hexadecimal digits of names, shapes and some values of every tensor: an update changes nearly all of them."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        # Evenly spread over the tensor, about `_HASHED_VALUES` of them.
        some = flat[:: max(1, len(flat) // _HASHED_VALUES)].float().cpu().contiguous()
        state.update(f"{name} {tuple(tensor.shape)}\n".encode() + some.numpy().tobytes())
    return state.hexdigest()


def require_same_tensors(expected: Mapping[str, Shape], given: Mapping[str, Shape], origin: str) -> None:
    """Check that `given` has the names and shapes that are `expected`. Raises CheckpointError with the first few of
    each kind of difference."""
    differing = [n for n in expected.keys() & given.keys() if expected[n] != given[n]]
    problems = [
        *listed("it lacks:", sorted(f"{n} {list(expected[n])}" for n in expected.keys() - given.keys())),
        *listed("it has but the model lacks:", sorted(f"{n} {list(given[n])}" for n in given.keys() - expected.keys())),
        *listed(
            "it has in another shape:", sorted(f"{n}: {list(given[n])}, model {list(expected[n])}" for n in differing)
        ),
    ]
    _refuse(origin, problems)


def require_same_architecture(expected: Mapping[str, Any], given: Mapping[str, Any], origin: str) -> None:
    """Check that weights of the architecture `given` compute the same in a model of the architecture `expected`; else
    raise CheckpointError.

    Shapes do not tell everything: the same tensors serve any number of heads. Both are what
    `pretrainkit.config.base.architecture` gives; fields that only one side knows come from another version of the code.
    """
    differing = [name for name in expected if name in given and expected[name] != given[name]]
    _refuse(origin, [f"model.{name}: {given[name]} there, {expected[name]} here" for name in differing])


def _refuse(origin: str, problems: Sequence[str]) -> None:
    if problems:
        raise CheckpointError(
            f"{origin} belongs to another model\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + "\n  use the config it was trained with (config.yaml in its run folder), or start a new run"
        )


def listed(what: str, items: Sequence[str]) -> list[str]:
    """One line with the first few `items`, or none."""
    if not items:
        return []
    more = f" and {len(items) - _NUM_SHOWN} more" if len(items) > _NUM_SHOWN else ""
    return [f"{what} {', '.join(items[:_NUM_SHOWN])}{more}"]
