"""Files under golden/ agree with the code. After an intended change run: python tests/golden/refresh.py"""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import pretrainkit
from pretrainkit.recipes.registry import Recipes

GOLDEN = Path(__file__).with_name("golden")
CONFIGS = runpy.run_path(str(GOLDEN / "configs.py"))
PRESETS = CONFIGS["presets"]()
RUNS = runpy.run_path(str(GOLDEN / "bert_runs.py"))
DRAWS = runpy.run_path(str(GOLDEN / "draws.py"))
SMALL = runpy.run_path(str(GOLDEN / "small_runs.py"))
LOSS_TOLERANCE = 2e-5
"""Relative tolerance. Ten steps differ by less than 2e-7 between AVX2 and SSE kernels, between rows and packed, and
between one and four microbatches; this leaves a factor of 100 for other processors and libraries. Dropout changes
1e-3."""


def how_to_refresh(what: str) -> str:
    return f"where this is meant, run: python tests/golden/refresh.py {what}"


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden") / "tokens"
    RUNS["make_token_shards"](folder)
    return folder


def test_every_preset_has_its_resolved_config_and_no_file_is_left_over():
    assert {path.name for path in CONFIGS["FOLDER"].iterdir()} == set(PRESETS), how_to_refresh("configs")


@pytest.mark.parametrize("name", PRESETS)
def test_resolved_configs_are_golden(name):
    golden = (CONFIGS["FOLDER"] / name).read_text(encoding="utf-8")
    assert CONFIGS["resolved"](PRESETS[name]) == golden, how_to_refresh("configs")


@pytest.mark.parametrize("name", PRESETS)
def test_golden_configs_load_as_the_preset_they_are_of(name):
    path = CONFIGS["FOLDER"] / name
    assert pretrainkit.load_config(path) == Recipes().preset(PRESETS[name])


def test_first_batches_are_golden(shards):
    golden = json.loads(RUNS["BATCHES"].read_text())
    found = RUNS["first_batches"](shards)
    assert found.keys() == golden.keys(), how_to_refresh("batches")
    for case, batches in found.items():
        assert batches == golden[case], f"{case}: {how_to_refresh('batches')}"


def test_first_random_choices_are_golden():
    golden, found = json.loads(DRAWS["DRAWS"].read_text()), DRAWS["draws"]()
    assert found.keys() == golden.keys(), how_to_refresh("draws")
    for name, values in found.items():
        assert np.array(values) == pytest.approx(np.array(golden[name]), abs=1e-7), how_to_refresh("draws")


@pytest.mark.parametrize("case", RUNS["CASES"])
def test_ten_losses_are_golden(shards, case):
    if "dropout" in case and not torch.backends.mkl.is_available():
        pytest.skip("without MKL, torch draws other dropout masks")
    golden = json.loads(RUNS["LOSSES"].read_text())
    assert RUNS["ten_losses"](case, shards) == pytest.approx(golden[case], rel=LOSS_TOLERANCE), how_to_refresh("losses")


@pytest.mark.parametrize("case", SMALL["RUNS"])
def test_ten_losses_of_small_models_are_golden(case):
    golden = json.loads(SMALL["LOSSES"].read_text())
    assert golden.keys() == SMALL["RUNS"].keys(), how_to_refresh("small")
    if "dropout" in case and not torch.backends.mkl.is_available():
        pytest.skip("without MKL, torch draws other dropout masks")
    losses = SMALL["ten_losses"](SMALL["RUNS"][case]())
    assert losses == pytest.approx(golden[case], rel=LOSS_TOLERANCE), how_to_refresh("small")


def test_layouts_and_microbatches_have_one_golden_loss():
    """They are the same mathematics: were one refreshed without the others, it would show here."""
    golden = json.loads(RUNS["LOSSES"].read_text())
    same = [["tiny rows", "tiny packed", "tiny packed, microbatches"], ["modern tiny rows", "modern tiny"]]
    for first, *others in same:
        for other in others:
            assert golden[other] == pytest.approx(golden[first], rel=LOSS_TOLERANCE)
