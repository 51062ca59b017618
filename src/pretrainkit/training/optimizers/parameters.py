"""Parameters whatever wraps them: plain names, local shards, norms over all shards, several tensors stored as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from pretrainkit.dist.devices import from_host, reads_at_once
from pretrainkit.dist.weights import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

_LONG = 1 << 14


def plain_name(name: str) -> str:
    """A parameter's name in the bare model: without the parts that DDP, compile and other wrappers put in."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What of each tensor lies on this rank (FSDP2's shard, or the tensor itself); shares its memory."""
    return [cast(Any, tensor).to_local() if is_dtensor(tensor) else tensor for tensor in tensors]


def local_gradients(params: Iterable[Tensor]) -> list[Tensor]:
    """What of each gradient, which all `params` have, lies on this rank."""
    return local_tensors(cast(Tensor, param.grad) for param in params)


@runtime_checkable
class StacksTensors(Protocol):
    """A module some of whose layers store several matrices as one, such as those of queries, keys and values."""

    def stacked_layers(self) -> Mapping[str, int]:
        """Dotted names of these layers, seen from the module, to the number of matrices that each holds, of equal
        height and one below another. The biases of such a layer are stacked alike."""


def stacked_parameters(model: nn.Module) -> dict[Tensor, int]:
    """Each parameter that holds several tensors of equal height below each other: how many.

    What an optimizer does per tensor (a norm, a mean, an orthogonal matrix) it does for each of them, so that its
    updates do not depend on how a model stores its weights.
    """
    found: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            packed = (module.in_proj_weight, module.in_proj_bias)
            found |= {parameter: 3 for parameter in packed if parameter is not None}
        elif isinstance(module, StacksTensors):
            for name, num_parts in module.stacked_layers().items():
                found |= dict.fromkeys(module.get_submodule(name).parameters(recurse=False), num_parts)
    return found


def part_rows(param: Tensor, num_parts: int) -> list[slice]:
    """The rows of this rank's shard that belong to each of the tensors in `param`; maybe none."""
    first, num_rows = row_offset(param), len(local_tensors([param])[0])
    height = len(param) // num_parts
    ends = [min(max(part * height - first, 0), num_rows) for part in range(num_parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


class Batches:
    """Room for a number per element of each gradient. On a GPU that of equally shaped parameters is one buffer, so that
    one kernel serves them all; a CPU gains nothing by that, and each parameter has its own buffer."""

    def __init__(self, params: Sequence[Tensor], stacked: Mapping[Tensor, int]) -> None:
        self.stacked = stacked
        by_layout: dict[Any, list[Tensor]] = {}
        for index, (param, local) in enumerate(zip(params, local_tensors(params), strict=True)):
            is_alone = reads_at_once(local.device) or not local.is_contiguous()
            layout = index if is_alone else (param.shape, local.shape, row_offset(param), stacked.get(param, 1))
            by_layout.setdefault(layout, []).append(param)
        self.members = list(by_layout.values())
        """The parameters of each buffer."""
        self.params = [param for members in self.members for param in members]
        self.owners = [param for param in self.params for _ in range(stacked.get(param, 1))]
        """The parameter that each tensor is in: one of `params`, as often as it holds tensors."""
        self.buffers: list[Tensor] = []
        """Each (number of parameters, *shape of a local shard), float32 or wider."""
        for members in self.members:
            (local,) = local_tensors(members[:1])
            one = torch.empty_like(local, dtype=torch.promote_types(local.dtype, torch.float32)).unsqueeze(0)
            self.buffers.append(one if len(members) == 1 else one.new_empty(len(members), *local.shape))

    def wholes(self) -> list[Tensor]:
        """The views of `params`."""
        return [one for buffer in self.buffers for one in buffer.unbind()]

    def norms(self, *lists: Sequence[Tensor]) -> Tensor:
        """The 2-norm of every tensor, those that lie in one parameter each for itself: (len(lists), their number). Each
        list is of shards like those of `params`."""
        parts: list[Tensor] = []
        for shards in lists:
            for shard, param in zip(shards, self.params, strict=True):
                num_parts = self.stacked.get(param, 1)
                parts += [shard] if num_parts == 1 else [shard[rows] for rows in part_rows(param, num_parts)]
        return tensor_norms(parts, self.owners * len(lists)).view(len(lists), -1)

    def root_sizes(self) -> Tensor:
        """The root of the number of elements of each of these tensors: norms over it are root mean squares."""
        counts = [float(one.numel() // self.stacked.get(one, 1)) for one in self.owners]
        return from_host(torch.tensor(counts).sqrt(), self.buffers[0].device)

    def scale_(self, factors: Tensor) -> None:
        """Multiply each of these tensors in the buffers by its factor."""
        counts = [len(members) * self.stacked.get(members[0], 1) for members in self.members]
        for buffer, members, own in zip(self.buffers, self.members, factors.split(counts), strict=True):
            num_parts = self.stacked.get(members[0], 1)
            own = own.view(len(members), num_parts, *[1] * (buffer.ndim - 1))
            if num_parts == 1:
                buffer.mul_(own[:, 0])
                continue
            for part, rows in enumerate(part_rows(members[0], num_parts)):
                buffer[:, rows].mul_(own[:, part])


def row_offset(param: Tensor) -> int:
    """The first row of this rank's shard."""
    if not is_dtensor(param):
        return 0
    mesh, axis = sharding(param)
    # FSDP2 deals rows out in equal runs, rounded up; the last ranks may have fewer or none.
    rows_per_rank = -(-param.shape[0] // mesh.size(axis))
    return min(mesh.get_local_rank(axis) * rows_per_rank, param.shape[0])


def sharding(param: Tensor) -> tuple[DeviceMesh, int]:
    """The mesh of a sharded parameter, and its axis that the rows are spread over; along any other there are copies."""
    sharded = cast(Any, param)
    axes = [axis for axis, placement in enumerate(sharded.placements) if not placement.is_replicate()]
    if len(axes) != 1 or not sharded.placements[axes[0]].is_shard(0):
        raise ValueError(f"expected shards of rows on one mesh axis, not {sharded.placements}")
    return sharded.device_mesh, axes[0]


def tensor_norms(shards: Sequence[Tensor], layout: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each whole tensor, (len(shards),) float32 or wider, of which `shards` lie on this rank, all on one
    device. For each, `layout` has a tensor that is sharded alike: where a DTensor, the norm is taken over all ranks'
    shards, in one collective per mesh. Nothing waits for the device."""
    if not shards:
        return torch.zeros(0)
    norms = _norms(shards)
    norms = norms.to(torch.promote_types(norms.dtype, torch.float32))
    groups: dict[tuple[Any, Any], list[int]] = {}
    for index, tensor in enumerate(layout):
        if is_dtensor(tensor):
            sharded = cast(Any, tensor)
            groups.setdefault((sharded.device_mesh, sharded.placements), []).append(index)
    for (mesh, placements), indices in groups.items():
        from torch.distributed.tensor import DTensor, Partial, Replicate  # half a second; loaded by whoever sharded

        parts = [Replicate() if placement.is_replicate() else Partial() for placement in placements]
        places = from_host(indices, norms.device)
        squares = DTensor.from_local(norms[places].square(), mesh, parts, run_check=False)
        norms[places] = squares.full_tensor().sqrt()
    return norms


def _norms(shards: Sequence[Tensor]) -> Tensor:
    """One by one. Of long ones on a CPU the products with themselves, which use all threads and add up more exactly."""
    norms = torch.stack(torch._foreach_norm([one.new_zeros(()) if _is_long(one) else one for one in shards]))
    for index, one in enumerate(shards):
        if _is_long(one):
            norms[index] = torch.dot(one.view(-1), one.view(-1)).sqrt_()
    return norms


def _is_long(one: Tensor) -> bool:
    is_float32_cpu = reads_at_once(one.device) and one.dtype == torch.float32
    return is_float32_cpu and one.numel() >= _LONG and one.is_contiguous()
