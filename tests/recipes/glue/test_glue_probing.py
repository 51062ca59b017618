"""Tasks that an encoder is tried on while it is pretrained."""

import json
from pathlib import Path

import pytest
import torch

from pretrainkit import api
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.eval.linear_probe import fit_linear
from pretrainkit.recipes.capabilities import EncodesText
from pretrainkit.recipes.registry import able, find_recipe
from support import SUPPORT
from support.probed_bert import NO_DROPOUT, PROBES, pretrain, write_shards
from support.two_processes import run_two

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("text") / "toy")


@pytest.fixture(scope="module")
def probed(shards, glue, tmp_path_factory) -> tuple[Path, dict[str, float]]:
    out = tmp_path_factory.mktemp("probed") / "run"
    return out, pretrain(shards, glue, out, PROBES)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_probing_changes_no_bit_of_the_training(probed, shards, glue, tmp_path):
    pretrain(shards, glue, tmp_path / "plain", [])
    losses = [[line["loss"] for line in lines_of(run / "metrics.jsonl")] for run in (probed[0], tmp_path / "plain")]
    assert losses[0] == losses[1]
    with_probes, without = (api.load_model(run).state_dict() for run in (probed[0], tmp_path / "plain"))
    assert all(torch.equal(with_probes[name], without[name]) for name in without)


def test_results_are_where_other_evaluations_are(probed):
    found = {
        line["step"]: {name for name in line if name.startswith("probe")} for line in lines_of(probed[0] / "eval.jsonl")
    }
    tasks = {step: {name.split("/")[0] for name in names} for step, names in found.items()}
    assert tasks == {
        2: {"probe_sst2"},
        3: {"probe_mnli"},
        4: {"probe_sst2"},
        6: {"probe_sst2", "probe_stsb", "probe_mnli"},
    }
    assert {"probe_mnli/accuracy", "probe_mnli/mismatched_accuracy", "probe_mnli/score"} <= found[6]
    assert json.loads((probed[0] / "summary.json").read_text())["valid_probe_sst2/score"] > 70


def test_a_run_that_is_resumed_finds_the_same(probed, shards, glue, tmp_path):
    pretrain(shards, glue, tmp_path / "run", PROBES, "num_steps=3", "schedule.name=constant")
    whole = pretrain(shards, glue, tmp_path / "whole", PROBES, "schedule.name=constant")
    resumed = api.resume(tmp_path / "run", ["num_steps=6"], device="cpu")
    names = [name for name in whole if "probe" in name]
    assert [resumed[name] for name in names] == [whole[name] for name in names]


def test_two_ranks_with_sharded_weights_find_the_same_numbers_as_one(shards, glue, tmp_path):
    alone = pretrain(shards, glue, tmp_path / "alone", PROBES, *NO_DROPOUT)
    said = run_two(SUPPORT / "probed_ranks.py", str(shards), str(glue), str(tmp_path / "run"))
    first, second = (json.loads(text.split("METRICS ")[1].splitlines()[0]) for text in said)
    assert first == second
    for name, value in first.items():
        # Percent of few rows, after six updates whose sums have another order: how far they part depends on the CPU.
        assert value == pytest.approx(alone[name], rel=1e-3, abs=0.1 if "probe_" in name else 1e-3)


def test_data_that_cannot_be_probed_are_refused_before_training(shards, glue, tmp_path):
    for probe, message in (("ax", "no training data"), ("nothing", "not a task of GLUE")):
        with pytest.raises(ConfigError, match=message):
            pretrain(shards, glue, tmp_path / "run", [probe])
    with pytest.raises(InputError, match="cannot encode texts"):
        able(find_recipe("clip"), EncodesText)


def test_the_linear_fit_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression, Ridge

    torch.manual_seed(0)
    x_ND = torch.randn(200, 5) * torch.tensor([1.0, 3.0, 0.1, 2.0, 5.0]) + 7
    label_N = ((x_ND - 7) @ torch.randn(5, 3)).argmax(1)
    scaled = ((x_ND - x_ND.mean(0)) / x_ND.std(0, correction=0)).double().numpy()
    weight_CD, bias_C = fit_linear(x_ND, label_N, 3, 0.01)
    theirs = LogisticRegression(C=1 / (0.01 * 200), tol=1e-10, max_iter=10_000).fit(scaled, label_N.numpy())
    ours = (x_ND @ weight_CD.T + bias_C).softmax(1)
    torch.testing.assert_close(ours.double(), torch.from_numpy(theirs.predict_proba(scaled)), atol=1e-4, rtol=0)

    number_N = x_ND @ torch.randn(5) + torch.randn(200)
    weight_CD, bias_C = fit_linear(x_ND, number_N, 1, 0.01)
    ridge = Ridge(alpha=0.01 * 200).fit(scaled, number_N.double().numpy())
    ours = (x_ND @ weight_CD.T + bias_C)[:, 0]
    torch.testing.assert_close(ours.double(), torch.from_numpy(ridge.predict(scaled)), atol=1e-3, rtol=0)
