"""Initial weights."""

import pytest
import torch
from scipy import stats
from torch import nn

from pretrainkit.nn.initialise import initialise_layer, truncated_normal_


def test_is_a_normal_cut_at_two_deviations_without_correction():
    torch.manual_seed(0)
    weight = truncated_normal_(torch.empty(400, 500), 0.02)
    assert weight.abs().max() <= 0.04
    assert weight.std().item() == pytest.approx(0.0176, abs=1e-4)
    assert stats.kstest(weight.flatten()[:20_000].numpy() / 0.02, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3


def test_layers_start_with_zero_biases_and_norms_as_identity():
    linear, norm = nn.Linear(6, 5), nn.LayerNorm(4)
    nn.init.constant_(norm.weight, 3.0)
    initialise_layer(linear, 0.02)
    initialise_layer(norm, 0.02)
    assert not linear.bias.any()
    assert torch.equal(norm.weight, torch.ones(4))
