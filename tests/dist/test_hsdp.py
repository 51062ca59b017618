"""Four gloo processes on the CPU: two copies of a model, each sharded over two ranks, are one process."""

from pathlib import Path

from support import hsdp_checks
import pytest
from support import rank_checks
import torch

from pretrainkit.dist.env import World
from pretrainkit.training.checkpoints.checkpoint import load
from support.two_processes import run_ranks

pytestmark = pytest.mark.slow

CHECKS = [name for name in vars(hsdp_checks) if name.startswith("check_")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which all ranks have done all their checks."""
    folder = tmp_path_factory.mktemp("hsdp")
    for output in run_ranks(4, Path(hsdp_checks.__file__), str(folder), local_world_size=2):
        print(output)
    return folder


@pytest.mark.parametrize("check", CHECKS)
def test_on_four_ranks(folder: Path, check: str) -> None:
    for rank in range(4):
        path = folder / f"{check}.{rank}"
        outcome = path.read_text() if path.exists() else "did not finish"
        assert outcome == "ok", f"rank {rank}: {outcome}"


def test_a_checkpoint_of_copies_continues_in_one_process_and_holds_each_number_once(folder: Path) -> None:
    expected = torch.load(folder / "hsdp.pt", weights_only=True)
    path = folder / "hsdp/step-00000001"
    model, optimizer = rank_checks.build(World(), "auto", seed=9)
    assert load(path, World(), model, optimizer).world_size == 4
    rank_checks.assert_equal(rank_checks.whole_state(model, optimizer), expected)
    in_files = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    in_memory = sum(tensor.nbytes for tensor in expected.values())
    headers = 64 * len(expected) * 4
    assert in_memory < in_files < in_memory + 4 * headers
