"""Muon: the momentum of each hidden matrix, made nearly orthogonal, is its update; AdamW for all other parameters.

Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/ (momentum, Newton-Schulz iteration and its
coefficients); Liu et al. 2025, https://arxiv.org/abs/2502.16982 (weight decay, and updates as large as AdamW's, so
that one learning rate serves both).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from pretrainkit.dist.weights import is_dtensor
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
    x = matrices.mT if is_tall else matrices
    x = (x / (torch.linalg.matrix_norm(x, keepdim=True) + _EPSILON)).to(dtype)
    a, b, c = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.mT
        polynomial = b * gram + c * (gram @ gram)
        x = a * x + polynomial @ x
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
        states = self._states(params, "momentum_buffer")
        momentum = group["momentum"]
        grads = local_gradients(params)
        buffers = local_tensors(state["momentum_buffer"] for state in states)
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        ahead = torch._foreach_lerp(grads, buffers, momentum)
        updates = self._directions(params, ahead, group["num_parts"])
        weights = local_tensors(params)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _directions(self, params: Sequence[Tensor], ahead: Sequence[Tensor], num_parts: int) -> list[Tensor]:
        """What of each update lies on this rank. Matrices of one shape are one batch."""
        by_shape: dict[torch.Size, list[int]] = {}
        for index, param in enumerate(params):
            by_shape.setdefault(param.shape, []).append(index)
        updates: list[Tensor] = [*ahead]
        for (height, width), members in by_shape.items():
            whole = torch.stack([_gathered(ahead[index], params[index]) for index in members])
            # Stacked matrices lie below each other, so each is a run of rows.
            parts = whole.view(len(members), num_parts, height // num_parts, width)
            scale = ADAMW_RMS * max(parts.shape[-2:]) ** 0.5
            results = orthogonalised(parts, self.dtype).mul_(scale).reshape(whole.shape)
            for index, result in zip(members, results, strict=True):
                updates[index] = _own_shard(result, params[index])
        return updates

    def _update_by_adamw(self, params: list[Tensor], group: dict[str, Any]) -> None:
        states = self._states(params, "exp_avg", "exp_avg_sq", has_step=True)
        beta1, beta2 = group["betas"]
        adamw(
            local_tensors(params),
            local_gradients(params),
            local_tensors(state["exp_avg"] for state in states),
            local_tensors(state["exp_avg_sq"] for state in states),
            [],
            [state["step"] for state in states],
            foreach=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _gathered(shard: Tensor, layout: Tensor) -> Tensor:
    """The whole of a tensor that is sharded as `layout` is. All ranks must call it."""
    if not is_dtensor(layout):
        return shard
    from torch.distributed.tensor import DTensor  # half a second; loaded by whoever sharded

    like = cast(Any, layout)
    return DTensor.from_local(
        shard, like.device_mesh, like.placements, run_check=False, shape=layout.shape, stride=layout.stride()
    ).full_tensor()


def _own_shard(whole: Tensor, layout: Tensor) -> Tensor:
    """What of `whole`, which every rank has, lies on this rank."""
    if not is_dtensor(layout):
        return whole
    from torch.distributed.tensor import distribute_tensor

    like = cast(Any, layout)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None).to_local()
