"""Adafactor: second moments of matrices kept as one number per row and one per column, and steps relative to the size
of the parameter.

Sources: Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235, as Flax and T5X compute it: no bias correction, a
decay that starts at 0, a step that is clipped by its own root mean square. For plain matrices and vectors; T5X's rules
for stacked layers and heads come to the same there. Like T5X's rules for a batch of matrices, each of several that are
stored as one tensor has its own means, scale and clipping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pretrainkit.dist.devices import from_host
from pretrainkit.dist.weights import is_dtensor
from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.config import AdafactorConfig
from pretrainkit.training.optimizers.parameters import local_tensors, part_rows, row_offset, sharding, tensor_norms

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
    """A parameter, or one of the tensors that it holds below each other, and what of it lies on this rank."""

    param: Tensor
    shape: torch.Size
    """Of the whole."""
    weight: Tensor
    """Local, shares memory with the parameter."""
    grad: Tensor
    """Local, float32."""
    beta: float
    """How much of the second moment stays in this update."""
    state: dict[str, Tensor]
    """Views of `v`, or of `v_row` and `v_col`; and of `m`. Local, but the factors are whole."""
    dims: tuple[int, int] | None
    offset: int
    """Of the local rows among those of the whole."""


class Adafactor(GroupOptimizer):
    """u = g / root of the (factored) second moment, clipped to an RMS of `clipping_threshold`;
    p -= lr * max(epsilon2, rms(p)) * u.

    Means are over the whole tensor, also where FSDP2 keeps a shard of it per rank. `v_row` and `v_col` of a factored
    parameter are whole on every rank: they are small.
    """

    def __init__(self, params: ParamsT, lr: float, config: AdafactorConfig, **settings: Any) -> None:
        super().__init__(params, lr, **settings)
        self.config = config

    def _parts(self, param: Tensor) -> list[_Part]:
        """One for most parameters; for those in `stacked` one for each tensor, with a row of `v_row` and `v_col`."""
        state, num_parts = self.state[param], self.stacked.get(param, 1)
        shape = param.shape if num_parts == 1 else torch.Size((len(param) // num_parts, *param.shape[1:]))
        dims = factored_dims(shape, self.config)
        assert param.grad is not None
        weight, grad = local_tensors([param, param.grad])
        if not state:
            # As torch's own Adam: a float32 scalar on the host, so that reading it costs no synchronisation.
            state["step"] = torch.tensor(0.0)
            if dims is None:
                state["v"] = torch.zeros_like(param, dtype=torch.float32)
            else:
                for name, dim in zip(("v_row", "v_col"), dims, strict=True):
                    length = (shape[dim],) if num_parts == 1 else (num_parts, shape[dim])
                    state[name] = torch.zeros(length, dtype=torch.float32, device=weight.device)
            if self.config.beta1 is not None:
                state["m"] = torch.zeros_like(param, dtype=torch.float32)
        elif num_parts > 1 and "v_row" in state and state["v_row"].ndim == 1:
            self._divide(param, num_parts, dims)
        state["step"] += 1
        beta = 1.0 - max(state["step"].item() - self.config.step_offset, 1.0) ** -self.config.decay_rate
        local = {name: local_tensors([state[name]])[0] for name in ("v", "m") if name in state}
        factors = {name: state[name] for name in ("v_row", "v_col") if name in state}
        first = row_offset(param)
        if num_parts == 1:
            return [_Part(param, shape, weight, grad.float(), beta, local | factors, dims, first)]
        return [
            _Part(
                param,
                shape,
                weight[rows],
                grad[rows].float(),
                beta,
                {name: value[rows] for name, value in local.items()}
                | {name: value[part] for name, value in factors.items()},
                dims,
                max(first - part * shape[0], 0),
            )
            for part, rows in enumerate(part_rows(param, num_parts))
        ]

    def _divide(self, param: Tensor, num_parts: int, dims: tuple[int, int] | None) -> None:
        """Turn a second moment that was factored as one matrix, in a checkpoint of an earlier version, into one for
        each of its parts: the same estimate for every element."""
        state, whole_dims = self.state[param], factored_dims(param.shape, self.config)
        assert whole_dims is not None
        means = dict(zip(whole_dims, (state.pop("v_row"), state.pop("v_col")), strict=True))
        rows, columns = means[0], means[1] / means[0].mean()
        if dims is None:
            state["v"] = torch.zeros_like(param, dtype=torch.float32)
            own = local_tensors([state["v"]])[0]
            own.copy_(torch.outer(rows[row_offset(param) :][: len(own)], columns))
            return
        rows_of_parts = rows.view(num_parts, -1)
        by_dim = {0: rows_of_parts.clone(), 1: torch.outer(rows_of_parts.mean(1), columns)}
        state["v_row"], state["v_col"] = by_dim[dims[0]], by_dim[dims[1]]

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        parts = [part for param in params for part in self._parts(param)]
        config = self.config
        updates = self._directions(parts)
        sizes = from_host([float(math.prod(part.shape)) for part in parts], updates[0].device)
        layout = [part.param for part in parts]
        update_rms = tensor_norms(updates, layout) / sizes.sqrt()
        factors = group["lr"] / (update_rms / config.clipping_threshold).clamp(min=1.0)
        if config.multiply_by_parameter_scale:
            scales = tensor_norms([part.weight for part in parts], layout) / sizes.sqrt()
            factors = factors * scales.clamp(min=config.epsilon2, max=config.max_parameter_scale)
        torch._foreach_mul_(updates, list(factors.unbind()))
        if config.beta1 is not None:
            first = [part.state["m"] for part in parts]
            _put(first, torch._foreach_lerp(first, updates, 1 - config.beta1), is_nan_kept=config.skip_nan_updates)
            updates = [moment.clone() for moment in first]
        # The share of the parameter that is lost in this step: not multiplied by the learning rate.
        exponent = config.weight_decay_lr_exponent
        decay = group["weight_decay"] * (1.0 if exponent is None else group["lr"] ** exponent)
        weights = [part.weight for part in parts]
        kept = torch._foreach_mul(weights, 1.0 - decay) if decay else [weight.clone() for weight in weights]
        _put(weights, torch._foreach_sub(kept, updates), is_nan_kept=config.skip_nan_updates)

    def _directions(self, parts: list[_Part]) -> list[Tensor]:
        """Each gradient over the root of its new second moment; local."""
        means = _row_and_column_means(parts, self.config.epsilon1)
        updates = []
        for part, mean in zip(parts, means, strict=True):
            is_nan_kept = self.config.skip_nan_updates
            if mean is None:
                second = part.state["v"]
                square = part.grad.square().add_(self.config.epsilon1)
                _put([second], [torch.lerp(second, square, 1 - part.beta)], is_nan_kept=is_nan_kept)
                updates.append(part.grad * second.rsqrt())
                continue
            assert part.dims is not None
            row, col = part.state["v_row"], part.state["v_col"]
            new = [torch.lerp(old, now, 1 - part.beta) for old, now in zip((row, col), mean, strict=True)]
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
        over_rows = square.sum(0) / part.shape[0]
        over_columns = square.mean(1)
        if is_dtensor(part.param):
            # Each rank fills in its own rows; the sum over ranks is the whole.
            whole = over_columns.new_zeros(part.shape[0])
            whole[part.offset : part.offset + len(over_columns)] = over_columns
            over_columns = whole
            groups.setdefault(sharding(part.param), []).extend((over_rows, over_columns))
        by_reduced = {0: over_rows, 1: over_columns}
        smaller, larger = part.dims
        found.append((by_reduced[larger], by_reduced[smaller]))
    for (mesh, axis), vectors in groups.items():
        # Sums over rows are parts of a sum, and columns have zeros outside of their rank's rows: one sum serves both.
        flat = torch.cat(vectors)
        dist.all_reduce(flat, group=mesh.get_group(axis))
        for vector, total in zip(vectors, flat.split([len(v) for v in vectors]), strict=True):
            vector.copy_(total)
    return found
