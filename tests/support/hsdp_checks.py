"""Checks of each of four ranks in `test_hsdp.py`: two copies of a model, each sharded over two ranks. Run as a script,
one process per rank; writes `NAME.rank` for each check, as `rank_checks` does."""

import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import averages_gradients, is_sharded
from pretrainkit.dist.weights import full_state_dict
from pretrainkit.errors import ConfigError
from pretrainkit.training.checkpoints.checkpoint import CheckpointStore, load
from pretrainkit.training.ema import Ema
from pretrainkit.training.optimizers.parameters import local_tensors
from pretrainkit.training.run import CheckpointConfig
from support.rank_checks import (
    LENGTH,
    assert_equal,
    backward,
    build,
    run_checks,
    train,
    whole,
    whole_state,
)

LAYOUTS = {"hsdp": {"shard_ranks": 2}, "fsdp2": {}, "ddp": {}}


def check_two_copies_of_two_shards_train_as_one_process(world: World, folder: Path) -> None:
    # Tolerances: see rank_checks.check_ddp_fsdp2_and_one_process_agree.
    model, optimizer = build(World(), "auto")
    backward(model, 0, World())
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.zero_grad()
    norms = train(model, optimizer, World(), range(3))
    parameters = full_state_dict(model)

    other, other_optimizer = build(world, "hsdp", seed=world.rank, shard_ranks=2, activation_checkpointing=True)
    assert averages_gradients(other)
    assert is_sharded(other)
    own = sum(tensor.numel() for tensor in local_tensors(other.parameters()))
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert 0.4 * numbers < own < 0.6 * numbers  # half of it, not a quarter
    backward(other, 0, world)
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(whole(parameter.grad), gradients[name], rtol=1e-5, atol=1e-6)
    other_optimizer.zero_grad()
    torch.testing.assert_close(train(other, other_optimizer, world, range(3)), norms, rtol=1e-5, atol=0)
    found = full_state_dict(other)
    for name in found:
        torch.testing.assert_close(found[name], parameters[name], rtol=0, atol=2e-6)


def check_copies_stay_equal_bit_for_bit(world: World, folder: Path) -> None:
    model, optimizer = build(world, "hsdp", seed=world.rank, shard_ranks=2)
    train(model, optimizer, world, range(3))
    own = [tensor.tolist() for tensor in local_tensors(model.parameters())]
    of_all = world.gather_objects(own)
    assert of_all[0] == of_all[2]
    assert of_all[1] == of_all[3]
    assert of_all[0] != of_all[1]


def check_evaluation_between_steps_changes_nothing(world: World, folder: Path) -> None:
    ids_BT = torch.arange(LENGTH)[None]
    outputs = {}
    for strategy, place in (("auto", World()), ("hsdp", world)):
        model, optimizer = build(place, strategy, **LAYOUTS.get(strategy, {}))
        ema = Ema(model, decay=0.5)
        seen = []
        for step in range(3):
            train(model, optimizer, place, range(step, step + 1))
            ema.update(model)
            with torch.no_grad(), ema.swapped_in(model):
                seen.append(model(ids_BT))
        outputs[strategy] = torch.stack(seen)
    torch.testing.assert_close(outputs["hsdp"], outputs["auto"], rtol=0, atol=1e-5)


def check_the_ranks_of_a_machine_hold_a_copy_unless_told_otherwise(world: World, folder: Path) -> None:
    assert world.local_world_size == 2
    model, _ = build(world, "hsdp")
    told, _ = build(world, "hsdp", shard_ranks=2)
    assert [t.shape for t in local_tensors(model.parameters())] == [t.shape for t in local_tensors(told.parameters())]
    with pytest.raises(
        ConfigError, match="4 ranks cannot be divided into groups of 3 ranks that share a copy of the model"
    ):
        build(World(world.rank, 4, local_world_size=3), "hsdp")


def check_checkpoints_move_between_layouts(world: World, folder: Path) -> None:
    saved = {}
    for strategy, settings in LAYOUTS.items():
        model, optimizer = build(world, strategy, **settings)
        train(model, optimizer, world, range(2))
        with closing(CheckpointStore(folder / strategy, CheckpointConfig(), world)) as store:
            store.save(1, model, optimizer)
        saved[strategy] = whole_state(model, optimizer)
        if strategy == "hsdp":
            train(model, optimizer, world, range(2, 3))
            after = whole_state(model, optimizer)
    for strategy, target in (("hsdp", "hsdp"), ("hsdp", "fsdp2"), ("hsdp", "ddp"), ("fsdp2", "hsdp"), ("ddp", "hsdp")):
        model, optimizer = build(world, target, seed=9, **LAYOUTS[target])
        load(folder / strategy / "step-00000001", world, model, optimizer)
        assert_equal(whole_state(model, optimizer), saved[strategy])
        if (strategy, target) == ("hsdp", "hsdp"):
            train(model, optimizer, world, range(2, 3))
            assert_equal(whole_state(model, optimizer), after)
    if world.is_main:
        torch.save(saved["hsdp"], folder / "hsdp.pt")


if __name__ == "__main__":
    run_checks(Path(sys.argv[1]), globals())
