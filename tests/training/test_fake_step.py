"""Planned memory is what a real step holds: tensor for tensor, and as the operating system counts it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from pretrainkit.dist.parallelize import parallelize
from pretrainkit.training.fake_step import fake_world, faked, numbers_per_rank, step_memory
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.optimizers.parameters import local_tensors, num_local_elements
from pretrainkit.training.precision import Precision
from pretrainkit.training.run import ParallelConfig

PRECISION = Precision(torch.device("cpu"), torch.float32, False, None)
ADAMW = OptimizerConfig(peak_lr=1e-3)


class Mlp(nn.Module):
    """Blocks of two products, and as many examples as the batch's lengths define: a shape that only real numbers
    give."""

    def __init__(self, width: int = 64, num_blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        inner = 4 * width
        blocks = [nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)) for _ in range(num_blocks)]
        self.layers = nn.ModuleList(blocks)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, x: Tensor, length: int) -> Tensor:
        x = self.embed(x[:length])
        for layer in self.layers:
            x = x + layer(x)
        return x


class SquaredNorm(SeparableObjective):
    @property
    def scales(self) -> dict[str, float]:
        return {"loss": 1.0}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": batch["length"].float()}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return {"loss": LossSum(model(batch["x"], batch["length"].item()).square().sum(), batch["length"].float())}

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self.losses(model, batch)

    def cost(self, batch: HostBatch) -> Cost:
        return Cost(len(batch["x"]), len(batch["x"]), len(batch["x"]), 0.0)


def batch_of(num: int) -> dict[str, Tensor]:
    return {"x": torch.ones(num, 8), "length": torch.tensor(num - 1)}


def meta_model(**sizes: int) -> Mlp:
    with torch.device("meta"):
        return Mlp(**sizes)


@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor"])
def test_a_step_without_numbers_holds_what_a_real_one_holds(name):
    config = OptimizerConfig(peak_lr=1e-3, name=name)
    found = step_memory(faked(meta_model()), SquaredNorm(), [batch_of(50)], config, PRECISION)
    assert found == step_memory(Mlp(), SquaredNorm(), [batch_of(50)], config, PRECISION)


def test_the_parts_are_those_of_arithmetic():
    found = step_memory(faked(meta_model()), SquaredNorm(), [batch_of(100)] * 2, ADAMW, PRECISION)
    numbers = sum(parameter.numel() for parameter in Mlp().parameters())
    assert found.weights == found.gradients == 4 * numbers
    assert found.optimizer == pytest.approx(8 * numbers, rel=0.01)  # and a step count for each tensor
    kept = 4 * 99 * 3 * (64 + 256 + 256)  # what the products and GELU of a block are differentiated at
    assert kept < found.activations < 1.5 * kept
    assert found.peak == found.weights + found.gradients + found.optimizer + max(found.activations, found.update)


def test_activations_grow_with_the_microbatch_and_nothing_else_does():
    small, large = (
        step_memory(faked(meta_model()), SquaredNorm(), [batch_of(num)] * 2, ADAMW, PRECISION) for num in (100, 200)
    )
    assert (small.weights, small.gradients, small.optimizer) == (large.weights, large.gradients, large.optimizer)
    assert large.activations == pytest.approx(2 * small.activations, rel=0.1)


MEASURED = """
import ctypes, gc, json, sys
sys.path[:0] = sys.argv[1:]
from test_fake_step import *
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.optimizers.build import build_optimizer

def resident(which):
    return int(next(l for l in open("/proc/self/status") if l.startswith(which)).split()[1]) * 1024

def train():
    model, batch = Mlp(**SIZES), batch_of(NUM)
    optimizer = build_optimizer(model, ADAMW)
    for step in range(2):
        optimizer.zero_grad(set_to_none=True)
        accumulate(SquaredNorm(), model, [batch], precision=PRECISION)
        optimizer.step()

SIZES, NUM = {"width": 256, "num_blocks": 2}, 2000
train()  # libraries take memory of their own when they are used first
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")
before = resident("VmRSS")
train()
measured = resident("VmHWM") - before
planned = step_memory(faked(meta_model(**SIZES)), SquaredNorm(), [batch_of(NUM)], ADAMW, PRECISION).peak
print(json.dumps([planned, measured]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_planned_memory_is_within_a_tenth_of_that_of_the_process():
    """Large arrays are given back at once, so that what is resident is what is held."""
    here = Path(__file__).parent
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURED, str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    planned, measured = json.loads(done.stdout.splitlines()[-1])
    assert planned == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("world_size", [2, 7, 1024])
def test_every_number_has_a_rank_under_fsdp2_and_all_ranks_under_ddp(world_size):
    numbers = sum(parameter.numel() for parameter in Mlp().parameters())
    build = Mock(side_effect=meta_model)
    sharded = numbers_per_rank(build, ParallelConfig(strategy="fsdp2", compile="off"), world_size)
    assert set(sharded) == {0, world_size - 1}
    assert build.call_count == 1  # laying out a large model takes half a second
    # Rows of each tensor are dealt out in equal shares, the last ranks getting less.
    assert numbers / world_size <= sharded[0] <= numbers / world_size + sum(p[0].numel() for p in Mlp().parameters())
    assert sharded[world_size - 1] <= sharded[0]
    replicated = numbers_per_rank(meta_model, ParallelConfig(strategy="ddp", compile="off"), world_size)
    assert set(replicated.values()) == {numbers}
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize(("strategy", "world_size"), [("fsdp2", 4), ("fsdp2", 7), ("hsdp", 8), ("hsdp", 12)])
def test_the_part_of_each_rank_follows_from_the_layout_of_rank_0(strategy, world_size, place):
    config = ParallelConfig(strategy=strategy, shard_ranks=4 if strategy == "hsdp" else None, compile="off")
    counts = []
    for laid_out in (0, world_size - place):
        with fake_world(laid_out, world_size) as world:
            parameters = list(parallelize(meta_model(), config, world, torch.float32).parameters())
            counts.append([num_local_elements(tensor, world_size - place) for tensor in parameters])
            local = [tensor.numel() for tensor in local_tensors(parameters)]
    assert counts == [local, local]
