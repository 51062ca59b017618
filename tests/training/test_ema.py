"""The moving average of the weights."""

import pytest
import torch
from torch import nn

from pretrainkit.training.ema import Ema


def moved(model: nn.Module, amount: float) -> None:
    with torch.no_grad():
        for param in model.parameters():
            param += amount


def test_average_follows_the_formula() -> None:
    model = nn.Linear(2, 1)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    ema = Ema(model, 0.9)
    for step in range(5):
        moved(model, 0.5 * step)
        ema.update(model)
        for name, p in model.named_parameters():
            expected[name] = 0.9 * expected[name] + 0.1 * p.detach()
    for name, value in ema.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_swapping_in_and_out_is_exact_even_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight  # tied
    ema = Ema(model, 0.5)
    moved(model, 1 / 3)
    ema.update(model)
    weights = [p.detach().clone() for p in model.parameters()]
    averages = [value.clone() for value in ema.state_dict().values()]
    inside = []

    def fail_with_averages() -> None:
        with ema.swapped_in(model):
            inside.extend(p.detach().clone() for p in model.parameters())
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail_with_averages()
    assert all(torch.equal(p, average) for p, average in zip(inside, averages, strict=True))
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), weights))
    assert all(torch.equal(value, old) for value, old in zip(ema.state_dict().values(), averages))


def test_state_has_the_bare_names() -> None:
    wrapper = nn.Module()
    wrapper.module = nn.Linear(2, 2)
    ema = Ema(wrapper, 0.9)
    moved(wrapper, 1.0)
    ema.update(wrapper)
    assert set(ema.state_dict()) == {"weight", "bias"}


def test_a_decay_that_is_not_an_average_is_refused() -> None:
    with pytest.raises(ValueError, match="strictly between"):
        Ema(nn.Linear(2, 2), 1.0)
