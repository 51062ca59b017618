"""Losses as sums, metrics and costs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretrainkit.recipes.bert.inputs import read_batch
from pretrainkit.recipes.bert.objective import BertObjective
from pretrainkit.recipes.bert.recipe import RECIPE
from support.bert_batches import SLOTS, WIDTH, modern_config, packed_batch, row_batch, run_config


@pytest.fixture
def model():
    torch.manual_seed(0)
    found = RECIPE.build_model(run_config())
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=0.3) if parameter.ndim > 1 else None
    return found


def host(batch):
    return {name: tensor.numpy() for name, tensor in batch.items()}


def part(batch, rows):
    return {name: tensor[rows] for name, tensor in batch.items()}


def test_loss_is_weighted_mean_of_nll_plus_mean_cross_entropy(model):
    """Fact 32, against logits and the definition."""
    batch, objective = row_batch([5, WIDTH, 9]), BertObjective(run_config())
    outputs = model(read_batch(batch, WIDTH)[0])
    is_used = batch["masked_lm_weights"].flatten() > 0
    log_probabilities = F.log_softmax(outputs.logits_KV, -1)
    nll = -log_probabilities[torch.arange(int(is_used.sum())), batch["masked_lm_ids"].flatten()[is_used].long()]
    order = F.cross_entropy(outputs.sentence_order_B2, batch["next_sentence_label"])
    losses = objective.losses(model, batch)
    torch.testing.assert_close(losses["masked_lm_loss"].mean(), nll.mean())
    torch.testing.assert_close(losses["next_sentence_loss"].mean(), order)
    assert objective.scales == {"masked_lm_loss": 1.0, "next_sentence_loss": 1.0}


def test_unused_prediction_slots_change_nothing(model):
    """Fact 32."""
    batch, objective = row_batch([5, WIDTH, 9]), BertObjective(run_config())
    before = objective.losses(model, batch)
    wider = {name: F.pad(tensor, (0, 3)) if "masked_lm" in name else tensor for name, tensor in batch.items()}
    wider["masked_lm_ids"][:, SLOTS:] = 99
    for name, term in objective.losses(model, wider).items():
        torch.testing.assert_close(term.total, before[name].total)
        assert term.weight == before[name].weight


@pytest.mark.parametrize("room", [0, 13])
def test_packed_batches_give_the_losses_and_metrics_of_rows(model, room):
    rows, objective = row_batch([5, WIDTH, 9, 3]), BertObjective(run_config())
    packed = packed_batch(rows, room=room)
    expected, found = objective.metrics(model, rows), objective.metrics(model, packed)
    assert expected.keys() == found.keys()
    for name in expected:
        torch.testing.assert_close(found[name].total, expected[name].total, rtol=1e-5, atol=1e-5)
        assert found[name].weight == expected[name].weight


def test_weights_are_known_from_the_batch_alone(model):
    objective = BertObjective(run_config())
    for batch in (row_batch([5, 9]), packed_batch(row_batch([5, 9]), room=4)):
        weights, losses = objective.weights(batch), objective.losses(model, batch)
        assert {name: weight.item() for name, weight in weights.items()} == {
            name: term.weight.item() for name, term in losses.items()
        }
        assert all(term.total.dtype == term.weight.dtype == torch.float32 for term in losses.values())


def test_one_batch_equals_its_parts_in_loss_and_gradient(model):
    """Microbatches of unequal weight: sums over the parts, divided by the weights of the whole."""
    batch, objective = row_batch([5, WIDTH, 9, 12, 3]), BertObjective(run_config())
    weights = objective.weights(batch)

    def backward(parts):
        model.zero_grad()
        for one in parts:
            terms = objective.losses(model, one)
            sum(term.total / weights[name] for name, term in terms.items()).backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    whole = backward([batch])
    for ours, theirs in zip(whole, backward([part(batch, slice(0, 1)), part(batch, slice(1, 5))]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_metrics_count_right_answers_over_predictions_and_pairs(model):
    batch, objective = row_batch([5, WIDTH, 9]), BertObjective(run_config())
    batch["token_type_ids"][2] = 0  # one single segment, padding included
    inputs, targets = read_batch(batch, WIDTH)
    outputs = model(inputs)
    metrics = objective.metrics(model, batch)
    is_right = outputs.logits_KV.argmax(1) == targets.token_K
    assert metrics["masked_lm_accuracy"].total == is_right.sum()
    assert metrics["masked_lm_accuracy"].weight == batch["masked_lm_weights"].sum()
    order_right = outputs.sentence_order_B2.argmax(1) == batch["next_sentence_label"]
    assert metrics["next_sentence_accuracy"].total == order_right[:2].sum()
    assert metrics["next_sentence_accuracy"].weight == 2
    assert not any(term.total.requires_grad for term in metrics.values())


def test_without_sentence_order_there_is_one_term_and_no_pooler():
    config = run_config(sentence_order=False)
    model, objective = RECIPE.build_model(config), BertObjective(config)
    batch = row_batch([5, 9])
    del batch["next_sentence_label"]
    assert list(objective.losses(model, batch)) == list(objective.weights(batch)) == ["masked_lm_loss"]
    assert set(objective.metrics(model, batch)) == {"masked_lm_loss", "masked_lm_accuracy"}
    assert not [name for name, _ in model.named_parameters() if "sentence_order" in name]


def test_cost_counts_real_tokens_and_predictions_only():
    """The formula of performance.md agrees with a separate count for each example."""
    config = run_config()
    rows = row_batch([5, WIDTH, 9])
    width, inner, layers, vocab = 32, 48, 2, 300
    predictions = int(rows["masked_lm_weights"].sum())
    expected = 6 * predictions * (width * vocab + width**2) + 3 * 6 * (width**2 + 2 * width)
    for length in (5, WIDTH, 9):
        expected += 6 * layers * (4 * width**2 + 2 * width * inner) * length + 12 * layers * width * length**2
    for batch, slots in ((rows, 3 * WIDTH), (packed_batch(rows, room=7), 38 + 7)):
        cost = BertObjective(config).cost(host(batch))
        assert (cost.examples, cost.tokens, cost.slots) == (3, 38, slots)
        assert cost.flops == pytest.approx(expected)


def test_cost_of_a_base_token_is_that_of_the_reference_table():
    """performance.md 1.1: 5.47e8 per token for BERT-base, 32 k pieces, 20 of 128 predicted."""
    from pretrainkit.recipes.bert.presets import base

    batch = {
        "lengths": np.full(8, 128),
        "masked_lm_weights": np.ones((8, 20), np.float32),
        "input_ids": np.zeros((8, 128), np.int32),
    }
    cost = BertObjective(base()).cost(batch)
    assert cost.flops / cost.tokens == pytest.approx(5.47e8, rel=0.005)


def test_cost_of_local_layers_stops_at_the_window():
    config = modern_config()
    short, long = (
        {"lengths": np.array([n]), "masked_lm_weights": np.zeros(1), "input_ids": np.zeros(n)} for n in (8, 60)
    )
    objective = BertObjective(config)
    per_token = 6 * 4 * (4 * 32**2 + 3 * 32 * 40)
    assert objective.cost(short).flops == pytest.approx(8 * per_token + 12 * 32 * 4 * 8 * 8)
    assert objective.cost(long).flops == pytest.approx(60 * per_token + 12 * 32 * (2 * 60 * 60 + 2 * 60 * 9))


@pytest.mark.parametrize("arch", ["bert", "modern"])
def test_bfloat16_gives_nearly_the_loss_and_gradient_of_float32(arch):
    """Dropout is off; bfloat16 has 8 bits of precision."""
    config = run_config() if arch == "bert" else modern_config()
    torch.manual_seed(0)
    model, objective = RECIPE.build_model(config), BertObjective(config)
    results = []
    for is_half in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            terms = objective.losses(model, row_batch([5, WIDTH, 9]))
        assert all(term.total.dtype == torch.float32 for term in terms.values())
        loss = sum(term.mean() for term in terms.values())
        loss.backward()
        results.append((loss.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])))
    (loss, gradient), (half_loss, half_gradient) = results
    assert half_loss == pytest.approx(loss, rel=1e-2)
    assert F.cosine_similarity(gradient, half_gradient, dim=0) > 0.999


def test_dropout_in_bfloat16_trains_too():
    config = run_config()
    model_config = config.model.model_copy(update={"hidden_dropout": 0.1, "attention_dropout": 0.1})
    config = config.model_copy(update={"model": model_config})
    model, objective = RECIPE.build_model(config), BertObjective(config)
    with torch.autocast("cpu", torch.bfloat16):
        terms = objective.losses(model, row_batch([5, WIDTH, 9]))
    sum(term.mean() for term in terms.values()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
