"""The loss against its formula in float64, and what it is divided by."""

import math

import pytest
import torch
from torch import nn

from pretrainkit.nn.linear_cross_entropy import TokenLoss
from pretrainkit.recipes.t5.inputs import read_batch
from pretrainkit.recipes.t5.model import TokenScores
from pretrainkit.recipes.t5.objective import T5Objective, smoothed_entropy, token_losses
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.precision import Precision
from support.t5_batches import VOCAB_SIZE, model_config, packed_batch, random_model, row_batch, run_config

FLOAT32 = Precision(device=torch.device("cpu"), compute_dtype=torch.float32, uses_tf32=False, scaler=None)


def reference(logits, targets, weights, smoothing, z_loss):
    """Return the loss as T5X writes it, with one-hot targets, in float64: sums of cross-entropy and z-loss."""
    logits = logits.double()
    size = logits.shape[-1]
    other = smoothing / (size - 1)
    soft = torch.full_like(logits, other).scatter(-1, targets[:, None], 1 - smoothing)
    log_z = torch.logsumexp(logits, -1)
    cross = -(soft * (logits - log_z[:, None])).sum(-1)
    cross = cross + ((1 - smoothing) * math.log(1 - smoothing) + (size - 1) * other * math.log(other + 1e-20))
    return (cross * weights).sum(), (z_loss * log_z.square() * weights).sum()


def scores_of(logits, targets):
    log_sum = torch.logsumexp(logits, -1)
    nll = log_sum - logits.gather(1, targets[:, None])[:, 0]
    return TokenScores(TokenLoss(nll, nll > 0, log_sum), logits.sum(-1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.1])
def test_losses_equal_the_formula_in_value_and_gradient(smoothing, z_loss):
    torch.manual_seed(0)
    logits = (torch.randn(20, 50, dtype=torch.float64) * 3).requires_grad_()
    targets, weights = torch.randint(50, (20,)), torch.randint(2, (20,)).double()
    ours = token_losses(scores_of(logits, targets), 50, label_smoothing=smoothing, z_loss=z_loss)
    cross, z = reference(logits, targets, weights, smoothing, z_loss)
    torch.testing.assert_close((ours.cross_entropy_K * weights).sum(), cross)
    torch.testing.assert_close((ours.z_K * weights).sum(), z)
    mine = torch.autograd.grad(((ours.cross_entropy_K + ours.z_K) * weights).sum(), logits)[0]
    torch.testing.assert_close(mine, torch.autograd.grad(cross + z, logits)[0])


@pytest.mark.parametrize("family", ["1.0", "1.1"])
def test_losses_of_a_model_equal_the_formula_in_value_and_gradient(family):
    model, batch = random_model(model_config(family)), packed_batch()
    config = run_config(model.config, label_smoothing=0.1, z_loss=1e-2)
    inputs, targets = read_batch(batch)
    cross, z = reference(model(inputs), targets.token_K, targets.weight_K, 0.1, 1e-2)
    ours = T5Objective(config).losses(model, batch)
    torch.testing.assert_close(ours["cross_ent_loss"].mean(), cross.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours["z_loss"].mean(), z.float(), rtol=1e-5, atol=1e-5)
    parameters = list(model.parameters())
    mine = torch.autograd.grad(ours["cross_ent_loss"].mean() + ours["z_loss"].mean(), parameters)
    for found, expected in zip(mine, torch.autograd.grad((cross + z).float(), parameters), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_fact_11_a_perfect_smoothed_prediction_costs_nothing_and_nothing_costs_less():
    targets = torch.tensor([3, 0])
    soft = torch.full((2, 40), 0.1 / 39, dtype=torch.float64).scatter(1, targets[:, None], 0.9)
    perfect = token_losses(scores_of(soft.log(), targets), 40, label_smoothing=0.1, z_loss=0.0)
    assert perfect.cross_entropy_K.abs().max() < 1e-5
    torch.manual_seed(0)
    others = torch.randn(500, 40, dtype=torch.float64) * torch.rand(500, 1) * 5
    losses = token_losses(scores_of(others, torch.randint(40, (500,))), 40, label_smoothing=0.1, z_loss=0.0)
    assert losses.cross_entropy_K.min() > 0


def test_smoothed_entropy_is_that_of_the_distribution():
    soft = torch.full((40,), 0.1 / 39, dtype=torch.float64)
    soft[0] = 0.9
    assert smoothed_entropy(0.1, 40) == pytest.approx(-(soft * soft.log()).sum().item())


NORMALISERS = {
    "none": lambda weights, examples: 1,
    "real_target_tokens": lambda weights, examples: weights.sum(),
    "total_target_tokens": lambda weights, examples: weights.numel(),
    50.0: lambda weights, examples: 50.0,
}


def training_loss(config, model, batches):
    """The training loss of a step and its gradient, as the loop computes it."""
    model.zero_grad()
    objective = T5Objective(config)
    sums = accumulate(objective, model, batches, precision=FLOAT32)
    loss = sum(scale * sums[name].mean() for name, scale in objective.scales.items())
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("make", [row_batch, packed_batch])
def test_fact_13_divisor_of_the_loss(make, normaliser):
    model, batch = random_model(model_config()), make()
    config = run_config(model.config, normalize_by=normaliser, z_loss=1e-2)
    config = config.model_copy(
        update={"data": config.data.model_copy(update={"batch_size": len(batch["decoder_loss_weights"])})}
    )
    loss, gradients = training_loss(config, model, [batch])
    inputs, targets = read_batch(batch)
    scores = model(inputs, targets.token_K)
    total = ((scores.loss.nll_K + 1e-2 * scores.loss.log_sum_K.square()) * targets.weight_K).sum()
    expected = total / NORMALISERS[normaliser](batch["decoder_loss_weights"], batch)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients, torch.autograd.grad(expected, list(model.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("make", "num_examples"), [(row_batch, 3), (packed_batch, 5)])
def test_fact_13_average_per_sequence(make, num_examples):
    model, batch = random_model(model_config()), make()
    batch["decoder_loss_weights"][0, 0] = 0
    config = run_config(model.config, normalize_by="average_per_sequence", z_loss=0.0)
    loss, _ = training_loss(config, model, [batch])
    inputs, targets = read_batch(batch)
    nll = model(inputs, targets.token_K).loss.nll_K
    means = [nll[targets.example_K == example].mean() for example in targets.example_K.unique()]
    assert len(means) == num_examples
    torch.testing.assert_close(loss, torch.stack(means).mean().detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normaliser", [*NORMALISERS, "average_per_sequence"])
def test_fact_14_microbatches_give_the_gradient_of_the_whole(normaliser):
    model, batch = random_model(model_config()), packed_batch()
    config = run_config(model.config, normalize_by=normaliser)
    parts = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(2)]
    (whole, gradients), (split, split_gradients) = (training_loss(config, model, b) for b in ([batch], parts))
    torch.testing.assert_close(whole, split, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients, split_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_fact_12_terms_of_the_log_have_the_divisor_of_the_loss(normaliser):
    model, batch = random_model(model_config()), row_batch()
    config = run_config(model.config, normalize_by=normaliser, z_loss=1e-2)
    config = config.model_copy(update={"data": config.data.model_copy(update={"batch_size": 3})})
    parts = [{name: value[rows] for name, value in batch.items()} for rows in (slice(0, 1), slice(1, 3))]
    objective = T5Objective(config)
    sums = accumulate(objective, model, parts, precision=FLOAT32)
    inputs, targets = read_batch(batch)
    scores = model(inputs, targets.token_K)
    z_sum = 1e-2 * (targets.weight_K * scores.loss.log_sum_K.square()).sum()
    divisor = NORMALISERS[normaliser](batch["decoder_loss_weights"], batch)
    torch.testing.assert_close(sums["z_loss"].mean(), z_sum / divisor, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums["cross_ent_loss"].mean(), scores.loss.nll_K.sum() / divisor, rtol=1e-5, atol=1e-6)
    assert set(objective.scales.values()) == {1.0}  # so that the loss of the log is the sum of both
    held_out = objective.metrics(model, batch)
    torch.testing.assert_close(held_out["z_loss"].mean(), z_sum / divisor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normaliser", ["none", "real_target_tokens"])
def test_training_reports_loss_and_accuracy_per_target_token_for_any_divisor(normaliser):
    model, batch = random_model(model_config()), packed_batch()
    objective = T5Objective(run_config(model.config, normalize_by=normaliser))
    parts = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(2)]
    sums = accumulate(objective, model, parts, precision=FLOAT32)
    expected = objective.metrics(model, batch)
    shown = [name for name in ("loss_per_nonpadding_target_token", "accuracy") if name in objective.logged]
    assert len(shown) == (1 if normaliser == "real_target_tokens" else 2)
    for name in shown:
        torch.testing.assert_close(sums[name].mean(), expected[name].mean(), rtol=1e-5, atol=1e-6)
    per_token = expected["cross_ent_loss"].mean() + expected["z_loss"].mean()
    if normaliser == "real_target_tokens":
        torch.testing.assert_close(per_token, expected["loss_per_nonpadding_target_token"].mean())


def test_names_of_normalisers_are_read_as_t5x_writes_them():
    assert run_config(normalize_by="NUM_REAL_TARGET_TOKENS").objective.normalize_by == "real_target_tokens"
    assert run_config(normalize_by="AVERAGE_PER_SEQUENCE").objective.normalize_by == "average_per_sequence"
    assert run_config(normalize_by=233_472).objective.normalize_by == 233_472.0


@pytest.mark.parametrize("name", ["adamw", "lamb", "lion", "muon"])
def test_only_adafactor_may_clip_the_gradient_of_a_sum(name):
    clipped = {"name": name, "peak_lr": 1e-3, "max_grad_norm": 1.0}
    for settings, is_refused in ((clipped, True), (clipped | {"max_grad_norm": 0.0}, False)):
        config = run_config(normalize_by="none").model_copy(update={"optimizer": OptimizerConfig(**settings)})
        assert any("objective.normalize_by=none sums the loss" in one for one in config.problems()) == is_refused


def test_fact_12_z_loss_is_part_of_the_loss_and_not_of_scores():
    model, batch = random_model(model_config()), row_batch()
    inputs, targets = read_batch(batch)
    scores = model(inputs, targets.token_K)
    config = run_config(model.config, normalize_by=1.0)
    sums = T5Objective(config).losses(model, batch | {"num_examples": torch.tensor([config.data.batch_size])})
    expected = 1e-4 * (targets.weight_K * scores.loss.log_sum_K.square()).sum()
    torch.testing.assert_close(sums["z_loss"].mean(), expected)
    log_probs_K = -scores.loss.nll_K * targets.weight_K
    found = torch.zeros(targets.num_groups).index_add(0, targets.example_K, log_probs_K)
    probability = torch.log_softmax(model(inputs), -1).gather(1, targets.token_K[:, None])[:, 0]
    by_row = torch.stack([probability[targets.example_K == e].sum() for e in targets.example_K.unique()])
    torch.testing.assert_close(found[targets.example_K.unique()], by_row, rtol=1e-5, atol=1e-5)


def test_metrics_are_per_token_of_the_whole_batch():
    model, batch = random_model(model_config()), packed_batch()
    found = T5Objective(run_config(model.config)).metrics(model, batch)
    inputs, targets = read_batch(batch)
    logits = model(inputs)
    torch.testing.assert_close(
        found["nll_per_target_token"].mean(), nn.functional.cross_entropy(logits, targets.token_K)
    )
    assert found["accuracy"].mean() == (logits.argmax(1) == targets.token_K).float().mean()
    assert found["accuracy"].weight == batch["decoder_loss_weights"].sum()


@pytest.mark.parametrize(("make", "tokens"), [(row_batch, 12 + 7 + 1 + 16), (packed_batch, 30 + 18)])
def test_cost_counts_real_tokens(make, tokens):
    model = random_model(model_config())
    batch = {name: value.numpy() for name, value in make().items()}
    cost = T5Objective(run_config(model.config)).cost(batch)
    assert cost.tokens == tokens
    assert cost.examples == (3 if make is row_batch else 5)
    assert cost.slots == batch["encoder_input_tokens"].size + batch["decoder_input_tokens"].size
    num_weights = sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight") and "norm" not in n)
    assert 0 < cost.flops < 6 * tokens * (num_weights + 4 * 24 * 20 * 4)


def test_a_sum_is_refused_where_it_would_be_clipped_away():
    config = run_config(model_config(vocab_size=VOCAB_SIZE))
    assert any("normalize_by=none" in problem for problem in config.problems())
    assert not run_config(normalize_by="real_target_tokens").problems()
