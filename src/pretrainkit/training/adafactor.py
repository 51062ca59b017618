"""Adafactor: second moments of matrices kept as one number per row and one per column, and steps relative to the size
of the parameter.

Sources: Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235, as Flax and T5X compute it: no bias correction, a
decay that starts at 0, a step that is clipped by its own root mean square. For plain matrices and vectors; T5X's rules
for stacked layers and heads come to the same there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pretrainkit.dist.weights import is_dtensor
from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizer_config import AdafactorConfig
from pretrainkit.training.parameters import local_tensors, tensor_norms

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def factored_dims(shape: Sequence[int], config: AdafactorConfig) -> tuple[int, int] | None:
    """(second largest dim, largest dim) of a matrix that is factored; None: it has a full second moment.

    Of equal sizes the earlier dim counts as the smaller.
    """
    if not config.factored or len(shape) != 2:
        return None
    largest = 0 if shape[0] > shape[1] else 1
    return None if min(shape) < config.min_dim_size_to_factor else (1 - largest, largest)


@dataclass(frozen=True, eq=False)
class _Part:
    """One parameter, and what of it lies on this rank."""

    whole: Tensor
    weight: Tensor
    """Local, shares memory with the parameter."""
    grad: Tensor
    """Local, float32."""
    state: dict[str, Tensor]
    dims: tuple[int, int] | None
    offset: int
    """Of the local rows in the whole tensor."""


class Adafactor(GroupOptimizer):
    """u = g / root of the (factored) second moment, clipped to an RMS of `clipping_threshold`;
    p -= lr * max(epsilon2, rms(p)) * u.

    Means are over the whole tensor, also where FSDP2 keeps a shard of it per rank. `v_row` and `v_col` of a factored
    parameter are whole on every rank: they are small.
    """

    def __init__(self, params: ParamsT, lr: float, config: AdafactorConfig, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.config = config

    def _part(self, param: Tensor) -> _Part:
        state = self.state[param]
        dims = factored_dims(param.shape, self.config)
        if not state:
            # As torch's own Adam: a float32 scalar on the host, so that reading it costs no synchronisation.
            state["step"] = torch.tensor(0.0)
            if dims is None:
                state["v"] = torch.zeros_like(param, dtype=torch.float32)
            else:
                smaller, larger = dims
                like = local_tensors([param])[0]
                state["v_row"] = torch.zeros(param.shape[smaller], dtype=torch.float32, device=like.device)
                state["v_col"] = torch.zeros(param.shape[larger], dtype=torch.float32, device=like.device)
            if self.config.beta1 is not None:
                state["m"] = torch.zeros_like(param, dtype=torch.float32)
        assert param.grad is not None
        weight, grad = local_tensors([param, param.grad])
        return _Part(param, weight, grad.float(), state, dims, _row_offset(param))

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        parts = [self._part(param) for param in params]
        config = self.config
        betas = []
        for part in parts:
            part.state["step"] += 1
            betas.append(1.0 - max(part.state["step"].item() - config.step_offset, 1.0) ** -config.decay_rate)
        updates = self._directions(parts, betas)
        sizes = torch.tensor([part.whole.numel() for part in parts], dtype=torch.float32, device=updates[0].device)
        wholes = [part.whole for part in parts]
        update_rms = tensor_norms(updates, wholes) / sizes.sqrt()
        factors = group["lr"] / (update_rms / config.clipping_threshold).clamp(min=1.0)
        if config.multiply_by_parameter_scale:
            scales = tensor_norms([part.weight for part in parts], wholes) / sizes.sqrt()
            factors = factors * scales.clamp(min=config.epsilon2, max=config.max_parameter_scale)
        torch._foreach_mul_(updates, list(factors.unbind()))
        if config.beta1 is not None:
            first = local_tensors(part.state["m"] for part in parts)
            _put([*first], torch._foreach_lerp(first, updates, 1 - config.beta1), is_nan_kept=config.skip_nan_updates)
            updates = [moment.clone() for moment in first]
        decay = self._decay(group)
        weights = [part.weight for part in parts]
        kept = torch._foreach_mul(weights, 1.0 - decay) if decay else [weight.clone() for weight in weights]
        _put(weights, torch._foreach_sub(kept, updates), is_nan_kept=config.skip_nan_updates)

    def _decay(self, group: dict[str, Any]) -> float:
        """The share of the parameter that is lost in this step: not multiplied by the learning rate."""
        exponent = self.config.weight_decay_lr_exponent
        return group["weight_decay"] * (1.0 if exponent is None else group["lr"] ** exponent)

    def _directions(self, parts: list[_Part], betas: list[float]) -> list[Tensor]:
        """Each gradient over the root of its new second moment; local."""
        means = _row_and_column_means(parts, self.config.epsilon1)
        updates = []
        for part, beta, mean in zip(parts, betas, means, strict=True):
            is_nan_kept = self.config.skip_nan_updates
            if mean is None:
                second = local_tensors([part.state["v"]])[0]
                square = part.grad.square().add_(self.config.epsilon1)
                _put([second], [torch.lerp(second, square, 1 - beta)], is_nan_kept=is_nan_kept)
                updates.append(part.grad * second.rsqrt())
                continue
            assert part.dims is not None
            row, col = part.state["v_row"], part.state["v_col"]
            new = [torch.lerp(old, now, 1 - beta) for old, now in zip((row, col), mean, strict=True)]
            _put([row, col], new, is_nan_kept=is_nan_kept)
            smaller, larger = part.dims
            row_factor, col_factor = (row / row.mean()).rsqrt(), col.rsqrt()
            own = slice(part.offset, part.offset + part.weight.shape[0])
            factors = {smaller: row_factor, larger: col_factor}
            updates.append(part.grad * factors[0][own, None] * factors[1])
        return updates


def _put(into: list[Tensor], values: Sequence[Tensor], *, is_nan_kept: bool) -> None:
    """Copy values; `is_nan_kept`: not those that are no number."""
    for old, new in zip(into, values, strict=True):
        old.copy_(torch.where(new.isnan(), old, new) if is_nan_kept else new)


def _row_and_column_means(parts: list[_Part], epsilon: float) -> list[tuple[Tensor, Tensor] | None]:
    """For each factored parameter the means of grad^2 over its largest dim and over its second largest, whole.

    One all-reduce per mesh for all sharded parameters together.
    """
    found: list[tuple[Tensor, Tensor] | None] = []
    groups: dict[tuple[DeviceMesh, int], list[Tensor]] = {}
    for part in parts:
        if part.dims is None:
            found.append(None)
            continue
        square = part.grad.square().add_(epsilon)
        over_rows = square.sum(0) / part.whole.shape[0]
        over_columns = square.mean(1)
        if is_dtensor(part.whole):
            # Each rank fills in its own rows; the sum over ranks is the whole.
            whole = over_columns.new_zeros(part.whole.shape[0])
            whole[part.offset : part.offset + len(over_columns)] = over_columns
            over_columns = whole
            groups.setdefault(_sharding(part.whole), []).extend((over_rows, over_columns))
        by_reduced = {0: over_rows, 1: over_columns}
        smaller, larger = part.dims
        found.append((by_reduced[larger], by_reduced[smaller]))
    for (mesh, axis), vectors in groups.items():
        flat = torch.cat(vectors)
        dist.all_reduce(flat, group=mesh.get_group(axis))
        for vector, total in zip(vectors, flat.split([len(v) for v in vectors]), strict=True):
            vector.copy_(total)
    return found


def _row_offset(param: Tensor) -> int:
    """The first row of this rank's shard."""
    if not is_dtensor(param):
        return 0
    mesh, axis = _sharding(param)
    rows_per_rank = -(-param.shape[0] // mesh.size(axis))
    return min(mesh.get_local_rank(axis) * rows_per_rank, param.shape[0])


def _sharding(param: Tensor) -> tuple[DeviceMesh, int]:
    """The mesh of a sharded parameter, and its axis that the rows are spread over; along any other there are copies."""
    sharded = cast(Any, param)
    axes = [axis for axis, placement in enumerate(sharded.placements) if not placement.is_replicate()]
    if len(axes) != 1 or not sharded.placements[axes[0]].is_shard(0):
        raise ValueError(f"Adafactor knows shards of rows on one mesh axis, not {sharded.placements}")
    return sharded.device_mesh, axes[0]
