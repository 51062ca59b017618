"""Requirements of whole runs of every recipe: they resume exactly, two processes train as one, and exports are the run.

A run here writes a checkpoint at its last step, at least one before it, and none in the background.
"""

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch

import pretrainkit
from pretrainkit.config.loader import flatten
from pretrainkit.training.checkpoints.checkpoint import read_weights
from pretrainkit.training.checkpoints.files import step_folders
from support import SUPPORT
from support.two_processes import run_two


def weights(run: Path, step: int | None = None) -> dict[str, torch.Tensor]:
    """Return the weights of the checkpoint after `step`, or of the last one."""
    folders = step_folders(run / "checkpoints")
    return read_weights(folders[max(folders) if step is None else step])


def assert_resumes_exactly(run: Path, copy: Path) -> None:
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
    run_two(SUPPORT / "whole_run_ranks.py", str(run / "config.yaml"), str(place), *changes)
    expected = weights(run)
    for strategy in ("ddp", "fsdp2"):
        found = weights(place / strategy)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, at=name: f"{at}: {text}"
            )


def assert_exports_are_the_run(
    run: Path, place: Path, recipe: str, format: str = "huggingface", *words: str, name: str = "export"
) -> Path:
    """An export, and the import of it, evaluate as the run to the last digit, and train on as the run does, once they
    get the paths of the data: nothing else is lost. Returns the export, in `place`.

    Args:
        run: Its folder.
        place: An empty folder.
        recipe: Of the run.
        format: Of the export.
        words: Settings of evaluation.
        name: Of the export, where the format is a file.
    """
    exported = pretrainkit.export(run, format, place / name)
    reads = "huggingface" if format == "safetensors" else format
    given = {"tokenizer": run / "tokenizer"} if reads != "huggingface" and (run / "tokenizer").is_dir() else {}
    if format == "safetensors":
        imported = exported
    else:
        imported = pretrainkit.import_model(exported, recipe, place / "imported", format=reads, **given)
    data = _lost(run, imported)
    expected = _evaluated(run, words)
    for path in {exported, imported} if exported.is_dir() else {imported}:
        assert pretrainkit.evaluate(path, overrides=[*data, *words]) == expected
    found, after = _trained_on(imported, place / "on-imported", *data), _after_one_more_step(run)
    assert found.keys() == after.keys()
    other = [name for name, tensor in after.items() if not torch.equal(tensor, found[name])]
    assert not other, other
    return exported


@cache
def _evaluated(run: Path, words: tuple[str, ...]) -> dict[str, float]:
    """Once for all formats that the run is exported to."""
    return pretrainkit.evaluate(run, overrides=words)


@cache
def _after_one_more_step(run: Path) -> dict[str, torch.Tensor]:
    """Once for all formats that the run is exported to."""
    return _trained_on(run, run.with_name(f"one-more-on-{run.name}"))


def _trained_on(origin: Path, out: Path, *data: str) -> dict[str, torch.Tensor]:
    """The weights after a step more, with the settings of the folder itself."""
    short = ["num_steps=1", "schedule.num_warmup_steps=0", "checkpoint.asynchronous=false", "evaluate.every_steps=null"]
    config = pretrainkit.load_config(origin / "config.yaml", [*data, *short, f"init_from={origin}"])
    pretrainkit.train(config, out)
    return weights(out)


def _lost(run: Path, imported: Path) -> list[str]:
    """Settings that an import lacks, all of which locate data or a tokenizer on this machine."""
    trees = [flatten(pretrainkit.load_config(path / "config.yaml").model_dump(mode="json")) for path in (run, imported)]
    # A mapping of paths that became empty is a leaf of its own in the second.
    names = [name for name in trees[0] if trees[0][name] != trees[1].get(name)]
    assert not [name for name in trees[1].keys() - trees[0].keys() if trees[1][name]]
    lost = {name: trees[0].get(name) for name in names if name.split(".")[0] not in ("init", "init_from", "first_step")}
    without_reason = {
        name: value for name, value in lost.items() if not (name.startswith((*_PLACES, *_ORIGINS)) and _has_path(value))
    }
    assert not without_reason, without_reason
    return [f"{name}={json.dumps(value)}" for name, value in lost.items() if name.startswith(_PLACES)]


_PLACES = ("data.train", "data.valid", "data.task_folders", "data.modules", "data.tokenizer", "data.renderer")
"""Prefixes of the names of settings with locations of data or a tokenizer."""
_ORIGINS = ("model.image.name", "model.text.name")
"""Origin of a tower of transformers; its architecture and weights are in the export."""


def _has_path(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_has_path, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and os.path.isabs(value)
