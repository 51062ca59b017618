"""Adafactor: factored second moments of matrices, and steps relative to the size of the parameter.

A factored second moment has one number per row and one per column instead of one per element.

Sources: Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235, in the version of Flax and T5X: no bias correction, a
decay that starts at 0, and a step that is clipped by its own root mean square. For plain matrices and vectors, T5X's
rules for stacked layers and heads give the same result. Where several matrices are stored as one tensor, each of them
has its own means, scale and clipping, as in T5X's rules for a batch of matrices.
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

from pretrainkit.dist.devices import reads_at_once
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
    """Return (second largest dim, largest dim) of a matrix whose second moment is factored, or None for a full one.

    If both sizes are equal, the earlier dim counts as the smaller one.
    """
    if not config.factored or len(shape) != 2:
        return None
    largest = 0 if shape[0] > shape[1] else 1
    return None if min(shape) < config.min_dim_size_to_factor else (1 - largest, largest)


@dataclass(frozen=True, eq=False)
class _Matrices:
    """Equally shaped matrices with a factored second moment. Each is a parameter or a part of a parameter.

    Dimensions: N matrices, R rows, C columns, L rows on this rank.
    """

    param: Tensor
    """One of the parameters that contain these matrices."""
    values_NLC: Tensor
    rows_NL: Tensor
    """Sum of squares of each local row of the gradient."""
    columns_NC: Tensor
    """The same for columns."""
    offset: int
    """Index of the first local row among all R rows."""
    by_row: list[Tensor]
    """Row part of the second moment of each matrix, (R,)."""
    by_column: list[Tensor]
    """Column part of the second moment of each matrix, (C,)."""

    @property
    def num_rows(self) -> int:
        return len(self.by_row[0])

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return the sums of squares of rows, (N, R), and of columns, (N, C). If sharded: this rank's summand of
        both."""
        if not is_dtensor(self.param):
            return self.rows_NL, self.columns_NC
        rows_NR = self.rows_NL.new_zeros(len(self.rows_NL), self.num_rows)
        rows_NR[:, self.offset : self.offset + self.rows_NL.shape[1]] = self.rows_NL
        return rows_NR, self.columns_NC


class Adafactor(GroupOptimizer):
    """u = g / root of the (factored) second moment, clipped to an RMS of `clipping_threshold`;
    p -= lr * max(epsilon2, rms(p)) * u.

    Means are taken over the whole tensor, even where FSDP2 keeps a shard per rank. `v_row` and `v_col` of a factored
    parameter are small and therefore not sharded.
    """

    def __init__(self, params: ParamsT, lr: float, config: AdafactorConfig, **settings: Any) -> None:
        super().__init__(params, lr, **settings)
        self.config = config

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for step, members in self._counted(params):
            since = (step - self.config.step_offset).clamp(min=1.0) if self.config.step_offset else step
            share = since**-self.config.decay_rate
            self._update_alike(self._batches(members), share, group)

    def _update_alike(self, batches: Batches, share: Tensor, group: dict[str, Any]) -> None:
        """Update parameters at the same step; `share` is the weight of the new square in their second moment."""
        config, params, updates = self.config, batches.params, batches.views()
        weights = local_tensors(params)
        self._directions(batches, share)
        update_rms, weight_rms = batches.norms(updates, weights) / batches.root_sizes()
        most, decay = config.clipping_threshold, self._decay(group)
        is_scaled = config.multiply_by_parameter_scale
        scale = weight_rms.clamp(min=config.epsilon2, max=config.max_parameter_scale) if is_scaled else 1.0
        batches.scale_(scale / update_rms.clamp(min=most) * (group["lr"] * most))
        if config.beta1 is None:
            updates = self._or_if_nan(updates, weights, -decay)
        else:
            first = self._moments(params, "m")
            self._average(first, self._or_if_nan(updates, first), 1 - config.beta1)
            updates = first
        self._subtract(weights, updates, decay=decay)

    def _decay(self, group: dict[str, Any]) -> float:
        """Return the weight decay of this step, which is not multiplied by the learning rate."""
        exponent = self.config.weight_decay_lr_exponent
        return group["weight_decay"] * (1.0 if exponent is None else group["lr"] ** exponent)

    def _or_if_nan(self, values: list[Tensor], others: list[Tensor], factor: float = 1.0) -> list[Tensor]:
        """Return the values. With skip_nan_updates, each NaN becomes `factor` x the value at its place in `others`. Its
        element then does not change."""
        if not self.config.skip_nan_updates:
            return values
        # One tensor, so that one kernel serves all values.
        flat, other = torch.cat([value.reshape(-1) for value in (*values, *others)]).chunk(2)
        kept = torch.where(flat == flat, flat, other if factor == 1.0 else factor * other)
        parts = kept.split([value.numel() for value in values])
        return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]

    def _directions(self, batches: Batches, share: Tensor) -> None:
        """Fill the batches with each gradient divided by the root of its updated second moment."""
        torch._foreach_copy_(batches.views(), local_gradients(batches.params))
        is_squared = _squares_first(batches.buffers[0])
        if is_squared:
            torch._foreach_mul_(batches.buffers, batches.buffers)
        matrices, plain, second, rows = self._divided(batches)
        if not is_squared:
            norms = [*plain, *rows, *(stack.columns_NC for stack in matrices)]
            torch._foreach_mul_(norms, norms)
        means = _summed([(stack.param, stack.sums()) for stack in matrices])
        sizes = [(columns_NC.shape[1], rows_NR.shape[1]) for rows_NR, columns_NC in means]
        if means:
            torch._foreach_div_([*chain.from_iterable(means)], [*map(float, chain.from_iterable(sizes))])
        # T5X adds epsilon1 before it takes means. That gives the same result with one more pass over all elements.
        torch._foreach_add_([*plain, *chain.from_iterable(means)], self.config.epsilon1)
        old = [*second, *chain.from_iterable((*stack.by_row, *stack.by_column) for stack in matrices)]
        new = [*plain, *chain.from_iterable((*rows_NR, *columns_NC) for rows_NR, columns_NC in means)]
        self._average(old, self._or_if_nan(new, old), share)
        means, shorter, lengths = _side_by_side(means)
        torch._foreach_copy_([*plain, *chain.from_iterable((*rows, *columns) for rows, columns in means)], old)
        if shorter is not None:
            lengths_N = batches.on_device("lengths", lambda: torch.tensor(lengths, dtype=shorter.dtype))
            shorter.div_(shorter.sum(1, keepdim=True) / lengths_N[:, None])
        torch._foreach_rsqrt_([*plain, *chain.from_iterable(means)])
        for stack, (rows_NR, columns_NC) in zip(matrices, means, strict=True):
            rows_NL = rows_NR[:, stack.offset : stack.offset + stack.values_NLC.shape[1]]
            torch.mul(rows_NL[:, :, None], columns_NC[:, None], out=stack.values_NLC)
        torch._foreach_mul_(batches.views(), local_gradients(batches.params))

    def _divided(self, batches: Batches) -> tuple[list[_Matrices], list[Tensor], list[Tensor], list[Tensor]]:
        """Return the matrices with a factored second moment, the values and second moments of all other tensors, and
        the sums (see `_sums`) of the rows of each buffer with such matrices."""
        matrices: list[_Matrices] = []
        plain: list[Tensor] = []
        second: list[Tensor] = []
        all_rows: list[Tensor] = []
        views = iter(batches.views())
        for buffer, length, members in zip(batches.buffers, batches.row_lengths, batches.members, strict=True):
            first_row, row_sums = 0, None
            for (shape, *_), group in groupby(members, self._layout):
                params = list(group)
                own, dims = [next(views) for _ in params], factored_dims(shape, self.config)
                rows = slice(first_row, first_row := first_row + sum(view.numel() for view in own) // (length or 1))
                for param in params:
                    self._prepare(param, self.stacked.get(param, 1), shape, dims)
                if dims is None:
                    plain += own
                    second += local_tensors(self.state[param]["v"] for param in params)
                    continue
                if row_sums is None:
                    row_sums = _sums(buffer)  # one kernel for all parameters that share the buffer
                    all_rows.append(row_sums)
                matrices += self._factored(params, dims, buffer[rows], row_sums[rows])
        return matrices, plain, second, all_rows

    def _layout(self, param: Tensor) -> tuple[Any, ...]:
        """Return the shape of each tensor in the parameter, and whatever else must be equal within one `_Matrices`."""
        num_parts = self.stacked.get(param, 1)
        shape = param.shape if num_parts == 1 else torch.Size((param.shape[0] // num_parts, *param.shape[1:]))
        if not is_dtensor(param):
            return (shape,)
        return shape, num_parts, row_offset(param), local_tensors([param])[0].shape

    def _factored(
        self, params: list[Tensor], dims: tuple[int, int], values: Tensor, row_sums: Tensor
    ) -> list[_Matrices]:
        """Return the matrices of parameters of one layout; `values` has the rows of their shards, one after another."""
        names = dict(zip(dims, ("v_row", "v_col"), strict=True))
        moments = [[self.state[param][names[dim]] for param in params] for dim in (0, 1)]
        by_row, by_column = ([moment.view(-1, moment.shape[-1]).unbind() for moment in by_dim] for by_dim in moments)
        height = by_row[0][0].shape[0]
        if not is_dtensor(params[0]):
            tensors = [list(chain.from_iterable(by_dim)) for by_dim in (by_row, by_column)]
            values_NRC, rows_NR = values.unflatten(0, (-1, height)), row_sums.unflatten(0, (-1, height))
            return [_Matrices(params[0], values_NRC, rows_NR, _sums(values_NRC), 0, *tensors)]
        first, num_parts = row_offset(params[0]), len(by_row[0])
        shape = (len(params), len(values) // len(params))
        values_NLC, rows_NL = values.unflatten(0, shape), row_sums.unflatten(0, shape)
        return [
            _Matrices(
                params[0],
                values_NLC[:, rows],
                rows_NL[:, rows],
                _sums(values_NLC[:, rows]),
                max(first - part * height, 0),
                [by_part[part] for by_part in by_row],
                [by_part[part] for by_part in by_column],
            )
            for part, rows in enumerate(part_rows(params[0], num_parts))
        ]

    def _prepare(self, param: Tensor, num_parts: int, shape: torch.Size, dims: tuple[int, int] | None) -> None:
        """Create missing state of a parameter, and convert state of an earlier version."""
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
        """Convert a second moment of an earlier version, which was factored as one matrix, to one for each part. Every
        element keeps its estimate."""
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


def _squares_first(values: Tensor) -> bool:
    """True on a CPU, which squares all elements first: its kernel of norms takes three to five times as long as squares
    and two sums."""
    return reads_at_once(values.device)


def _sums(values: Tensor) -> Tensor:
    """Return the sums over dim 1 of squares, or on a GPU the norms along dim 1 of what is not squared yet."""
    return values.sum(1) if _squares_first(values) else torch.linalg.vector_norm(values, dim=1)


def _side_by_side(
    means: list[tuple[Tensor, Tensor]],
) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None, list[int]]:
    """Allocate pairs of row means, (N, R), and column means, (N, C), where the shorter sides are one tensor.

    Returns the pairs, the tensor of the shorter sides, and their lengths. The tensor has a row for each matrix, padded
    with zeros.
    """
    if not means:
        return [], None, []
    sizes = [min(rows.shape[1], columns.shape[1]) for rows, columns in means]
    counts = [len(rows) for rows, _ in means]
    shorter = means[0][0].new_zeros(sum(counts), max(sizes))
    pairs = []
    for part, size, (rows_NR, columns_NC) in zip(shorter.split(counts), sizes, means, strict=True):
        own = part[:, :size]
        pairs.append((own, columns_NC) if rows_NR.shape[1] == size else (rows_NR, own))
    return pairs, shorter, [size for size, num in zip(sizes, counts, strict=True) for _ in range(num)]


def _summed(shares: list[tuple[Tensor, tuple[Tensor, Tensor]]]) -> list[tuple[Tensor, Tensor]]:
    """Add up each rank's summands of the sums of rows and columns over the ranks that share a parameter, with one
    all-reduce per mesh. `shares` has pairs of a parameter and its summands; returns the summands, changed in place."""
    groups: dict[tuple[DeviceMesh, int], list[Tensor]] = {}
    for param, pair in shares:
        if is_dtensor(param):
            groups.setdefault(sharding(param), []).extend(pair)
    for (mesh, axis), tensors in groups.items():
        # Column sums add up over the ranks' rows, and row sums are zero outside a rank's rows: one sum serves both.
        flat = torch.cat([tensor.view(-1) for tensor in tensors])
        dist.all_reduce(flat, group=mesh.get_group(axis))
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.view(-1).copy_(total)
    return [pair for _, pair in shares]
