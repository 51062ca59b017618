"""Activations by name against their formulas."""

import math

import pytest
import torch

from pretrainkit.nn.activations import ACTIVATIONS

FORMULAS = {
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "relu": lambda x: x.clamp(min=0),
    "swish": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradients_are_those_of_the_formula(name):
    x = torch.linspace(-8, 8, 100, dtype=torch.float64, requires_grad=True)
    found, expected = ACTIVATIONS[name](x), FORMULAS[name](x)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)
