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
from itertools import chain, groupby
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

    param: Tensor
    """One that holds some of them."""
    values_NLC: Tensor
    means_NL: Tensor
    """Of the rows of these values."""
    offset: int
    """Of the local rows among R."""
    by_row: list[Tensor]
    """The moments: of each matrix the means of rows, (R,)."""
    by_column: list[Tensor]
    """And of columns, (C,)."""

    @property
    def num_rows(self) -> int:
        return len(self.by_row[0])

    def means(self) -> tuple[Tensor, Tensor]:
        """Means of rows, (N, R), and sums of columns, (N, C); where sharded, this rank's share of a sum over ranks."""
        columns_NC, means_NL = self.values_NLC.sum(1), self.means_NL
        if not is_dtensor(self.param):
            return means_NL, columns_NC
        means_NR = means_NL.new_zeros(len(means_NL), self.num_rows)
        means_NR[:, self.offset : self.offset + means_NL.shape[1]] = means_NL
        return means_NR, columns_NC


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
            self._update_alike(self._batches(members), share, group)

    def _update_alike(self, batches: Batches, share: Tensor, group: dict[str, Any]) -> None:
        """Update parameters into whose second moment the new square enters with this share."""
        config, params, updates = self.config, batches.params, batches.wholes()
        weights = local_tensors(params)
        self._directions(batches, share)
        update_rms, weight_rms = batches.norms(updates, weights) / batches.root_sizes()
        most = config.clipping_threshold
        factors = group["lr"] * most / update_rms.clamp(min=most)
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
        """Return the values; with skip_nan_updates `factor` x the others, which change nothing, in the place of NaN."""
        if not self.config.skip_nan_updates:
            return values
        flat = torch.cat([value.reshape(-1) for value in values])  # so that two kernels serve them all
        is_nan = torch.ne(flat, flat, out=torch.empty_like(flat))
        flat.nan_to_num_(0.0, torch.inf, -torch.inf)
        sizes = [value.numel() for value in values]
        found, are_nan = (
            [part.view(value.shape) for part, value in zip(one.split(sizes), values, strict=True)]
            for one in (flat, is_nan)
        )
        torch._foreach_addcmul_(found, others, are_nan, value=factor)
        return found

    def _directions(self, batches: Batches, share: Tensor) -> None:
        """Fill the batches with each gradient over the root of its new second moment."""
        torch._foreach_copy_(batches.wholes(), local_gradients(batches.params))
        torch._foreach_mul_(batches.buffers, batches.buffers)
        torch._foreach_add_(batches.buffers, self.config.epsilon1)
        matrices, plain, second = self._divided(batches)
        means = _summed([(one.param, one.means()) for one in matrices])
        if means:
            torch._foreach_div_([columns_NC for _, columns_NC in means], [float(one.num_rows) for one in matrices])
        old = [*second, *chain.from_iterable((*one.by_row, *one.by_column) for one in matrices)]
        new = [*plain, *chain.from_iterable((*rows_NR, *columns_NC) for rows_NR, columns_NC in means)]
        self._average(old, self._or_if_nan(new, old), share)
        means, shorter = _by_length(means)
        torch._foreach_copy_([*plain, *chain.from_iterable((*rows, *columns) for rows, columns in means)], old)
        for sides in shorter:
            sides.div_(sides.mean(1, keepdim=True))
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
        views = iter(batches.wholes())
        for buffer, length, members in zip(batches.buffers, batches.row_lengths, batches.members, strict=True):
            first_row, row_means = 0, None
            for (shape, *_), group in groupby(members, self._layout):
                params = list(group)
                own, dims = [next(views) for _ in params], factored_dims(shape, self.config)
                rows = slice(first_row, first_row := first_row + sum(one.numel() for one in own) // (length or 1))
                for param in params:
                    self._prepare(param, self.stacked.get(param, 1), shape, dims)
                if dims is None:
                    plain += own
                    second += local_tensors(self.state[param]["v"] for param in params)
                    continue
                if row_means is None:
                    row_means = buffer.mean(1)  # of all that share the buffer, by one kernel
                matrices += self._factored(params, dims, buffer[rows], row_means[rows])
        return matrices, plain, second

    def _layout(self, param: Tensor) -> tuple[Any, ...]:
        """The shape of each tensor in the parameter, and what else is the same for those that are one batch."""
        num_parts = self.stacked.get(param, 1)
        shape = param.shape if num_parts == 1 else torch.Size((param.shape[0] // num_parts, *param.shape[1:]))
        if not is_dtensor(param):
            return (shape,)
        return shape, num_parts, row_offset(param), local_tensors([param])[0].shape

    def _factored(
        self, params: list[Tensor], dims: tuple[int, int], values: Tensor, row_means: Tensor
    ) -> list[_Matrices]:
        """The matrices in parameters of one layout whose shards' rows lie below each other in `values`."""
        names = dict(zip(dims, ("v_row", "v_col"), strict=True))
        moments = [[self.state[param][names[dim]] for param in params] for dim in (0, 1)]
        by_row, by_column = ([one.view(-1, one.shape[-1]).unbind() for one in by_dim] for by_dim in moments)
        height = by_row[0][0].shape[0]
        if not is_dtensor(params[0]):
            tensors = [list(chain.from_iterable(by_dim)) for by_dim in (by_row, by_column)]
            shape = (-1, height)
            return [_Matrices(params[0], values.unflatten(0, shape), row_means.unflatten(0, shape), 0, *tensors)]
        first, num_parts = row_offset(params[0]), len(by_row[0])
        shape = (len(params), len(values) // len(params))
        values_NLC, means_NL = values.unflatten(0, shape), row_means.unflatten(0, shape)
        return [
            _Matrices(
                params[0],
                values_NLC[:, rows],
                means_NL[:, rows],
                max(first - part * height, 0),
                [one[part] for one in by_row],
                [one[part] for one in by_column],
            )
            for part, rows in enumerate(part_rows(params[0], num_parts))
        ]

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


def _by_length(means: list[tuple[Tensor, Tensor]]) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Room for pairs of means of rows, (N, R), and of columns, (N, C); and the shorter side of all of them: those of
    one length are one tensor, (number of matrices, length)."""
    shorter = [pair[0] if pair[0].shape[1] <= pair[1].shape[1] else pair[1] for pair in means]
    counts: dict[int, list[int]] = {}
    for side in shorter:
        counts.setdefault(side.shape[1], []).append(len(side))
    joined = {length: shorter[0].new_empty(sum(nums), length) for length, nums in counts.items()}
    parts = {length: iter(whole.split(counts[length])) for length, whole in joined.items()}
    pairs = []
    for side, (rows_NR, columns_NC) in zip(shorter, means, strict=True):
        own = next(parts[side.shape[1]])
        pairs.append((own, columns_NC) if side is rows_NR else (rows_NR, own))
    return pairs, list(joined.values())


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
