"""What whole runs of every recipe are held to: they go on exactly, and two processes train as one.

A run here writes a checkpoint at its last step, at least one before it, and none in the background.
"""

import shutil
from pathlib import Path

import torch

import pretrainkit
from pretrainkit.training.checkpoint import read_weights
from pretrainkit.training.checkpoint_files import step_folders
from two_processes import run_two


def weights(run: Path, step: int | None = None) -> dict[str, torch.Tensor]:
    """Of the checkpoint after a step; None: of the last one."""
    folders = step_folders(run / "checkpoints")
    return read_weights(folders[max(folders) if step is None else step])


def assert_goes_on_exactly(run: Path, copy: Path) -> None:
    """A copy of the run that lost its last checkpoint and is resumed ends in equal weights, bit for bit."""
    shutil.copytree(run, copy)
    folders = step_folders(copy / "checkpoints")
    assert len(folders) > 1
    shutil.rmtree(folders[max(folders)])
    pretrainkit.resume(copy)
    assert max(step_folders(copy / "checkpoints")) == max(folders)
    expected, found = weights(run), weights(copy)
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(tensor, found[name])] == []


def assert_two_processes_train_as_one(run: Path, place: Path, *changes: str) -> None:
    """The run's config with these changes, trained by two processes under DDP and under FSDP2 into folders of `place`,
    ends in the run's weights but for the order of additions."""
    run_two(Path(__file__).with_name("whole_run_ranks.py"), str(run / "config.yaml"), str(place), *changes)
    expected = weights(run)
    for strategy in ("ddp", "fsdp2"):
        found = weights(place / strategy)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, at=name: f"{at}: {text}"
            )
