"""Parameters whatever wraps them: plain names, local shards, norms over all shards."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pretrainkit.dist.weights import is_dtensor

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

_LONG = 1 << 14


def plain_name(name: str) -> str:
    """A parameter's name in the bare model: without the parts that DDP, compile and other wrappers put in."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What of each tensor lies on this rank (FSDP2's shard, or the tensor itself); shares its memory."""
    return [cast(Any, tensor).to_local() if is_dtensor(tensor) else tensor for tensor in tensors]


def tensor_norms(shards: Sequence[Tensor], layout: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each whole tensor, (len(shards),) float32 or wider. One collective per mesh for sharded tensors.

    Args:
        shards: What of each tensor lies on this rank, all on one device.
        layout: For each, a tensor that is sharded alike: where a DTensor, the norm is taken over all ranks' shards.

    Nothing waits for the device.
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
        from torch.distributed.tensor import DTensor, Partial, Replicate  # half a second; loaded by whoever sharded

        parts = [Replicate() if placement.is_replicate() else Partial() for placement in placements]
        squares = DTensor.from_local(norms[indices].square(), mesh, parts, run_check=False)
        norms[indices] = squares.full_tensor().sqrt()
    return norms


def _norms(shards: Sequence[Tensor]) -> Tensor:
    """One by one. Of long ones on a CPU the products with themselves, which use all threads and add up more exactly."""
    norms = torch.stack(torch._foreach_norm([one.new_zeros(()) if _is_long(one) else one for one in shards]))
    for index, one in enumerate(shards):
        if _is_long(one):
            norms[index] = torch.dot(one.view(-1), one.view(-1)).sqrt_()
    return norms


def _is_long(one: Tensor) -> bool:
    is_float32_cpu = one.device.type == "cpu" and one.dtype == torch.float32
    return is_float32_cpu and one.numel() >= _LONG and one.is_contiguous()
