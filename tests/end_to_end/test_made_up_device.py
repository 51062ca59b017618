"""A back end outside of torch, which registers itself when it is installed: it is detected, described and used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pretrainkit as pk
from pretrainkit.recipes.registry import find_recipe
from support import SUPPORT, made_up_device
from support.command_line import NO_DROPOUT, losses

SAMPLES = ("evaluate.every_steps=4", "evaluate.num_samples=2", "checkpoint.keep_last=9")
ONE_AFTER_ANOTHER = """
import json, os, sys
from unittest import mock
from support.command_line import pretrainkit
from pretrainkit.running.exercises import Outcome
words, place = json.loads(sys.argv[1])
with mock.patch("pretrainkit.running.doctor.exercise", lambda names: {name: Outcome() for name in names}):
    answers = [pretrainkit("doctor")]  # of the device, not of all packages
answers.append(pretrainkit(*words))
os.environ.update(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1")
answers.append(pretrainkit(*words[:-1], place))
os.environ.update(LOCAL_RANK="2")
answers.append(pretrainkit(*words[:-1], place))
print(json.dumps(answers))
"""


def test_a_registered_device_trains_like_any_other(
    settings: list[str], finished_without_dropout: Path, tmp_path: Path
) -> None:
    (tmp_path / "installed").mkdir()
    made_up_device.install(tmp_path / "installed")
    source = Path(sys.modules["pretrainkit"].__path__[0]).parent
    path = os.pathsep.join(map(str, (tmp_path / "installed", SUPPORT.parent, source)))
    run = tmp_path / "run"
    words = ["train", *settings, *NO_DROPOUT, *SAMPLES, "num_steps=12", "--out", str(run)]
    ended = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps([words, str(tmp_path / "refused")])],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    doctor, train, without_collectives, without_device = json.loads(ended.stdout.splitlines()[-1])
    assert "made_up: 2 x Made-up Device, 8 GiB each" in doctor[1]
    assert "ok  bfloat16" in doctor[1]
    assert train[0] == 0, train
    assert "float32 on made_up:0" in train[2]
    assert without_collectives[0] == without_device[0] == 2
    assert "'made_up', whose back end has no collectives" in without_collectives[2]
    assert "has 2 made_up device(s)" in without_device[2]

    # The same products and sums, in kernels that are chosen otherwise.
    assert losses(run) == pytest.approx(losses(finished_without_dropout), rel=1e-5)
    weights, expected = (pk.load_model(path).state_dict() for path in (run, finished_without_dropout))
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-4, msg=name)

    # Drawn while training continued, with the weights of that moment.
    config = pk.load_config(str(run / "config.yaml"), [])
    recipe = find_recipe("bert")
    held_out = recipe.open_data(config, "valid")
    drawn = [json.loads((run / "samples" / f"step-{step:08d}.json").read_text()) for step in (4, 8, 12)]
    for step, found in zip((4, 8, 12), drawn, strict=True):
        then = pk.load_model(run / "checkpoints" / f"step-{step:08d}")
        assert found == recipe.sample(config, then, held_out, 2), step
    assert drawn[0] != drawn[2]
