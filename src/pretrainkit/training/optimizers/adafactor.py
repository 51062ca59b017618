"""Adafactor: second moments of matrices kept as one number per row and one per column, and steps relative to the size
of the parameter.

Sources: Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235, as Flax and T5X compute it: no bias correction, a
decay that starts at 0, a step that is clipped by its own root mean square. For plain matrices and vectors; T5X's rules
for stacked layers and heads come to the same there. Like T5X's rules for a batch of matrices, each of several that are
stored as one tensor has its own means, scale and clipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pretrainkit.dist.weights import is_dtensor
from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.config import AdafactorConfig
from pretrainkit.training.optimizers.parameters import (
    Batches,
    local_gradients,
    local_tensors,
    part_rows,
    row_offset,
    sharding,
)

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
class _Matrices:
    """Equally shaped matrices with a factored second moment, each a parameter or one of those in a parameter.

    Dimensions: N matrices, R rows, C columns, L rows on this rank.
    """

    params: list[Tensor]
    values_NLC: Tensor
    num_rows: int
    offset: int
    """Of the local rows among R."""
    by_row: list[Tensor]
    """The moments: of each matrix the means of rows, (R,)."""
    by_column: list[Tensor]
    """And of columns, (C,)."""

    def means(self) -> tuple[Tensor, Tensor]:
        """Means of rows, (N, R), and sums of columns, (N, C); where sharded, this rank's share of a sum over ranks."""
        columns_NC, rows_NL = self.values_NLC.sum(1), self.values_NLC.mean(2)
        if not is_dtensor(self.params[0]):
            return rows_NL, columns_NC
        rows_NR = rows_NL.new_zeros(len(rows_NL), self.num_rows)
        rows_NR[:, self.offset : self.offset + rows_NL.shape[1]] = rows_NL
        return rows_NR, columns_NC


class Adafactor(GroupOptimizer):
    """u = g / root of the (factored) second moment, clipped to an RMS of `clipping_threshold`;
    p -= lr * max(epsilon2, rms(p)) * u.

    Means are over the whole tensor, also where FSDP2 keeps a shard of it per rank. `v_row` and `v_col` of a factored
    parameter are whole on every rank: they are small.
    """

    def __init__(self, params: ParamsT, lr: float, config: AdafactorConfig, **settings: Any) -> None:
        super().__init__(params, lr, **settings)
        self.config = config

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for step, members in self._counted(params):
            since = step - self.config.step_offset if self.config.step_offset else step
            share = since.clamp(min=1.0) ** -self.config.decay_rate
            self._update_alike(Batches(members, self.stacked), share, group)

    def _update_alike(self, batches: Batches, share: Tensor, group: dict[str, Any]) -> None:
        """Update parameters into whose second moment the new square enters with this share."""
        config, params, updates = self.config, batches.params, batches.wholes()
        weights = local_tensors(params)
        self._directions(batches, share)
        update_rms, weight_rms = batches.norms(updates, weights) / batches.root_sizes()
        factors = group["lr"] / (update_rms / config.clipping_threshold).clamp(min=1.0)
        if config.multiply_by_parameter_scale:
            factors = factors * weight_rms.clamp(min=config.epsilon2, max=config.max_parameter_scale)
        batches.scale_(factors)
        if config.beta1 is not None:
            first = self._moments(params, "m")
            self._average(first, self._or_if_nan(updates, first), 1 - config.beta1)
            torch._foreach_copy_(updates, first)
        decay = self._decay(group)
        self._subtract(weights, self._or_if_nan(updates, weights, -decay), decay=decay)

    def _decay(self, group: dict[str, Any]) -> float:
        """The share of the parameter that is lost in this step: not multiplied by the learning rate."""
        exponent = self.config.weight_decay_lr_exponent
        return group["weight_decay"] * (1.0 if exponent is None else group["lr"] ** exponent)

    def _or_if_nan(self, values: list[Tensor], others: list[Tensor], factor: float = 1.0) -> list[Tensor]:
        """The values; with skip_nan_updates `factor` x the others, which change nothing, in the place of NaN."""
        if not self.config.skip_nan_updates:
            return values
        pairs = zip(values, others, strict=True)
        return [torch.where(value.isnan(), other * factor, value) for value, other in pairs]

    def _directions(self, batches: Batches, share: Tensor) -> None:
        """Fill the batches with each gradient over the root of its new second moment."""
        matrices, plain, second = self._divided(batches)
        torch._foreach_copy_(batches.wholes(), local_gradients(batches.params))
        torch._foreach_mul_(batches.buffers, batches.buffers)
        torch._foreach_add_(batches.buffers, self.config.epsilon1)
        means = _summed([(one.params[0], one.means()) for one in matrices])
        if means:
            torch._foreach_div_([columns_NC for _, columns_NC in means], [float(one.num_rows) for one in matrices])
        old = [*second, *chain.from_iterable((*one.by_row, *one.by_column) for one in matrices)]
        new = [*plain, *chain.from_iterable((*rows_NR, *columns_NC) for rows_NR, columns_NC in means)]
        self._average(old, self._or_if_nan(new, old), share)
        torch._foreach_copy_(new, old)
        for one, (rows_NR, columns_NC) in zip(matrices, means, strict=True):
            shorter = rows_NR if one.num_rows <= columns_NC.shape[1] else columns_NC
            shorter.div_(shorter.mean(1, keepdim=True))
        torch._foreach_rsqrt_([*plain, *chain.from_iterable(means)])
        for one, (rows_NR, columns_NC) in zip(matrices, means, strict=True):
            rows_NL = rows_NR[:, one.offset : one.offset + one.values_NLC.shape[1]]
            torch.mul(rows_NL[:, :, None], columns_NC[:, None], out=one.values_NLC)
        torch._foreach_mul_(batches.wholes(), local_gradients(batches.params))

    def _divided(self, batches: Batches) -> tuple[list[_Matrices], list[Tensor], list[Tensor]]:
        """The factored ones; and of all others the values and second moments."""
        matrices: list[_Matrices] = []
        plain: list[Tensor] = []
        second: list[Tensor] = []
        for buffer, members in zip(batches.buffers, batches.members, strict=True):
            num_parts, shape = self.stacked.get(members[0], 1), members[0].shape
            if num_parts > 1:
                shape = torch.Size((shape[0] // num_parts, *shape[1:]))
            dims = factored_dims(shape, self.config)
            for param in members:
                self._prepare(param, num_parts, shape, dims)
            if dims is None:
                plain += buffer.unbind()
                second += local_tensors(self.state[param]["v"] for param in members)
                continue
            factors = [[self.state[param][name] for param in members] for name in ("v_row", "v_col")]
            by_row, by_column = (factors[dims.index(dim)] for dim in (0, 1))
            first = row_offset(members[0])
            if num_parts == 1:
                matrices.append(_Matrices(members, buffer, shape[0], first, by_row, by_column))
                continue
            for part, rows in enumerate(part_rows(members[0], num_parts)):
                own = ([one[part] for one in by_dim] for by_dim in (by_row, by_column))
                offset = max(first - part * shape[0], 0)
                matrices.append(_Matrices(members, buffer[:, rows], shape[0], offset, *own))
        return matrices, plain, second

    def _prepare(self, param: Tensor, num_parts: int, shape: torch.Size, dims: tuple[int, int] | None) -> None:
        """Make the state of a parameter that has none, and renew one of an earlier version."""
        state = self.state[param]
        if "v" not in state and "v_row" not in state:
            if dims is None:
                state["v"] = torch.zeros_like(param, dtype=torch.float32)
            else:
                for name, dim in zip(("v_row", "v_col"), dims, strict=True):
                    length = (shape[dim],) if num_parts == 1 else (num_parts, shape[dim])
                    state[name] = torch.zeros(length, dtype=torch.float32, device=local_tensors([param])[0].device)
        elif num_parts > 1 and "v_row" in state and state["v_row"].ndim == 1:
            self._divide(param, num_parts, dims)

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


def _summed(shares: list[tuple[Tensor, tuple[Tensor, Tensor]]]) -> list[tuple[Tensor, Tensor]]:
    """What this rank has of the means of each parameter's like, summed over the ranks that hold the rest of it. One
    all-reduce per mesh for all together."""
    groups: dict[tuple[DeviceMesh, int], list[Tensor]] = {}
    for param, pair in shares:
        if is_dtensor(param):
            groups.setdefault(sharding(param), []).extend(pair)
    for (mesh, axis), tensors in groups.items():
        # Sums over rows are parts of a sum, and columns have zeros outside of their rank's rows: one sum serves both.
        flat = torch.cat([tensor.view(-1) for tensor in tensors])
        dist.all_reduce(flat, group=mesh.get_group(axis))
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.view(-1).copy_(total)
    return [pair for _, pair in shares]
