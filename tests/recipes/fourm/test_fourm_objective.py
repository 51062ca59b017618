"""Losses and their weights, in microbatches and over ranks (facts 13, 14)."""

import numpy as np
import pytest
import torch

from pretrainkit.recipes.fourm.batch import with_places
from pretrainkit.recipes.fourm.config import FourMDataConfig, FourMObjectiveConfig, FourMRun
from pretrainkit.recipes.fourm.model import build
from pretrainkit.recipes.fourm.objective import FourMObjective
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.run import PrecisionConfig
from support.fourm_batches import CAPTION, DEPTH, GLOBAL, MODALITIES, random_batch, small, tensors

TARGETS = [modality for modality in MODALITIES if modality.is_target]


def make_run(**objective):
    return FourMRun(
        num_steps=1,
        model=small(),
        objective=FourMObjectiveConfig(**objective),
        data=FourMDataConfig(batch_size=4),
        optimizer=OptimizerConfig(peak_lr=1e-3),
    )


def make_model(run):
    torch.manual_seed(0)
    return build(run.model).double()


def doubles(batch):
    return {name: value.double() if value.is_floating_point() else value for name, value in tensors(batch).items()}


def total(objective, terms):
    return sum(scale * terms[name].mean() for name, scale in objective.scales.items())


def rows(batch, some):
    return with_places({name: values[some] for name, values in batch.items() if "places" not in name}, MODALITIES)


def test_a_modality_without_targets_counts_as_zero():
    run = make_run()
    objective, model = FourMObjective(run), make_model(run)
    batch = random_batch()
    terms = objective.losses(model, doubles(batch))
    assert total(objective, terms).item() == pytest.approx(
        sum(terms[f"{m.name}_loss"].mean().item() for m in TARGETS) / len(TARGETS)
    )
    batch[f"decoder_places/{GLOBAL.name}"] = np.zeros(0, np.int32)
    found = objective.losses(model, doubles(batch))
    assert found[f"{GLOBAL.name}_loss"].weight == 0
    others = [found[f"{m.name}_loss"].mean().item() for m in TARGETS if m is not GLOBAL]
    assert total(objective, found).item() == pytest.approx(sum(others) / len(TARGETS))


@pytest.mark.parametrize("loss", ["token", "token_compat"])
def test_the_loss_by_token_has_its_documented_weights(loss):
    run = make_run(loss=loss)
    objective, model = FourMObjective(run), make_model(run)
    terms = objective.losses(model, doubles(random_batch()))
    factors = {m.name: m.vocab_size if loss == "token_compat" else 1 for m in TARGETS}
    parts = [(terms[f"{m.name}_loss"], factors[m.name]) for m in TARGETS]
    expected = sum(p.total * f for p, f in parts) / sum(p.weight * f for p, f in parts)
    assert total(objective, terms).item() == pytest.approx(expected.item())
    assert set(objective.logged) == {f"{m.name}_loss" for m in TARGETS}
    assert not any(terms[name].total.requires_grad for name in objective.logged)


def test_weights_of_modalities_are_factors():
    weights = {CAPTION.name: 3.0, DEPTH.name: 0.0}
    plain, weighted = FourMObjective(make_run()), FourMObjective(make_run(modality_weights=weights))
    for name, scale in plain.scales.items():
        assert weighted.scales[name] == pytest.approx(scale * weights.get(name.removesuffix("_loss"), 1.0))


@pytest.mark.parametrize("loss", ["modality", "token", "token_compat"])
def test_weights_are_known_before_the_forward_pass(loss):
    run = make_run(loss=loss)
    objective, batch = FourMObjective(run), doubles(random_batch())
    terms = objective.losses(make_model(run), batch)
    assert {name: terms[name].weight.item() for name in objective.scales} == {
        name: weight.item() for name, weight in objective.weights(batch).items()
    }


@pytest.mark.parametrize("loss", ["modality", "token"])
def test_one_batch_equals_its_microbatches(loss):
    run = make_run(loss=loss)
    objective = FourMObjective(run)
    batch = random_batch(num_rows=5)
    gradients = []
    for parts in ([slice(None)], [slice(0, 1), slice(1, 5)]):
        model = make_model(run)
        precision = resolve_precision(PrecisionConfig(compute="float32"), torch.device("cpu"))
        accumulate(objective, model, [doubles(rows(batch, part)) for part in parts], precision=precision)
        gradients.append([parameter.grad for parameter in model.parameters()])
    for whole, parted in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, parted, rtol=1e-5, atol=1e-7)


def test_metrics_have_losses_and_accuracies_of_all_modalities():
    run = make_run()
    objective, model = FourMObjective(run), make_model(run)
    batch = doubles(random_batch())
    metrics = objective.metrics(model, batch)
    terms = objective.losses(model, batch)
    assert set(metrics) == {"token_loss", *(f"{m.name}_{what}" for m in TARGETS for what in ("loss", "accuracy"))}
    assert metrics["token_loss"].total.item() == pytest.approx(sum(t.total.item() for t in terms.values()))
    assert all(0 <= metrics[f"{m.name}_accuracy"].mean() <= 1 for m in TARGETS)


def test_cost_counts_real_tokens_and_the_slots_of_the_budgets():
    run = make_run()
    batch = random_batch()
    cost = FourMObjective(run).cost(batch)
    assert cost.examples == 3
    assert cost.tokens == batch["encoder_length"].sum() + batch["decoder_length"].sum() < cost.slots == 3 * (30 + 28)
    assert cost.notes == {
        "input_tokens": batch["encoder_length"].sum(),
        "target_tokens": batch["decoder_length"].sum(),
    }


def test_flops_of_a_batch_without_padding_are_those_of_the_formula():
    config = small((CAPTION, DEPTH))
    num_rows, num = 2, 6
    batch = random_batch((CAPTION, DEPTH), num_rows=num_rows, num_inputs=num, num_targets=num)
    for side in ("encoder", "decoder"):  # tokens of one image in each row
        batch[f"{side}_length"][:] = num
        batch[f"{side}_modality"][:], batch[f"{side}_segment"][:] = 1, 0
    run = make_run().model_copy(update={"model": config})
    D, inner, tokens = 16, 21, num_rows * num
    encoder = 6 * tokens * (4 * D**2 + 3 * D * inner) + 12 * D * num_rows * num**2
    decoder = 6 * tokens * (8 * D**2 + 3 * D * inner) + 2 * 12 * D * num_rows * num**2
    heads = 6 * tokens * D * DEPTH.vocab_size
    expected = 2 * (encoder + decoder) + 6 * tokens * D**2 + heads
    assert FourMObjective(run).cost(with_places(batch, (CAPTION, DEPTH))).flops == pytest.approx(expected)
