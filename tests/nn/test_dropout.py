"""Dropout: the stated rate, an unchanged mean, nothing at evaluation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.nn.cpu.dropout import keep_factors
from pretrainkit.nn.dropout import dropout


@settings(max_examples=10, deadline=None)
@given(rate=st.floats(0.02, 0.9), seed=st.integers(0, 2**31))
def test_share_dropped_and_mean_are_as_stated(rate, seed):
    torch.manual_seed(seed)
    factors = keep_factors((200, 1000), rate)
    deviation = (rate * (1 - rate) / 200_000) ** 0.5
    assert abs((factors == 0).double().mean() - rate) < 5 * deviation + 2**-16
    assert abs(factors.double().mean() - 1) < 5 * deviation / (1 - rate)
    assert len(factors.unique()) == 2


def test_elements_are_independent_of_their_neighbours():
    torch.manual_seed(0)
    is_dropped = (keep_factors((1_000_000,), 0.25) == 0).double()
    for shift in (1, 2, 3, 4, 7, 64):
        both = (is_dropped[:-shift] * is_dropped[shift:]).mean()
        assert abs(both - 1 / 16) < 5 * (1 / 16 / 1e6) ** 0.5


def test_same_seed_same_mask_and_gradient_uses_it():
    x = torch.randn(7, 5, requires_grad=True)
    torch.manual_seed(3)
    y = dropout(x, 0.5, is_training=True)
    torch.manual_seed(3)
    factors = keep_factors((7, 5), 0.5)
    assert torch.equal(y, x * factors)
    y.sum().backward()
    assert torch.equal(x.grad, factors)


@pytest.mark.parametrize(("rate", "is_training"), [(0.0, True), (0.5, False)])
def test_nothing_happens_without_a_rate_or_at_evaluation(rate, is_training):
    x = torch.randn(3)
    assert dropout(x, rate, is_training=is_training) is x
