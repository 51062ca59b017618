"""Two gloo processes on the CPU: DDP = FSDP2 = one process, and checkpoints that move between them."""

from contextlib import closing
from pathlib import Path

import pytest
from support import rank_checks
import torch
from support.two_processes import run_two

from pretrainkit.dist.env import World
from pretrainkit.dist.weights import full_state_dict
from pretrainkit.training.checkpoints.checkpoint import CheckpointStore, load, read_weights
from pretrainkit.training.run import CheckpointConfig

CHECKS = [name for name in vars(rank_checks) if name.startswith("check_")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which both ranks have done all their checks."""
    folder = tmp_path_factory.mktemp("ranks")
    model, optimizer = rank_checks.build(World(), "auto")
    rank_checks.train(model, optimizer, World(), range(2))
    with closing(CheckpointStore(folder / "alone", CheckpointConfig(), World())) as store:
        store.save(1, model, optimizer)
    torch.save(rank_checks.whole_state(model, optimizer), folder / "alone.pt")

    for output in run_two(Path(rank_checks.__file__), str(folder)):
        print(output)
    return folder


@pytest.mark.parametrize("check", CHECKS)
def test_on_two_ranks(folder: Path, check: str) -> None:
    for rank in range(2):
        path = folder / f"{check}.{rank}"
        outcome = path.read_text() if path.exists() else "did not finish"
        assert outcome == "ok", f"rank {rank}: {outcome}"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_checkpoint_of_two_ranks_continues_in_one_process(folder: Path, strategy: str) -> None:
    expected = torch.load(folder / f"{strategy}.pt", weights_only=True)
    path = folder / strategy / "step-00000001"
    model, optimizer = rank_checks.build(World(), "auto", seed=9)
    assert load(path, World(), model, optimizer).world_size == 2
    rank_checks.assert_equal(rank_checks.whole_state(model, optimizer), expected)
    weights = read_weights(path)
    assert {name: w.tolist() for name, w in weights.items()} == {
        name: w.tolist() for name, w in full_state_dict(model).items() if name != "head.weight"
    }
