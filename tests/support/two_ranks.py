"""Run by test_two_ranks.py as one of two processes, or four: does each of their checks and saves the results.

Arguments: the folder for the results. Its place comes from the environment, as from torchrun.
"""

import sys
from pathlib import Path

import torch
from torch import nn

from pretrainkit.dist.env import World, init_world
from pretrainkit.dist.parallelize import averages_gradients, gradient_sync, parallelize
from pretrainkit.eval.evaluator import evaluate
from pretrainkit.training.accumulate import accumulate, sum_over_ranks
from pretrainkit.training.ema import Ema
from pretrainkit.training.objective import AnyObjective, Cost
from pretrainkit.training.optimizers.build import build_optimizer, clip_gradients, step_if_finite
from pretrainkit.training.optimizers.config import AdafactorConfig, OptimizerConfig
from pretrainkit.training.optimizers.muon import Muon
from pretrainkit.training.precision import Precision
from pretrainkit.training.run import ParallelConfig
from pretrainkit.training.throughput import Peak, Throughput
from support.toy_objectives import Contrast, TwoHeads, TwoTerms, TwoTowers, cut, gradients, host_batch, to_tensors

FLOAT32 = Precision(device=torch.device("cpu"), compute_dtype=torch.float32, uses_tf32=False, scaler=None)
SIZES = {1: [[24]], 2: [[5, 1, 6], [2, 9, 1]], 4: [[5, 1], [4, 2], [2, 4], [1, 5]]}
"""Ranks to the sizes of each one's microbatches: a batch of 24 in all."""


OPTIMIZERS: dict[str, dict[str, object]] = {
    "adamw": {},
    "lamb": {"name": "lamb"},
    "lion": {"name": "lion"},
    "muon": {"name": "muon", "momentum": 0.95},
    "lars": {"name": "lars"},
    "relative adamw": {"scale_by_parameter_rms": True},
    "adafactor": {"name": "adafactor", "adafactor": AdafactorConfig(min_dim_size_to_factor=2, beta1=0.9)},
}


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(1)
    # 3 matrices of 3 rows, one of them on two ranks.
    return TwoHeads(width=9, num_parts=3) if kind == "separable" else TwoTowers()


def one_step(kind: str, strategy: str, optimizer_name: str, world: World) -> dict[str, object]:
    """The whole parameters after an update, the norm, and the loss terms, with these many ranks."""
    objective: AnyObjective = TwoTerms() if kind == "separable" else Contrast()
    layout = ParallelConfig(strategy=strategy, shard_ranks=2 if strategy == "hsdp" else None)
    model = parallelize(model_of(kind), layout, world, torch.float32)
    sizes = SIZES[world.world_size][world.rank]
    batch = to_tensors(host_batch(24))
    mine = {name: t.chunk(world.world_size)[world.rank] for name, t in batch.items()}
    config = OptimizerConfig(peak_lr=0.1, weight_decay=0.1, max_grad_norm=0.05).model_copy(
        update=OPTIMIZERS[optimizer_name]
    )
    optimizer = build_optimizer(model, config)
    if isinstance(optimizer, Muon):
        optimizer.dtype = torch.float32  # bfloat16 would turn the last bit of a sum into its third digit
    ema = Ema(model, 0.5)
    terms = accumulate(
        objective,
        model,
        cut(mine, sizes),
        world=world,
        precision=FLOAT32,
        gradient_sync=lambda enabled: gradient_sync(model, enabled),
        averages_gradients=averages_gradients(model),
    )
    grads = {name: whole(value) for name, value in gradients(model).items()}
    norm = clip_gradients(model.parameters(), config)
    clipped = {name: whole(value) for name, value in gradients(model).items()}
    is_skipped = step_if_finite(optimizer, FLOAT32, norm)
    assert not is_skipped
    ema.update(model)
    return {
        "grads": grads,
        "norm": norm,
        "clipped": clipped,
        "params": {n.removeprefix("module."): whole(p.detach()) for n, p in model.named_parameters()},
        "ema": {name: whole(value) for name, value in ema.state_dict().items()},
        "terms": {name: tuple(term) for name, term in sum_over_ranks(terms, world).items()},
    }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


class Reversed(nn.Sequential):
    """Layers that are used in another order than they are registered in, so gradients are ready in another one, too."""

    def blocks(self) -> list[nn.Module]:
        return list(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self):
            x = layer(x).relu()
        return x


def gradients_of_two_passes(world: World) -> list[dict[str, torch.Tensor]]:
    """The gradients of the first backward pass of a process, and of a second one over the same input."""
    torch.manual_seed(1)
    layers = Reversed(nn.Linear(64, 100), nn.Linear(70, 64), nn.Linear(31, 70))
    model = parallelize(layers, ParallelConfig(strategy="ddp"), world, torch.float32)
    torch.manual_seed(world.rank)
    x = torch.randn(5, 31)
    found = []
    for _ in range(2):
        model(x).square().sum().backward()
        found.append(gradients(model))
        model.zero_grad()
    return found


def checks_of_four(world: World) -> dict[str, object]:
    """Two copies of the model on two ranks each; and one on each rank, whose gradients are computed twice."""
    return {"two passes": gradients_of_two_passes(world)} | {
        f"{kind} hsdp {optimizer}": one_step(kind, "hsdp", optimizer, world)
        for kind, optimizer in (
            ("separable", "adamw"),
            ("separable", "lamb"),
            ("separable", "muon"),
            ("separable", "adafactor"),
            ("coupled", "adamw"),
        )
    }


def checks(world: World) -> dict[str, object]:
    found: dict[str, object] = {
        f"{kind} {strategy} {optimizer}": one_step(kind, strategy, optimizer, world)
        for kind, strategy, optimizer in (
            ("separable", "ddp", "adamw"),
            ("coupled", "ddp", "adamw"),
            ("separable", "fsdp2", "adamw"),
            ("separable", "fsdp2", "lamb"),
            ("separable", "fsdp2", "lars"),
            ("separable", "fsdp2", "lion"),
            ("separable", "fsdp2", "muon"),
            ("separable", "fsdp2", "relative adamw"),
            ("separable", "fsdp2", "adafactor"),
            ("coupled", "fsdp2", "adafactor"),
            ("coupled", "fsdp2", "adamw"),
        )
    }
    batches = [host_batch(3, 0), host_batch(7, 1), host_batch(1, 2)]
    # The second rank has two batches, the first one: numbers of batches may differ.
    mine = batches if world.world_size == 1 else ([batches[:1], batches[1:]][world.rank])
    found["evaluation"] = evaluate(TwoTerms(), model_of("separable"), mine, precision=FLOAT32, world=world)
    throughput = Throughput(world, Peak("test", "float32", 100.0))
    throughput.add(Cost(examples=2 + world.rank, tokens=10, slots=16, flops=50.0))
    throughput.time(0.75 + 0.5 * world.rank, 0.25 - 0.25 * world.rank)
    found["throughput"] = throughput.metrics()
    return found


if __name__ == "__main__":
    world = init_world("cpu")
    found = checks(world) if world.world_size == 2 else checks_of_four(world)
    torch.save(found, Path(sys.argv[1]) / f"rank-{world.rank}.pt")
    world.close()
