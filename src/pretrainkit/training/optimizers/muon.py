"""Muon: the momentum of each hidden matrix, made nearly orthogonal, is its update; AdamW for all other parameters.

Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/ (momentum, Newton-Schulz iteration and its
coefficients); Liu et al. 2025, https://arxiv.org/abs/2502.16982 (weight decay, and updates as large as AdamW's, so
that one learning rate serves both).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pretrainkit.dist.weights import as_part_of, sharded_as, whole
from pretrainkit.training.eager import GroupOptimizer
from pretrainkit.training.optimizers.parameters import local_gradients, local_tensors

ADAMW_RMS = 0.2
"""Root mean square that AdamW's updates usually have, and Muon's are given."""
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
_EPSILON = 1e-7


def orthogonalised(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(..., m, n) float32 to matrices of the same singular vectors whose singular values are about 1 (0.7 to 1.2);
    float32. A matrix of zeros stays zero. `dtype` is that of the products: the iteration forgives the rounding of
    bfloat16."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    wide = matrices.mT if is_tall else matrices
    (made,) = _orthogonalised([wide.reshape(-1, *wide.shape[-2:])], dtype)
    made = made.view(wide.shape).float()
    return made.mT if is_tall else made


def _orthogonalised(batches: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The same for batches of matrices, (number, m, at least m), in `dtype`. Those of equal m share one of the three
    products of an iteration: their Gram matrices are equally large."""
    norms = [torch.linalg.matrix_norm(one, keepdim=True) for one in batches]
    torch._foreach_add_(norms, _EPSILON)
    found = [
        torch.div(one, norm, out=torch.empty_like(one, dtype=dtype)) for one, norm in zip(batches, norms, strict=True)
    ]
    by_height: dict[int, list[int]] = {}
    for index, one in enumerate(found):
        by_height.setdefault(one.shape[1], []).append(index)
    a, b, c = _COEFFICIENTS
    for indices in by_height.values():
        counts = [len(found[index]) for index in indices]
        height = found[indices[0]].shape[1]
        grams = found[indices[0]].new_empty(sum(counts), height, height)
        for _ in range(_NUM_ITERATIONS):
            for index, gram in zip(indices, grams.split(counts), strict=True):
                torch.bmm(found[index], found[index].mT, out=gram)
            polynomials = torch.baddbmm(grams, grams, grams, beta=b, alpha=c)
            for index, polynomial in zip(indices, polynomials.split(counts), strict=True):
                found[index] = torch.baddbmm(found[index], polynomial, found[index], beta=a)
    return found


class Muon(GroupOptimizer):
    """m = momentum * m + (1 - momentum) * g;  u = orthogonalised((1 - momentum) * g + momentum * m);
    p -= lr * (weight_decay * p + ADAMW_RMS * sqrt(max(rows, columns)) * u)

    for the parameters of groups that have `num_parts`: so many matrices of equal height lie in each of their tensors
    below each other (3 where query, key and value are one layer), and each is made orthogonal by itself, as Jordan et
    al. advise. The others are updated by AdamW.

    Where FSDP2 keeps a shard of a matrix per rank, every rank gathers the whole of its momentum and keeps its own rows
    of the update: the numbers are those of one process.
    """

    usual: ClassVar = {"momentum": 0.95, "betas": (0.9, 0.999), "eps": 1e-6, "num_parts": 0}

    def __init__(self, params: ParamsT, lr: float, *, dtype: torch.dtype = torch.float32, **settings: Any) -> None:
        """`dtype`: see `orthogonalised`."""
        super().__init__(params, lr, **settings)
        self.dtype = dtype

    def _update_groups(self, groups: Sequence[tuple[list[Tensor], dict[str, Any]]]) -> None:
        alike: dict[tuple[float, ...], list[tuple[list[Tensor], dict[str, Any]]]] = {}
        for params, group in groups:
            if group["num_parts"]:
                alike.setdefault((group["lr"], group["weight_decay"], group["momentum"]), []).append((params, group))
            else:
                self._update(params, group)
        for members in alike.values():
            parts = [group["num_parts"] for params, group in members for _ in params]
            self._update_matrices([param for params, _ in members for param in params], parts, members[0][1])

    def _update_matrices(self, params: list[Tensor], parts: Sequence[int], group: dict[str, Any]) -> None:
        """Update parameters that hold so many matrices each, by all settings of the group but `num_parts`."""
        grads, buffers = local_gradients(params), self._moments(params, "momentum_buffer")
        self._average(buffers, grads, 1 - group["momentum"])
        ahead = dict(enumerate(torch._foreach_lerp(grads, buffers, group["momentum"])))
        updates = self._directions(params, ahead, parts)
        self._subtract(local_tensors(params), updates, lr=group["lr"], decay=group["weight_decay"])

    def _directions(self, params: Sequence[Tensor], ahead: dict[int, Tensor], parts: Sequence[int]) -> list[Tensor]:
        """What of each update lies on this rank. Matrices of one shape, or of one shape turned, are one batch. Takes
        tensors out of `ahead`, by index of the parameter, so that their memory is free for the batches."""
        shapes: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for index, param in enumerate(params):
            height, width = len(param) // parts[index], param.shape[1]
            wide_and_tall = shapes.setdefault(tuple(sorted((height, width))), ([], []))
            wide_and_tall[height > width].append(index)

        def gathered(index: int) -> Tensor:
            """Stacked matrices lie below each other, so each is a run of rows."""
            matrices = whole(as_part_of(ahead.pop(index), params[index]))
            return matrices.view(parts[index], -1, matrices.shape[1])

        batches = [
            torch.cat([*map(gathered, wide), *(gathered(index).mT for index in tall)]) for wide, tall in shapes.values()
        ]
        results: list[Tensor] = []
        sizes: list[float] = []
        updates: dict[int, Tensor] = {}
        for (shape, wide_and_tall), batch in zip(shapes.items(), _orthogonalised(batches, self.dtype), strict=True):
            counts = [[parts[index] for index in members] for members in wide_and_tall]
            for members, nums, own in zip(wide_and_tall, counts, batch.split([*map(sum, counts)]), strict=True):
                if not members:
                    continue
                if members is wide_and_tall[0]:
                    results.append(own.float())
                else:
                    results.append(torch.empty_like(own.mT, dtype=torch.float32, memory_format=torch.contiguous_format))
                    results[-1].copy_(own.mT)
                sizes.append(ADAMW_RMS * shape[1] ** 0.5)
                updates |= zip(members, results[-1].split(nums), strict=True)
        torch._foreach_mul_(results, sizes)
        return local_tensors(
            sharded_as(param, updates[index].reshape(param.shape)) for index, param in enumerate(params)
        )

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update by AdamW."""
        for step, members in self._counted(params):
            decay = group["weight_decay"]
            self._adam(local_tensors(members), members, step, group, lr=group["lr"], weight_decay=decay)
