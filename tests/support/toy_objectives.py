"""Small objectives of both kinds, for tests of everything between an objective and an update.

Dimensions: b examples of a microbatch, F features, D embedding width.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.training.objective import (
    Batch,
    Cost,
    CoupledObjective,
    Embedded,
    HostBatch,
    LossSum,
    SeparableObjective,
)


class TwoHeads(nn.Module):
    def __init__(self, num_features: int = 6, width: int = 8, dropout: float = 0.0, num_parts: int = 1) -> None:
        """`num_parts`: number of matrices that `body` claims to hold."""
        super().__init__()
        self.num_parts = num_parts
        self.body = nn.Linear(num_features, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.value = nn.Linear(width, 1)
        self.choice = nn.Linear(width, 3)

    def forward(self, x_bF: Tensor) -> tuple[Tensor, Tensor]:
        hidden_bD = self.dropout(self.norm(torch.tanh(self.body(x_bF))))
        return self.value(hidden_bD)[:, 0], self.choice(hidden_bD)

    def blocks(self) -> list[nn.Module]:
        return [self.body]

    def stacked_layers(self) -> dict[str, int]:
        return {"body": self.num_parts}


class TwoTerms(SeparableObjective):
    """`value` counts the examples where `is_scored`, `choice` counts all examples: weights of different size."""

    @property
    def scales(self) -> dict[str, float]:
        return {"value": 1.0, "choice": 0.5}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {
            "value": batch["is_scored"].sum().float(),
            "choice": torch.tensor(float(len(batch["x"])), device=batch["x"].device),
        }

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        value_b, choice_bC = model(batch["x"])
        weights = self.weights(batch)
        error_b = (value_b - batch["y"]).square() * batch["is_scored"]
        nll = F.cross_entropy(choice_bC.float(), batch["label"], reduction="sum")
        return {
            "value": LossSum(error_b.float().sum(), weights["value"]),
            "choice": LossSum(nll, weights["choice"]),
        }

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        terms = self.losses(model, batch)
        is_right_b = model(batch["x"])[1].argmax(-1) == batch["label"]
        return terms | {"choice_accuracy": LossSum(is_right_b.float().sum(), terms["choice"].weight)}

    def cost(self, batch: HostBatch) -> Cost:
        return Cost(examples=len(batch["x"]), tokens=len(batch["x"]), slots=len(batch["x"]), flops=0.0)


class TwoTowers(nn.Module):
    def __init__(self, num_features: int = 6, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.left = nn.Linear(num_features, width)
        self.right = nn.Linear(num_features, width)
        self.dropout = nn.Dropout(dropout)
        self.logit_scale = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x_bF: Tensor, y_bF: Tensor) -> dict[str, Tensor]:
        towers = {"left": self.left(x_bF), "right": self.right(y_bF)}
        return {name: F.normalize(self.dropout(torch.tanh(value_bD)), dim=-1) for name, value_bD in towers.items()}

    def blocks(self) -> list[nn.Module]:
        return [self.left, self.right]


class Contrast(CoupledObjective):
    """Both directions of the contrastive loss, and a second term that uses one tower only."""

    @property
    def scales(self) -> dict[str, float]:
        return {"contrast": 1.0, "spread": 0.25}

    def embed(self, model: nn.Module, batch: Batch) -> Embedded:
        return Embedded(model(batch["x"], batch["z"]), {"label": batch["label"]})

    def loss_from(
        self, model: nn.Module, vectors: dict[str, Tensor], labels: dict[str, Tensor], rows: slice
    ) -> dict[str, LossSum]:
        model = getattr(model, "module", model)
        left_BD, right_BD = vectors["left"], vectors["right"]
        target = torch.arange(len(left_BD))[rows]
        num_rows = torch.tensor(float(len(target)))
        logits_left = model.logit_scale.exp() * left_BD[rows] @ right_BD.T
        logits_right = model.logit_scale.exp() * right_BD[rows] @ left_BD.T
        both = F.cross_entropy(logits_left, target, reduction="sum") + F.cross_entropy(
            logits_right, target, reduction="sum"
        )
        spread = (left_BD[rows] @ left_BD.T).square().sum()
        return {"contrast": LossSum(both / 2, num_rows), "spread": LossSum(spread, num_rows * len(left_BD))}

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self.loss_from(model, *self.embed(model, batch), slice(0, len(batch["x"])))

    def cost(self, batch: HostBatch) -> Cost:
        return Cost(examples=len(batch["x"]), tokens=len(batch["x"]), slots=len(batch["x"]), flops=0.0)


def host_batch(num_examples: int, seed: int = 0, num_features: int = 6) -> HostBatch:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(num_examples, num_features)).astype(np.float32),
        "z": rng.normal(size=(num_examples, num_features)).astype(np.float32),
        "y": rng.normal(size=num_examples).astype(np.float32),
        "label": rng.integers(0, 3, num_examples),
        "is_scored": rng.random(num_examples) < 0.4,
    }


def to_tensors(batch: HostBatch, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def cut(batch: Batch, sizes: list[int]) -> list[dict[str, Tensor]]:
    """Consecutive slices of these sizes."""
    assert sum(sizes) == len(batch["x"])
    ends = np.cumsum(sizes)
    return [{name: t[end - size : end] for name, t in batch.items()} for size, end in zip(sizes, ends, strict=True)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n.removeprefix("module."): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
