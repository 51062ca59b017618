"""Lion, and AdamW with steps relative to the parameter, against their formulas in float64."""

import pytest
import torch
from torch import nn

from pretrainkit.training.optimizers.build import build_optimizer
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.optimizers.per_tensor import Lion, ScaledAdamW


def steps(optimizer_of, update, shape=(5, 4), num=6):
    """Return the parameters after each step: ours, and those of `update(p, gradient, t)` in float64."""
    torch.manual_seed(0)
    start = torch.randn(shape) * 0.3
    weight = nn.Parameter(start.clone())
    optimizer, reference = optimizer_of(weight), start.double()
    for t in range(1, num + 1):
        weight.grad = torch.randn(shape) * 10.0 ** (t % 3 - 1)
        optimizer.step()
        reference = update(reference, weight.grad.double(), t)
        yield weight.detach().double(), reference


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_scaled_adamw_equals_the_formula(decay):
    first = second = torch.zeros((), dtype=torch.float64)

    def update(p, g, t):
        nonlocal first, second
        first, second = 0.9 * first + 0.1 * g, 0.98 * second + 0.02 * g * g
        direction = (first / (1 - 0.9**t)) / ((second / (1 - 0.98**t)).sqrt() + 1e-6)
        p = p - 0.02 * max(1e-3, p.square().mean().sqrt().item()) * direction
        return p * (1 - 0.02 * decay)

    config = OptimizerConfig(peak_lr=0.02, beta2=0.98, weight_decay=decay, scale_by_parameter_rms=True)
    for ours, expected in steps(lambda weight: build_optimizer(nn.ParameterList([weight]), config), update):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


def test_scaled_adamw_moves_a_parameter_of_zeros():
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.ones(3)
    ScaledAdamW([weight], lr=0.5).step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), -0.5e-3), rtol=1e-4, atol=0)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion_equals_the_formula(decay):
    moment = torch.zeros((), dtype=torch.float64)

    def update(p, g, t):
        nonlocal moment
        direction = (0.9 * moment + 0.1 * g).sign()
        moment = 0.99 * moment + 0.01 * g
        return p - 0.01 * (direction + decay * p)

    for ours, expected in steps(lambda weight: Lion([weight], lr=0.01, weight_decay=decay), update):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


def test_the_config_gives_lion_its_betas():
    optimizer = build_optimizer(nn.Linear(2, 2), OptimizerConfig(name="lion", peak_lr=1e-3, beta1=0.8, beta2=0.95))
    assert isinstance(optimizer, Lion)
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.95)}
