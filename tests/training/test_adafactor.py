"""Adafactor against its formula in float64, its facts, and against shards of itself."""

import math

import pytest
import torch
from torch import nn

from pretrainkit.training.optimizers import adafactor
from pretrainkit.training.optimizers.adafactor import Adafactor, factored_dims
from pretrainkit.training.optimizers.build import build_optimizer, set_learning_rate
from pretrainkit.training.optimizers.config import AdafactorConfig, OptimizerConfig, ParameterGroup


class Reference:
    """T5X's Adafactor for one parameter, written with plain numbers and no regard for memory."""

    def __init__(self, parameter, **options):
        self.p = parameter.double().clone()
        self.options = options
        self.step, self.moment = 0, torch.zeros_like(self.p)
        shape = self.p.shape
        order = sorted(range(len(shape)), key=lambda dim: (shape[dim], dim))
        self.dims = None
        if options.get("factored", True) and len(shape) == 2 and shape[order[0]] >= options.get("smallest", 128):
            self.dims = order[0], order[1]  # second largest, largest
        self.v = torch.zeros_like(self.p)
        self.row = self.col = torch.zeros((), dtype=torch.float64)

    def update(self, gradient, lr):
        options = self.options
        self.step += 1
        beta = 1 - (self.step - options.get("step_offset", 0)) ** -0.8
        gradient = gradient.double()
        square = gradient * gradient + 1e-30
        if self.dims is None:
            self.v = beta * self.v + (1 - beta) * square
            u = gradient / self.v.sqrt()
        else:
            smaller, larger = self.dims
            self.row = beta * self.row + (1 - beta) * square.mean(larger)
            self.col = beta * self.col + (1 - beta) * square.mean(smaller)
            u = gradient * (self.row / self.row.mean()).pow(-0.5).unsqueeze(larger)
            u = u * self.col.pow(-0.5).unsqueeze(smaller)
        u = u / max(1.0, rms(u) / 1.0)
        scale = max(1e-3, rms(self.p)) if options.get("is_scaled", True) else 1.0
        u = lr * min(scale, options.get("limit", math.inf)) * u
        if "beta1" in options:
            self.moment = options["beta1"] * self.moment + (1 - options["beta1"]) * u
            u = self.moment
        self.p = (1 - options.get("decay", 0.0)) * self.p - u


def rms(tensor):
    return tensor.square().mean().sqrt().item()


def gradients(shape, num):
    torch.manual_seed(1)
    return [torch.randn(shape) * 10.0 ** (index % 3 - 1) for index in range(num)]


CASES = {
    "default": ({}, {}),
    "momentum": ({"beta1": 0.9}, {"beta1": 0.9}),
    "not factored": ({"factored": False}, {"factored": False}),
    "absolute": ({"multiply_by_parameter_scale": False}, {"is_scaled": False}),
    "limited": ({"max_parameter_scale": 0.01}, {"limit": 0.01}),
    "decay": ({"weight_decay_rate": 0.02}, {"decay": 0.02}),
    "decay with the square of the rate alone": ({"weight_decay_lr_exponent": 2.0}, {"decay": 0.05**2}),
    "no decay with an exponent of 0": ({"weight_decay_lr_exponent": 0.0}, {}),
    "decay with the rate": ({"weight_decay_rate": 0.5, "weight_decay_lr_exponent": 2.0}, {"decay": 0.5 * 0.05**2}),
}


@pytest.mark.parametrize("squares_first", [True, False], ids=["as on a CPU", "as on a GPU"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(160, 144), (144, 160), (128, 128), (200, 64), (7,)])
def test_equals_the_formula(case, shape, squares_first, monkeypatch):
    monkeypatch.setattr(adafactor, "_squares_first", lambda values: squares_first)
    config, options = CASES[case]
    torch.manual_seed(0)
    holder = nn.ParameterList([torch.randn(shape) * 0.05])
    reference = Reference(holder[0].detach(), **options)
    optimizer = build_optimizer(
        holder, OptimizerConfig(name="adafactor", peak_lr=1.0, adafactor=config, decay_mask="all")
    )
    for gradient in gradients(shape, 5):
        holder[0].grad = gradient.clone()
        set_learning_rate(optimizer, 0.05)
        optimizer.step()
        reference.update(gradient, 0.05)
        torch.testing.assert_close(holder[0].detach().double(), reference.p, rtol=2e-5, atol=1e-7)


def test_states_have_the_sizes_of_the_original():
    shapes = {"wide": (160, 144), "narrow": (200, 64), "bias": (6, 32), "scale": (5,)}
    tensors = {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    optimizer = Adafactor(tensors.values(), lr=1.0, config=AdafactorConfig())
    for tensor in tensors.values():
        tensor.grad = torch.randn_like(tensor)
    optimizer.step()
    found = {
        name: {key: list(value.shape) for key, value in optimizer.state[tensor].items() if key != "step"}
        for name, tensor in tensors.items()
    }
    assert found == {
        "wide": {"v_row": [144], "v_col": [160]},
        "narrow": {"v": [200, 64]},
        "bias": {"v": [6, 32]},
        "scale": {"v": [5]},
    }


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((160, 144), (1, 0)), ((144, 160), (0, 1)), ((128, 128), (0, 1)), ((127, 999), None), ((4, 200, 200), None)],
)
def test_which_tensors_are_factored_and_how(shape, dims):
    assert factored_dims(shape, AdafactorConfig()) == dims


def test_fact_15_the_second_moment_starts_without_a_past():
    weight = nn.Parameter(torch.ones(3))
    optimizer = Adafactor([weight], lr=0.0, config=AdafactorConfig())
    beta = 1 - 2**-0.8
    assert beta == pytest.approx(0.42565, abs=1e-5)
    for gradient in (2.0, 4.0):
        weight.grad = torch.full((3,), gradient)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[weight]["v"], torch.full((3,), beta * 4 + (1 - beta) * 16))


def test_fact_15_a_parameter_of_zeros_can_move():
    weight = nn.Parameter(torch.zeros(4))
    weight.grad = torch.tensor([1.0, -1.0, 1.0, -1.0])
    Adafactor([weight], lr=0.5, config=AdafactorConfig()).step()
    torch.testing.assert_close(weight.detach(), -0.5e-3 * torch.tensor([1.0, -1.0, 1.0, -1.0]))


@pytest.mark.parametrize("shape", [(160, 144), (9,)])
def test_fact_16_the_size_of_gradients_does_not_matter(shape):
    found = []
    for factor in (1.0, 1000.0):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(shape))
        optimizer = Adafactor([weight], lr=0.1, config=AdafactorConfig())
        before = weight.detach().clone()
        for gradient in gradients(shape, 3):
            weight.grad = factor * gradient
            optimizer.step()
        found.append(weight.detach() - before)
    assert (found[0] - found[1]).norm() < 1e-5 * found[0].norm()


def test_nan_updates_can_be_left_out_element_by_element():
    found = []
    for is_skipped in (False, True):
        weight = nn.Parameter(torch.ones(3))
        optimizer = Adafactor([weight], lr=0.1, config=AdafactorConfig(skip_nan_updates=is_skipped))
        weight.grad = torch.tensor([1.0, 2.0, 3.0])
        optimizer.step()
        before = weight.detach().clone()
        weight.grad = torch.tensor([1.0, math.nan, 3.0])
        optimizer.step()
        found.append((weight.detach(), before, optimizer.state[weight]["v"]))
    assert found[0][0].isnan().all()  # the mean square of the update is no number either
    assert torch.equal(found[1][0], found[1][1])
    assert found[1][2].isfinite().all()


def test_groups_have_their_own_rate():
    holder = nn.ParameterDict({"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.ones(3))})
    groups = (ParameterGroup(pattern="b", lr_scale=0.0),)
    optimizer = build_optimizer(holder, OptimizerConfig(name="adafactor", peak_lr=1.0, groups=groups))
    for parameter in holder.values():
        parameter.grad = torch.ones(3)
    set_learning_rate(optimizer, 0.5)
    optimizer.step()
    assert torch.equal(holder["b"].detach(), torch.ones(3))
    assert not torch.equal(holder["a"].detach(), torch.ones(3))
