"""Budgets follow the original's distribution, though they are drawn in another way."""

import numpy as np
import pytest
import scipy.stats
import torch

from pretrainkit import rng
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.fourm.masking import (
    Shares,
    component_of,
    dirichlet,
    log_gamma_draws,
    probability_of_largest,
)
from pretrainkit.recipes.fourm.mixtures import PUBLISHED, Bound, Component
from pretrainkit.recipes.fourm.modality import MOD7, MOD21, published

NO_LIMIT = 10**6


def keys(num, seed=0):
    return rng.fold(rng.stream_key(seed, "test"), np.arange(num))


def torch_budgets(alphas, num_tokens, num):
    """Return budgets (num, D) drawn as in 4M, with torch's Dirichlet, whose largest share is below 1."""
    torch.manual_seed(0)
    law = torch.distributions.Dirichlet(torch.tensor(alphas).clamp(min=1e-9))
    found = (law.sample((num,)) * num_tokens).floor().long()
    for row in range(num):
        for _ in range(num_tokens - int(found[row].sum())):
            found[row, law.sample().argmax()] += 1
    return found.numpy()


def original_budgets(generator, alphas, num_tokens, num):
    """Return budgets by the published description: round shares down, then give each missing token to the largest of a
    further draw."""
    found = np.zeros((num, len(alphas)), np.int64)
    for row in found:
        row[:] = np.floor(generator.dirichlet(alphas) * num_tokens)
        for _ in range(num_tokens - row.sum()):
            row[generator.dirichlet(alphas).argmax()] += 1
    return found


@pytest.mark.parametrize("alphas", [[0.5] * 8, [5.0, 0.3, 0.3, 0.3], [0.1, 0.1, 2.0]])
def test_budgets_are_distributed_as_those_of_the_original(alphas):
    num, tokens = 4000, 64
    expected = original_budgets(np.random.default_rng(0), alphas, tokens, num)
    shares = Shares(np.array([alphas]))
    drawn = shares.draw(keys(num), np.zeros(num, np.int64), np.full(num, tokens), np.full((num, len(alphas)), NO_LIMIT))
    assert (drawn.sum(axis=1) == tokens).all()
    error = expected.std(axis=0) * np.sqrt(2 / num)
    assert (np.abs(drawn.mean(axis=0) - expected.mean(axis=0)) < 4.5 * error).all()
    assert abs((drawn > 0).mean() - (expected > 0).mean()) < 0.015
    for quantile in (0.25, 0.5, 0.75, 0.9):
        gap = np.quantile(drawn, quantile, axis=0) - np.quantile(expected, quantile, axis=0)
        assert (np.abs(gap) <= 3).all()


@pytest.mark.parametrize(
    ("alpha", "tokens", "nonempty"), [(0.01, 128, 2.15), (0.1, 128, 4.4), (0.5, 128, 7.1), (1, 256, 7.9), (10, 256, 8)]
)
def test_small_concentrations_give_few_modalities(alpha, tokens, nonempty):
    num = 4000
    shares = Shares(np.full((1, 8), alpha))
    drawn = shares.draw(keys(num), np.zeros(num, np.int64), np.full(num, tokens), np.full((num, 8), NO_LIMIT))
    np.testing.assert_allclose(drawn.mean(axis=0) / tokens, 1 / 8, atol=0.025)
    assert (drawn > 0).sum(axis=1).mean() == pytest.approx(nonempty, abs=0.1)


@pytest.mark.parametrize("alphas", [[0.01] * 8, [0.01] * 5 + [0.05, 0.0]])
def test_small_concentrations_hand_out_a_remainder_as_torchs_dirichlet_does(alphas):
    expected = torch_budgets(alphas, 128, 6000)
    num = 40_000
    shares = Shares(np.array([alphas]))
    drawn = shares.draw(keys(num), np.zeros(num, np.int64), np.full(num, 128), np.full((num, len(alphas)), NO_LIMIT))
    found, true = ((budgets > 0).sum(axis=1) for budgets in (drawn, expected))
    assert abs(found.mean() - true.mean()) < 4 * true.std() / 6000**0.5
    np.testing.assert_allclose(drawn.mean(axis=0), expected.mean(axis=0), atol=3)


def test_the_chance_of_being_largest_is_that_of_draws():
    alphas = np.array([5.0, 0.05, 0.05, 1.0, 0.0])
    generator = np.random.default_rng(1)
    wins = np.bincount(generator.dirichlet(alphas[:4], 40_000).argmax(axis=1), minlength=5) / 40_000
    found = probability_of_largest(alphas)
    assert found.sum() == pytest.approx(1)
    assert found[4] == 0
    np.testing.assert_allclose(found, wins, atol=0.006)


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 1.5, 8.0])
def test_gamma_variates_have_the_distribution_of_scipy(shape):
    drawn = log_gamma_draws(keys(40_000), np.full((40_000, 1), shape))[:, 0]
    assert scipy.stats.kstest(drawn, scipy.stats.loggamma(shape).cdf).pvalue > 1e-3


def test_draws_are_those_of_a_dirichlet_distribution():
    alphas = np.array([0.3, 1.0, 2.7])
    drawn = dirichlet(keys(20_000), np.broadcast_to(alphas, (20_000, 3)))
    total = alphas.sum()
    np.testing.assert_allclose(drawn.mean(axis=0), alphas / total, atol=0.01)
    variance = alphas * (total - alphas) / (total**2 * (total + 1))
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.06)


def test_pixels_alone_fill_no_more_than_their_patches():
    modalities = [published(name) for name in MOD7]
    bound = Bound(PUBLISHED["mod7-all2all-rgb2all"], modalities, MOD7)
    limits = np.array([[modality.max_tokens for modality in modalities]] * 50)
    drawn = Shares(bound.inputs_KD).draw(keys(50), np.zeros(50, np.int64), np.full(50, 256), limits)
    assert (drawn[:, MOD7.index("rgb@224")] == 196).all()
    assert (drawn.sum(axis=1) == 196).all()


def test_the_mixture_of_seven_divides_as_published():
    modalities = [published(name) for name in MOD7]
    bound = Bound(PUBLISHED["mod7-all2all-rgb2all"], modalities, MOD7)
    num = 8000
    component = component_of(keys(num, 1), bound.weights_K)
    limits = np.array([[modality.max_tokens for modality in modalities]] * num)
    inputs = Shares(bound.inputs_KD).draw(keys(num, 2), component, np.full(num, 128), limits).mean(axis=0)
    targets = Shares(bound.targets_KD).draw(keys(num, 3), component, np.full(num, 128), limits).mean(axis=0)
    rgb = MOD7.index("rgb@224")
    assert inputs[rgb] == pytest.approx(71, abs=2)
    np.testing.assert_allclose(np.delete(inputs, rgb), 8, atol=0.8)
    assert targets[rgb] == 0
    np.testing.assert_allclose(np.delete(targets, rgb), 128 / 7, atol=1)


def test_components_are_drawn_by_weight():
    weights = np.array([1, 1, 1, 1, 1, 0.5, 0.5])
    found = np.bincount(component_of(keys(60_000), weights), minlength=7) / 60_000
    np.testing.assert_allclose(found, weights / 6, atol=0.006)


def test_inputs_only_get_no_target_tokens():
    modalities = [published(name) for name in MOD21]
    bound = Bound(PUBLISHED["mod21-all2allmix-rgb2all-capT5bias"], modalities, MOD21)
    no_target = [MOD21.index(name) for name in ("rgb@224", "t5_caption")]
    assert (bound.targets_KD[:, no_target] == 0).all()
    assert len(bound.weights_K) == 7
    assert bound.inputs_KD[5, MOD21.index("caption")] == 5
    assert bound.inputs_KD[5, MOD21.index("t5_caption")] == 0


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (Component(targets={"rgb": 1.0}), "it is not a target of the model"),
        (Component(inputs={"smell": 1.0}), "not a modality of the model"),
        (Component(inputs={"caption": 0.0}), "no inputs or no targets"),
    ],
)
def test_mixtures_that_do_not_fit_are_refused(component, message):
    with pytest.raises(ConfigError, match=message):
        Bound([component], [published(name) for name in MOD7], MOD7)
