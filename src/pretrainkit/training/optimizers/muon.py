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
    x = (matrices.mT if is_tall else matrices).to(dtype)
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + _EPSILON)
    shape, x = x.shape, x.reshape(-1, *x.shape[-2:])
    a, b, c = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    x = x.view(shape)
    return (x.mT if is_tall else x).float()


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

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        if group["num_parts"]:
            self._update_matrices(params, group)
        else:
            self._update_by_adamw(params, group)

    def _update_matrices(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads, buffers = local_gradients(params), self._moments(params, "momentum_buffer")
        self._average(buffers, grads, 1 - group["momentum"])
        ahead = dict(enumerate(torch._foreach_lerp(grads, buffers, group["momentum"])))
        updates = self._directions(params, ahead, group["num_parts"])
        self._subtract(local_tensors(params), updates, lr=group["lr"], decay=group["weight_decay"])

    def _directions(self, params: Sequence[Tensor], ahead: dict[int, Tensor], num_parts: int) -> list[Tensor]:
        """What of each update lies on this rank. Matrices of one shape, or of one shape turned, are one batch. Takes
        tensors out of `ahead`, by index of the parameter, so that their memory is free for the batches."""
        batches: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for index, param in enumerate(params):
            height, width = len(param) // num_parts, param.shape[1]
            wide_and_tall = batches.setdefault(tuple(sorted((height, width))), ([], []))
            wide_and_tall[height > width].append(index)

        def gathered(index: int) -> Tensor:
            return whole(as_part_of(ahead.pop(index), params[index]))

        updates: dict[int, Tensor] = {}
        for (shorter, longer), (wide, tall) in batches.items():
            # Stacked matrices lie below each other, so each is a run of rows.
            parts = [gathered(index).view(num_parts, shorter, longer) for index in wide]
            parts += [gathered(index).view(num_parts, longer, shorter).mT for index in tall]
            matrices = torch.stack(parts)
            del parts
            results = orthogonalised(matrices, self.dtype).mul_(ADAMW_RMS * longer**0.5)
            del matrices
            for members, batch in ((wide, results[: len(wide)]), (tall, results[len(wide) :].mT)):
                for index, result in zip(members, batch.contiguous() if members else (), strict=True):
                    updates[index] = sharded_as(params[index], result.view(params[index].shape))
        return local_tensors(updates[index] for index in range(len(params)))

    def _update_by_adamw(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for step, members in self._counted(params):
            decay = group["weight_decay"]
            self._adam(local_tensors(members), members, step, group, lr=group["lr"], weight_decay=decay)
