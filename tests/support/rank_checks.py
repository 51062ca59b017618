"""Checks of each of two ranks in `test_two_ranks.py`: run as a script, one process per rank.

Every function named check_... runs on both ranks, in order of definition, and writes `NAME.rank` into the output
folder: "ok" or a traceback. Starting processes costs seconds, so one start serves all checks.
"""

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from pretrainkit.dist.env import World, init_world
from pretrainkit.dist.parallelize import averages_gradients, gradient_sync, is_sharded, parallelize, unwrap
from pretrainkit.dist.weights import full_state_dict, load_full_state_dict, model_tensors
from pretrainkit.errors import CheckpointError, DataError, RunError
from pretrainkit.training.checkpoints import files
from pretrainkit.training.checkpoints import tensors as checkpoint_tensors
from pretrainkit.training.checkpoints.checkpoint import CheckpointStore, load
from pretrainkit.training.checkpoints.tensors import named_state, read_into
from pretrainkit.training.ema import Ema
from pretrainkit.training.optimizers.build import clip_gradients
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.run import CheckpointConfig, ParallelConfig
from pretrainkit.training.signals import StopSignal

WIDTH, VOCAB, LENGTH = 16, 37, 8
CLIP = OptimizerConfig(peak_lr=1e-3, max_grad_norm=0.05)
# The first two are rank 0's microbatches, the others rank 1's; in one process they follow one another.
MICROBATCHES = [slice(0, 1), slice(1, 4), slice(4, 6), slice(6, 8)]


class Block(nn.Module):
    """(B, T, D) to (B, T, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x_BTD)).chunk(3, dim=-1)
        mixed: Tensor = self.out(F.scaled_dot_product_attention(q, k, v))
        return x_BTD + mixed


class Transformer(nn.Module):
    """Embedding and head are tied; 37 ids and a bias of 37 do not divide by 2."""

    scale: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(WIDTH))

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.embed(ids_BT) * self.scale
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        logits_BTV: Tensor = self.head(self.norm(x_BTD))
        return logits_BTV


def build(world: World, strategy: str, seed: int = 0, **settings: object) -> tuple[nn.Module, Optimizer]:
    config = ParallelConfig.model_validate({"strategy": strategy, **settings})
    model = parallelize(Transformer(seed), config, world, torch.float32)
    return model, AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def backward(model: nn.Module, step: int, world: World) -> None:
    """Gradients of the mean loss over scored positions; microbatches differ in examples and in scored positions."""
    generator = torch.Generator().manual_seed(step)
    ids_BT = torch.randint(VOCAB, (8, LENGTH), generator=generator)
    is_scored_BT = torch.rand(8, LENGTH, generator=generator) < torch.linspace(0.1, 0.9, 8)[:, None]
    per_rank = len(MICROBATCHES) // world.world_size
    own = MICROBATCHES[world.rank * per_rank : (world.rank + 1) * per_rank]
    factor = world.world_size if averages_gradients(model) else 1
    for index, rows in enumerate(own):
        with gradient_sync(model, index == len(own) - 1):
            losses = F.cross_entropy(model(ids_BT[rows]).transpose(1, 2), ids_BT[rows].flip(1), reduction="none")
            ((losses * is_scored_BT[rows]).sum() / is_scored_BT.sum() * factor).backward()


def train(model: nn.Module, optimizer: Optimizer, world: World, steps: range) -> list[float]:
    """Gradient norms."""
    norms = []
    for step in steps:
        backward(model, step, world)
        norms.append(float(clip_gradients(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    return norms


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def whole_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    return {name: whole(tensor.detach()).clone() for name, tensor in named_state(model, optimizer).items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def check_collectives(world: World, folder: Path) -> None:
    assert world.world_size == 2
    assert world.is_main == (world.rank == 0)
    assert world.backend == "gloo"
    values = torch.tensor([world.rank + 1.0, -world.rank])
    assert world.all_reduce_(values.clone()).tolist() == [3.0, -1.0]
    assert world.all_reduce_(values.clone(), "max").tolist() == [2.0, 0.0]
    assert world.all_reduce_(values.clone(), "min").tolist() == [1.0, -1.0]
    assert world.max(float(world.rank), -1.0 - world.rank) == [1.0, -1.0]
    torch.distributed.barrier()
    mine = {"rank": world.rank, "text": "é" * world.rank, "none": None, "list": [0.1]}
    gathered = world.gather_objects(mine)
    assert gathered[world.rank] == mine
    assert [entry["text"] for entry in gathered] == ["", "é"]
    assert world.broadcast_object(mine)["rank"] == 0
    assert world.on_main(lambda: [1, "two"]) == [1, "two"]


def check_error_of_rank_0_is_raised_by_all(world: World, folder: Path) -> None:
    def work() -> None:
        raise DataError(f"seen by rank {world.rank}")

    with pytest.raises(DataError, match="seen by rank 0"):
        world.on_main(work)


def check_stop_is_agreed(world: World, folder: Path) -> None:
    for each_step in (True, False):
        stopped_at = 0
        with StopSignal() as stop:
            for step in range(1, 40):
                if step == 3 and world.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                if world.rank == 1:
                    time.sleep(0.02)
                if stop.agreed(world.max, each_step=each_step):
                    stopped_at = step
                    break
        assert world.gather_objects(stopped_at) == [stopped_at] * 2
        assert stopped_at == 3 if each_step else 3 <= stopped_at <= 12


def check_ddp_fsdp2_and_one_process_agree(world: World, folder: Path) -> None:
    # Ranks add microbatches in another order than one process does, so float32 sums differ by rounding, 1e-6 relative
    # to values of up to 1. AdamW divides gradients by their own size: that of the key bias is zero in exact arithmetic,
    # so its rounding would become an update. An epsilon of 1e-4 prevents that; 2e-6 is 2e-4 of one update.
    alone = World()
    model, optimizer = build(alone, "auto")
    assert not averages_gradients(model)
    backward(model, 0, alone)
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.zero_grad()
    norms = train(model, optimizer, alone, range(3))
    assert min(norms) > CLIP.max_grad_norm  # clipping takes part
    parameters = full_state_dict(model)

    for strategy, recompute in (("ddp", False), ("fsdp2", False), ("auto", True), ("fsdp2", True)):
        # Rank 1 starts from other weights: rank 0's must win.
        other, other_optimizer = build(world, strategy, seed=world.rank, activation_checkpointing=recompute)
        assert averages_gradients(other)
        assert is_sharded(other) == (strategy == "fsdp2")
        assert list(model_tensors(other)) == list(model_tensors(model))
        backward(other, 0, world)
        for name, parameter in unwrap(other).named_parameters():
            torch.testing.assert_close(whole(parameter.grad), gradients[name], rtol=1e-5, atol=1e-6)
        other_optimizer.zero_grad()
        torch.testing.assert_close(train(other, other_optimizer, world, range(3)), norms, rtol=1e-5, atol=0)
        found = full_state_dict(other)
        assert found.keys() == parameters.keys()
        for name in found:
            torch.testing.assert_close(found[name], parameters[name], rtol=0, atol=2e-6)
        assert found["embed.weight"] is found["head.weight"]


def check_evaluation_between_steps_changes_nothing(world: World, folder: Path) -> None:
    # FSDP2 keeps the root's gathered weights after a forward pass. Without a backward pass they would stay, and the
    # next step would use the averaged ones that evaluation had swapped in.
    ids_BT = torch.arange(LENGTH)[None]
    outputs = {}
    for strategy, place in (("auto", World()), ("fsdp2", world), ("ddp", world)):
        model, optimizer = build(place, strategy)
        ema = Ema(model, decay=0.5)
        seen = []
        for step in range(3):
            train(model, optimizer, place, range(step, step + 1))
            ema.update(model)
            with torch.no_grad():
                seen.append(model(ids_BT))
                with ema.swapped_in(model):
                    seen.append(model(ids_BT))
        outputs[strategy] = torch.stack(seen)
    assert (outputs["auto"][0] - outputs["auto"][1]).abs().max() > 1e-3  # the average differs from the weights
    torch.testing.assert_close(outputs["fsdp2"], outputs["auto"], rtol=0, atol=1e-5)
    torch.testing.assert_close(outputs["ddp"], outputs["auto"], rtol=0, atol=1e-5)


def check_whole_weights_go_into_shards(world: World, folder: Path) -> None:
    weights = full_state_dict(Transformer(seed=5))
    for strategy in ("ddp", "fsdp2"):
        model, _ = build(world, strategy)
        load_full_state_dict(model, weights)
        assert_equal(full_state_dict(model), weights)
        before = full_state_dict(model)
        with pytest.raises(CheckpointError, match=r"norm\.bias: \[1\], model: \[16\]"):
            load_full_state_dict(model, {name: w[:1] for name, w in weights.items()})
        assert_equal(full_state_dict(model), before)


def check_checkpoints_move_between_layouts(world: World, folder: Path) -> None:
    config = CheckpointConfig(keep_last=3)
    saved: dict[str, dict[str, Tensor]] = {}
    for strategy in ("fsdp2", "ddp"):
        model, optimizer = build(world, strategy)
        train(model, optimizer, world, range(2))
        with closing(CheckpointStore(folder / strategy, config, world)) as store:
            store.save(1, model, optimizer, meta={"strategy": strategy})
            saved[strategy] = whole_state(model, optimizer)
            train(model, optimizer, world, range(2, 3))
            store.save(2, model, optimizer)
            newest = store.newest_valid()
        assert newest == folder / strategy / "step-00000002"
        assert len(list(newest.glob("*.safetensors"))) == 2  # each rank wrote a part
        after = whole_state(model, optimizer)
        path = folder / strategy / "step-00000001"
        for target in ("ddp", "fsdp2"):
            model, optimizer = build(world, target, seed=9)
            found = load(path, world, model, optimizer)
            assert (found.step, found.world_size, found.meta["strategy"]) == (1, 2, strategy)
            assert_equal(whole_state(model, optimizer), saved[strategy])
            if target == strategy:
                train(model, optimizer, world, range(2, 3))
                assert_equal(whole_state(model, optimizer), after)
        if world.is_main:
            torch.save(saved[strategy], folder / f"{strategy}.pt")


def check_one_process_checkpoint_loads_on_two(world: World, folder: Path) -> None:
    expected = torch.load(folder / "alone.pt", weights_only=True)
    for target in ("ddp", "fsdp2"):
        model, optimizer = build(world, target, seed=9)
        assert load(folder / "alone" / "step-00000001", world, model, optimizer).world_size == 1
        assert_equal(whole_state(model, optimizer), expected)


def check_failure_on_one_rank_fails_all(world: World, folder: Path) -> None:
    model, optimizer = build(world, "fsdp2")
    record = checkpoint_tensors.file_record
    with closing(CheckpointStore(folder / "failing", CheckpointConfig(), world)) as store:
        store.save(1, model, optimizer, blocking=True)
        for failing_rank in (0, 1):

            def broken(path: Path, failing_rank: int = failing_rank) -> dict[str, object]:
                if world.rank == failing_rank:
                    raise OSError(28, "No space left on device")
                return record(path)

            checkpoint_tensors.file_record = broken
            store.save(2, model, optimizer)
            with pytest.raises(RunError, match=r"No space left on device\n.*step-00000001 is intact"):
                store.wait()
            checkpoint_tensors.file_record = record
            torch.distributed.barrier()
            assert sorted(path.name for path in (folder / "failing").iterdir()) == [".lock", "step-00000001"]
            torch.distributed.barrier()
    path = intact = folder / "failing" / "step-00000001"
    if world.rank == 1:
        path = shutil.copytree(intact, folder / "torn")
        os.truncate(next(path.glob("*.safetensors")), 100)
    with pytest.raises(CheckpointError, match=r"cannot be read: .+\n  use an earlier one"):
        read_into(path, named_state(model), world)
    if world.is_main:
        (intact / "meta.json").unlink()
    torch.distributed.barrier()
    with pytest.raises(CheckpointError, match=r"no meta\.json"):
        load(intact, world, model, optimizer)


def check_second_writer_is_refused_by_all(world: World, folder: Path) -> None:
    # Rank 1's process holds the lock, so rank 0 cannot have it.
    held = files.lock(folder / "held") if world.rank == 1 else None
    torch.distributed.barrier()
    with pytest.raises(CheckpointError, match="another process is writing"):
        CheckpointStore(folder / "held", CheckpointConfig(), world)
    if held is not None:
        held.close()


def run_checks(folder: Path, module: Mapping[str, Any]) -> None:
    """All check_... of a module's names, on this rank."""
    torch.set_num_threads(1)
    world = init_world("cpu")
    for name, check in list(module.items()):
        if name.startswith("check_"):
            outcome = "ok"
            try:
                check(world, folder)
            except Exception:  # whatever a check raises is its outcome, which the test of its name shows
                outcome = traceback.format_exc()
            (folder / f"{name}.{world.rank}").write_text(outcome)
    world.close()


if __name__ == "__main__":
    run_checks(Path(sys.argv[1]), globals())
