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
"""Root mean square of AdamW's usual updates. Muon scales its updates to it."""
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
_EPSILON = 1e-7


def orthogonalised(batches: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return matrices with the same singular vectors, but singular values of about 1 (0.7 to 1.2).

    Each batch is (number, m, at least m), in float32. Matrices of zeros stay zero. `dtype` is that of the products and
    of the results; the iteration tolerates the rounding of bfloat16. Batches of equal m share one of the three products
    of an iteration, because their Gram matrices have the same size.
    """
    norms = [torch.linalg.matrix_norm(batch, keepdim=True) for batch in batches]
    torch._foreach_add_(norms, _EPSILON)
    results = [
        torch.div(batch, norm, out=torch.empty_like(batch, dtype=dtype))
        for batch, norm in zip(batches, norms, strict=True)
    ]
    by_height: dict[int, list[int]] = {}
    for index, result in enumerate(results):
        by_height.setdefault(result.shape[1], []).append(index)
    a, b, c = _COEFFICIENTS
    for indices in by_height.values():
        counts = [len(results[index]) for index in indices]
        height = results[indices[0]].shape[1]
        grams = results[indices[0]].new_empty(sum(counts), height, height)
        for _ in range(_NUM_ITERATIONS):
            for index, gram in zip(indices, grams.split(counts), strict=True):
                torch.bmm(results[index], results[index].mT, out=gram)
            polynomials = torch.baddbmm(grams, grams, grams, beta=b, alpha=c)
            for index, polynomial in zip(indices, polynomials.split(counts), strict=True):
                results[index] = torch.baddbmm(results[index], polynomial, results[index], beta=a)
    return results


class Muon(GroupOptimizer):
    """m = momentum * m + (1 - momentum) * g;  u = orthogonalised((1 - momentum) * g + momentum * m);
    p -= lr * (weight_decay * p + ADAMW_RMS * sqrt(max(rows, columns)) * u)

    This rule updates the parameters of groups with `num_parts`; AdamW updates all others. `num_parts` matrices of equal
    height are stored in each tensor one below another (3 where query, key and value are one layer). Each is
    orthogonalized alone, as Jordan et al. advise.

    Where FSDP2 keeps a shard of a matrix per rank, every rank gathers the whole momentum and keeps its own rows of the
    update. The numbers are the same as with one process.
    """

    usual: ClassVar = {"momentum": 0.95, "betas": (0.9, 0.999), "eps": 1e-6, "num_parts": 0}

    def __init__(self, params: ParamsT, lr: float, *, dtype: torch.dtype = torch.float32, **settings: Any) -> None:
        """Set up the optimizer; for `dtype` see `orthogonalised`."""
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
        """Update parameters with the settings of `group`; `parts` is the number of matrices in each of them."""
        grads, buffers = local_gradients(params), self._moments(params, "momentum_buffer")
        self._average(buffers, grads, 1 - group["momentum"])
        ahead = dict(enumerate(torch._foreach_lerp(grads, buffers, group["momentum"])))
        updates = self._directions(params, ahead, parts)
        self._subtract(local_tensors(params), updates, lr=group["lr"], decay=group["weight_decay"])

    def _directions(self, params: Sequence[Tensor], ahead: dict[int, Tensor], parts: Sequence[int]) -> list[Tensor]:
        """Return this rank's part of each update. Matrices of the same shape, or its transpose, form one batch. Takes
        tensors out of `ahead`, by index of the parameter, to free their memory for the batches."""
        shapes: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for index, param in enumerate(params):
            height, width = len(param) // parts[index], param.shape[1]
            wide_and_tall = shapes.setdefault(tuple(sorted((height, width))), ([], []))
            wide_and_tall[height > width].append(index)

        def gathered(index: int) -> Tensor:
            """Gather the stacked matrices of a parameter, (number, height, width). Each is a span of rows."""
            matrices = whole(as_part_of(ahead.pop(index), params[index]))
            return matrices.view(parts[index], -1, matrices.shape[1])

        batches = [
            torch.cat([*map(gathered, wide), *(gathered(index).mT for index in tall)]) for wide, tall in shapes.values()
        ]
        results: list[Tensor] = []
        sizes: list[float] = []
        updates: dict[int, Tensor] = {}
        for (shape, wide_and_tall), batch in zip(shapes.items(), orthogonalised(batches, self.dtype), strict=True):
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
