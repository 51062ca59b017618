"""Metrics are ratios of sums over all batches, and evaluating changes nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pretrainkit.dist.env import World
from pretrainkit.errors import DataError
from pretrainkit.eval.evaluator import batches_of_rank, evaluate
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective
from pretrainkit.training.precision import Precision

FLOAT32 = Precision(torch.device("cpu"), torch.float32, uses_tf32=False, scaler=None)


class Errors(SeparableObjective):
    """Squared error where `is_scored`, and the share of errors below 1 in all examples."""

    @property
    def scales(self) -> dict[str, float]:
        return {"error": 2.0}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {"error": batch["is_scored"].sum().float()}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        error_b = (model(batch["x"])[:, 0] - batch["y"]).square()
        return {"error": LossSum((error_b * batch["is_scored"]).sum(), self.weights(batch)["error"])}

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        assert not torch.is_grad_enabled()
        assert not model.training
        is_near_b = (model(batch["x"])[:, 0] - batch["y"]).abs() < 1
        size = torch.tensor(float(len(is_near_b)))
        return self.losses(model, batch) | {"accuracy": LossSum(is_near_b.float().sum(), size)}

    def cost(self, batch: HostBatch) -> Cost:
        return Cost(len(batch["x"]), len(batch["x"]), len(batch["x"]), 0.0)


def make_batch(num_examples: int, seed: int) -> HostBatch:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(num_examples, 3)).astype(np.float32),
        "y": rng.normal(size=num_examples).astype(np.float32),
        "is_scored": rng.random(num_examples) < 0.3,
    }


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_unequal_batches_give_the_ratio_of_sums(sizes, seed):
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    batches = [make_batch(size, seed + i) for i, size in enumerate(sizes)]
    x, y, is_scored = (np.concatenate([b[name] for b in batches]) for name in ("x", "y", "is_scored"))
    difference = model(torch.from_numpy(x)).detach().numpy()[:, 0] - y
    # A mean over nothing is no perfect score: it is left out, and counts as 0 in the loss as it does in training.
    error = {"error": (difference[is_scored] ** 2).mean()} if is_scored.any() else {}
    near = {"accuracy": (abs(difference) < 1).mean()} if len(y) else {}
    found = evaluate(Errors(), model, batches, precision=FLOAT32)
    assert found == pytest.approx({**near, **error, "loss": 2 * error.get("error", 0.0)}, rel=1e-5)
    assert list(found) == sorted(found)


def test_many_batches_are_added_in_double_precision() -> None:
    class Total(Errors):
        def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
            return {"total": LossSum(batch["total"], torch.tensor(1.0))}

    # In float32, 2^24 + 1 is 2^24.
    batches = [{"total": np.array(total, np.float32)} for total in (2.0**24, 1.0, 1.0, 1.0)]
    assert evaluate(Total(), nn.Linear(1, 1), batches, precision=FLOAT32) == {"total": (2.0**24 + 3) / 4}


def test_modes_and_weights_come_back_even_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5))
    model.train()
    model[1].eval()
    evaluate(Errors(), model, [make_batch(4, 0)], precision=FLOAT32)
    assert [module.training for module in model.modules()] == [True, True, False]

    broken = make_batch(4, 0)
    del broken["y"]
    with pytest.raises(KeyError):
        evaluate(Errors(), model, [broken], precision=FLOAT32)
    assert [module.training for module in model.modules()] == [True, True, False]
    assert all(p.grad is None for p in model.parameters())


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate(Errors(), nn.Linear(3, 1), [], precision=FLOAT32)


@given(num_batches=st.integers(1, 40), world_size=st.integers(1, 12))
def test_every_batch_counts_on_one_rank_and_all_ranks_take_equally_many(num_batches, world_size):
    shares = [batches_of_rank(num_batches, World(rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert sorted(n for numbers, num_counted in shares for n in numbers[:num_counted]) == list(range(num_batches))
    assert len({len(numbers) for numbers, _ in shares}) == 1
    assert all(0 <= n < num_batches for numbers, _ in shares for n in numbers)


def test_batches_that_do_not_count_change_nothing() -> None:
    model = nn.Linear(3, 1)
    batches = [make_batch(size, size) for size in (4, 3, 5)]
    found = evaluate(Errors(), model, batches, precision=FLOAT32, num_counted=2)
    assert found == evaluate(Errors(), model, batches[:2], precision=FLOAT32)
