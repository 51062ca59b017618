"""The objective on a toy model: decoupled accumulation, mixup, whole runs, what it counts."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import evaluate
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.objective import ClipObjective
from pretrainkit.recipes.clip.source import mixup_of_step
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.precision import Precision
from pretrainkit.training.run import CheckpointConfig
from pretrainkit.training.watch import Watcher
from support.clip_two_ranks import train
from support.toy_pairs import (
    ToyEncoder,
    batch_of,
    cut,
    gradients,
    relative_error,
    toy_config,
)

FLOAT32 = Precision(device=torch.device("cpu"), compute_dtype=torch.float32, uses_tf32=False, scaler=None)
SETTINGS = [
    {},
    {"gather_gradient": False},
    {"label_smoothing": 0.1},
    {"duplicates": "ignore"},
    {"duplicates": "positives"},
    {"loss": "siglip"},
    {"loss": "siglip", "duplicates": "positives"},
    {"mixup": {}},
    {"mixup": {}, "duplicates": "positives", "label_smoothing": 0.1},
]


def accumulated(config: ClipRun, model, microbatches) -> tuple[dict, dict]:
    model.zero_grad()
    terms = accumulate(ClipObjective(config), model, microbatches, precision=FLOAT32)
    return gradients(model), terms


def plain(config: ClipRun, model, microbatches) -> tuple[dict, torch.Tensor]:
    """Compute by autograd through one graph: each microbatch is embedded, all graphs are kept."""
    model.zero_grad()
    objective = ClipObjective(config)
    parts = [objective.embed(model, batch) for batch in microbatches]
    vectors = {key: torch.cat([part.vectors[key] for part in parts]) for key in parts[0].vectors}
    labels = {key: torch.cat([part.labels[key] for part in parts]) for key in parts[0].labels}
    terms = objective.loss_from(model, vectors, labels, slice(0, len(vectors["image"])))
    loss = terms["contrastive_loss"].total / terms["contrastive_loss"].weight
    loss.backward()
    return gradients(model), loss


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("sizes", [[12], [6, 6], [3, 3, 3, 3], [5, 5, 2], [1] * 12], ids=str)
def test_fact_25_26_accumulation_equals_the_whole_batch(settings, sizes):
    """Under mixup: the whole batch whose mixing pairs are reversed inside each microbatch."""
    config = toy_config(settings)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for step in (0, 5, 9):  # under mixup steps 0 and 9 mix texts, 5 images
            torch.manual_seed(step)
            model = ToyEncoder(config.objective.loss).to(dtype)
            microbatches = cut(batch_of(config, seed=step, step=step), sizes)
            expected, loss = plain(config, model, microbatches)
            found, terms = accumulated(config, model, microbatches)
            assert "temperature.temperature" in found
            assert relative_error(found, expected) < tolerance
            torch.testing.assert_close(terms["contrastive_loss"].mean(), loss.detach(), rtol=1e-5, atol=0)


def test_both_kinds_of_mixup_steps_are_among_those_tested():
    config = toy_config({"mixup": {}}).objective.mixup
    assert {mixup_of_step(config, step)[1] for step in (0, 5, 9)} == {0.0, 1.0}


@given(seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=10)
def test_dropout_is_replayed_with_the_temperature_learned(seed):
    config = toy_config({"mixup": {}})
    torch.manual_seed(seed)
    model = ToyEncoder(config.objective.loss, dropout=0.5).double()
    microbatches = cut(batch_of(config, seed=seed), [5, 5, 2])
    torch.manual_seed(7)
    expected, _ = plain(config, model, microbatches)
    torch.manual_seed(7)
    found, _ = accumulated(config, model, microbatches)
    assert relative_error(found, expected) < 1e-12


@pytest.mark.parametrize(("step", "mixed", "whole"), [(1, "image", "text"), (0, "text", "image")])
def test_fact_23_a_step_mixes_one_modality_and_leaves_the_other_untouched(step, mixed, whole):
    config = toy_config({"mixup": {"beta": 5.0}})
    step = next(s for s in range(step, 99) if mixup_of_step(config.objective.mixup, s)[1] == (mixed == "image"))
    model, objective = ToyEncoder(config.objective.loss), ClipObjective(config)
    batch = batch_of(config, step=step)
    found = objective.embed(model, batch)
    plain = objective.embed(model, {name: t for name, t in batch.items() if name != "mixup"})
    assert torch.equal(found.vectors[whole], plain.vectors[whole])
    assert not torch.allclose(found.vectors[mixed], plain.vectors[mixed])
    assert found.labels.keys() == {"partner_offset", "share"}
    assert plain.labels == {}


def test_metrics_are_those_of_the_batch_alone_and_give_the_training_loss():
    for chosen in SETTINGS:
        config = toy_config(chosen)
        batch = batch_of(config)
        batch.pop("mixup", None)  # evaluation never mixes
        model = ToyEncoder(config.objective.loss)
        host = {name: t.numpy() for name, t in batch.items()}
        found = evaluate(ClipObjective(config), model, [host], precision=FLOAT32)
        _, loss = plain(config, model, [batch])
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert found["temperature"] == pytest.approx(0.2)
        assert 0 <= found["i2t_accuracy"] <= 1
        if "mixup" in chosen and "label_smoothing" not in chosen:
            assert found["hard_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_cost_counts_pairs_real_tokens_and_bad_rows_by_reason():
    config = toy_config()
    batch = {name: t.numpy() for name, t in batch_of(config, num=12).items()}
    cost = ClipObjective(config).cost(batch)
    assert (cost.examples, cost.tokens, cost.slots) == (12, int(batch["num_tokens"].sum()), 12 * 6)
    assert cost.notes["bad_broken_image"] == int((batch["bad"] == 2).sum()) > 0
    assert cost.notes["bad_missing_image"] == 0
    assert sum(cost.notes.values()) == np.count_nonzero(batch["bad"])


class Killed(Exception):
    """Raised in place of the end of the process."""


class KilledAt(Watcher):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int, num_steps: int) -> None:
        if step == self.step:
            raise Killed


@pytest.mark.parametrize("data", [{"order": "debias"}, {"order": "sequential", "compat_static_order": True}])
def test_a_run_that_was_killed_and_resumed_is_the_run_that_was_not(tmp_path, data):
    config = toy_config(
        {"mixup": {}},
        {**data, "microbatch_size": 4},
        num_steps=9,
        checkpoint=CheckpointConfig(every_steps=3, asynchronous=False),
    )
    straight = train(config, tmp_path / "straight", World(), dropout=0.3)
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", World(), dropout=0.3, watcher=KilledAt(5))
    resumed = train(config, tmp_path / "killed", World(), dropout=0.3, resume=True)
    assert resumed.first_step == 3
    for name, value in straight.parameters.items():
        assert torch.equal(resumed.parameters[name], value), name
    lines = [json.loads(line) for line in (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()]
    again = [json.loads(line) for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    for name in ("loss", "contrastive_loss", "hard_loss", "i2t_accuracy", "t2i_accuracy", "temperature", "grad_norm"):
        assert [line[name] for line in again[-6:]] == [line[name] for line in lines[-6:]], name


def test_a_resumed_run_refuses_another_order(tmp_path):
    from pretrainkit.errors import DataError

    config = toy_config({}, {"order": "debias"}, num_steps=4)
    train(config, tmp_path, World())
    for data in (
        {"order": "shuffle"},
        {"order": "debias", "debias_seed": 3},
        {"order": "debias", "debias_exponent": 0},
    ):
        with pytest.raises(DataError, match="would not continue the same data"):
            train(toy_config({}, data, num_steps=6), tmp_path, World(), resume=True)


def test_the_temperature_is_brought_back_after_each_update(tmp_path):
    config = toy_config(num_steps=5)
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"peak_lr": 0.5})})
    found = train(config, tmp_path, World())
    assert 0.001 <= found.parameters["temperature.temperature"].item() <= 0.5
