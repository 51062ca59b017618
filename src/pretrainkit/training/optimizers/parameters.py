"""Access to parameters independent of wrappers: plain names, local shards, norms over all shards, stacked tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
_KERNEL_ROW = 256
"""Maximum row length of convolution kernels. They have many shapes; short rows let them share buffers."""
_MOST_KEPT = 64
"""Maximum number of cached device tensors. More than one set is needed only if the set of parameters with a gradient
changes."""


def plain_name(name: str) -> str:
    """Return a parameter's name in the bare model, without the prefixes of DDP, compile and other wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's part of each tensor: FSDP2's shard, or the tensor itself. It shares the tensor's memory."""
    return [cast(Any, tensor).to_local() if is_dtensor(tensor) else tensor for tensor in tensors]


def local_gradients(params: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's part of each gradient; all `params` must have one."""
    return local_tensors(cast(Tensor, param.grad) for param in params)


@runtime_checkable
class StacksTensors(Protocol):
    """A module with layers that store several matrices as one tensor, such as those of queries, keys and values."""

    def stacked_layers(self) -> Mapping[str, int]:
        """Map the dotted names of these layers, relative to the module, to the number of matrices in each. The matrices
        have equal height and are stored one below another. Biases of such a layer are stacked in the same way."""


def stacked_parameters(model: nn.Module) -> dict[Tensor, int]:
    """Map each parameter that stores several tensors of equal height one below another to their number.

    An optimizer applies its per-tensor operations (a norm, a mean, an orthogonal matrix) to each of them, so that
    updates do not depend on how a model stores its weights.
    """
    num_tensors: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            packed = (module.in_proj_weight, module.in_proj_bias)
            num_tensors |= {parameter: 3 for parameter in packed if parameter is not None}
        elif isinstance(module, StacksTensors):
            for name, num_parts in module.stacked_layers().items():
                num_tensors |= dict.fromkeys(module.get_submodule(name).parameters(recurse=False), num_parts)
    return num_tensors


def part_rows(param: Tensor, num_parts: int) -> list[slice]:
    """Return, for each of the tensors in `param`, its rows in this rank's shard; a slice may be empty."""
    first, num_rows = row_offset(param), len(local_tensors([param])[0])
    height = len(param) // num_parts
    ends = [min(max(part * height - first, 0), num_rows) for part in range(num_parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


class Batches:
    """Buffers with one number per gradient element. On a GPU, rows of equal length from all parameters share one
    buffer, so that one kernel serves them all. A CPU gains nothing from this, so there each parameter has its own
    buffer."""

    def __init__(self, params: Sequence[Tensor], stacked: Mapping[Tensor, int], kept: dict[Any, Tensor]) -> None:
        """Lay out the buffers. `kept` caches tensors on the device from one update to the next."""
        self.stacked, self.kept = stacked, kept
        by_layout: dict[Any, list[Tensor]] = {}
        for index, (param, local) in enumerate(zip(params, local_tensors(params), strict=True)):
            is_alone = reads_at_once(local.device) or not local.is_contiguous()
            layout = (None, index) if is_alone else (self._row_length(param, local), local.dtype)
            by_layout.setdefault(layout, []).append(param)
        self.members = [sorted(members, key=self._height) for members in by_layout.values()]
        """Parameters of each buffer, equal shapes side by side."""
        self.params = [param for members in self.members for param in members]
        self.owners = [param for param in self.params for _ in range(stacked.get(param, 1))]
        """Parameter of each tensor: the items of `params`, each repeated once per tensor that it contains."""
        self.buffers: list[Tensor] = []
        """Float32 or wider: (number of rows, row length), or the shape of the local shard if a parameter has its
        own."""
        self.row_lengths: list[int | None] = [length for length, _ in by_layout]
        """Row length of each buffer; None: the buffer belongs to one parameter."""
        for length, members in zip(self.row_lengths, self.members, strict=True):
            shards = local_tensors(members)
            dtype = torch.promote_types(shards[0].dtype, torch.float32)
            if length is None:
                self.buffers.append(torch.empty_like(shards[0], dtype=dtype))
            else:
                num_rows = sum(shard.numel() for shard in shards) // length
                self.buffers.append(shards[0].new_empty(num_rows, length, dtype=dtype))

    def _row_length(self, param: Tensor, local: Tensor) -> int:
        """Return a row length such that no row belongs to two tensors; for a matrix its own."""
        if local.ndim > 1:
            length = max(local.shape[1:].numel(), 1)
            return length if local.ndim == 2 else math.gcd(length, _KERNEL_ROW)
        num_parts = self.stacked.get(param, 1)
        ends = [local.numel()] if num_parts == 1 else [rows.stop for rows in part_rows(param, num_parts)]
        return math.gcd(*ends) or 1

    def _height(self, param: Tensor) -> tuple[int, int, int]:
        num_parts = self.stacked.get(param, 1)
        return param.ndim, len(param) // num_parts if param.ndim else 1, num_parts

    def views(self) -> list[Tensor]:
        """Return one view for each of `params`, with the shape of its shard."""
        views: list[Tensor] = []
        for buffer, length, members in zip(self.buffers, self.row_lengths, self.members, strict=True):
            shards = local_tensors(members)
            if length is None:
                views.append(buffer)
            else:
                parts = buffer.split([shard.numel() // length for shard in shards])
                views += [part.view(shard.shape) for part, shard in zip(parts, shards, strict=True)]
        return views

    def norms(self, *lists: Sequence[Tensor]) -> Tensor:
        """Return the 2-norm of every tensor, (len(lists), number of tensors). Tensors that share a parameter count
        separately. Each list has shards like those of `params`."""
        parts: list[Tensor] = []
        for shards in lists:
            for shard, param in zip(shards, self.params, strict=True):
                parts += self._parts(param, shard)
        return tensor_norms(parts, self.owners * len(lists)).view(len(lists), -1)

    def root_sizes(self) -> Tensor:
        """Return the root of the number of elements of each tensor. A norm divided by it is a root mean square."""
        return self.on_device(
            "root sizes",
            lambda: torch.tensor([float(owner.numel() // self.stacked.get(owner, 1)) for owner in self.owners]).sqrt(),
        )

    def scale_(self, factors: Tensor) -> None:
        """Multiply each tensor in the buffers by its factor."""
        by_row = factors[self.on_device("rows", self._owners_of_rows)] if any(self.row_lengths) else factors
        index = first_row = 0
        for buffer, length, members in zip(self.buffers, self.row_lengths, self.members, strict=True):
            num_tensors = sum(self.stacked.get(param, 1) for param in members)
            if length is None:
                own = factors[index : index + num_tensors]
                for part, factor in zip(self._parts(members[0], buffer), own, strict=True):
                    part.mul_(factor)
            else:
                buffer.mul_(by_row[first_row : first_row + len(buffer), None])
                first_row += len(buffer)
            index += num_tensors

    def _parts(self, param: Tensor, shard: Tensor) -> list[Tensor]:
        """Return the rows of a shard of the parameter that belong to each of its tensors."""
        num_parts = self.stacked.get(param, 1)
        return [shard] if num_parts == 1 else [shard[rows] for rows in part_rows(param, num_parts)]

    def _owners_of_rows(self) -> Tensor:
        """Return the index of the tensor that each row belongs to, for buffers that several parameters share."""
        counts = [
            part.numel() // length if length else 0
            for length, members in zip(self.row_lengths, self.members, strict=True)
            for param, shard in zip(members, local_tensors(members), strict=True)
            for part in self._parts(param, shard)
        ]
        return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))

    def on_device(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return the cached result of `make` for these parameters, on their device."""
        key = (name, *map(id, self.params))
        if key not in self.kept:
            if len(self.kept) >= _MOST_KEPT:
                self.kept.clear()
            self.kept[key] = from_host(make(), self.buffers[0].device)
        return self.kept[key]


def row_offset(param: Tensor) -> int:
    """Return the index of the first row of this rank's shard."""
    if not is_dtensor(param):
        return 0
    mesh, axis = sharding(param)
    return _first_row(param, mesh.get_local_rank(axis))


def num_local_elements(param: Tensor, rank: int) -> int:
    """Return the number of elements of `param` that `rank` keeps. Shards are on neighbouring ranks."""
    if not is_dtensor(param):
        return param.numel()
    mesh, axis = sharding(param)
    place = rank % mesh.size(axis)
    return (_first_row(param, place + 1) - _first_row(param, place)) * param.shape[1:].numel()


def _first_row(param: Tensor, place: int) -> int:
    """Return the index of the first row of a shard, which is at `place` on its mesh axis."""
    mesh, axis = sharding(param)
    # FSDP2 gives each rank an equal number of rows, rounded up; the last ranks may have fewer or none.
    return min(place * -(-param.shape[0] // mesh.size(axis)), param.shape[0])


def sharding(param: Tensor) -> tuple[DeviceMesh, int]:
    """Return the mesh of a sharded parameter and the mesh axis that shards its rows; other axes hold copies."""
    sharded = cast(Any, param)
    axes = [axis for axis, placement in enumerate(sharded.placements) if not placement.is_replicate()]
    if len(axes) != 1 or not sharded.placements[axes[0]].is_shard(0):
        raise ValueError(f"expected shards of rows on one mesh axis, not {sharded.placements}")
    return sharded.device_mesh, axes[0]


def tensor_norms(shards: Sequence[Tensor], layout: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of each whole tensor, (len(shards),) float32 or wider. All `shards` are on one device.

    `layout` has for each shard a tensor that is sharded in the same way. If it is a DTensor, the norm is taken over the
    shards of all ranks, in one collective per mesh. The host does not wait for the device.
    """
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
        from torch.distributed.tensor import DTensor, Partial, Replicate  # 0.5 s unless already loaded

        parts = [Replicate() if placement.is_replicate() else Partial() for placement in placements]
        places = from_host(indices, norms.device)
        squares = DTensor.from_local(norms[places].square(), mesh, parts, run_check=False)
        norms[places] = squares.full_tensor().sqrt()
    return norms


def _norms(shards: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of each tensor, as one tensor.

    The norm of a long tensor on a CPU is the root of its product with itself, which uses all threads and adds up more
    exactly. MKL adds up in an order that depends on the address, and DDP places a gradient elsewhere in the first step
    after a start, so a resumed run needs the copy to repeat the same digits.
    """
    is_long = [_is_long(shard) for shard in shards]
    norms = list(
        torch._foreach_norm(
            [shard.new_zeros(()) if long else shard for shard, long in zip(shards, is_long, strict=True)]
        )
    )
    for index, (shard, long) in enumerate(zip(shards, is_long, strict=True)):
        if long:
            flat = shard.view(-1)
            if flat.data_ptr() % 64:  # the alignment of new tensors
                flat = flat.clone()
            norms[index] = torch.dot(flat, flat).sqrt_()
    return torch.stack(norms)


def _is_long(shard: Tensor) -> bool:
    is_float32_cpu = reads_at_once(shard.device) and shard.dtype == torch.float32
    return is_float32_cpu and shard.numel() >= _LONG and shard.is_contiguous()
