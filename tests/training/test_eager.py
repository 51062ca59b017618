"""Optimizers without the guards for torch.compile: torch's to the bit, and the compiler stays out of a run's start."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from pretrainkit.training.eager import EagerAdamW
from pretrainkit.training.optimizers.per_tensor import Lamb

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-6}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 3))


def make_optimizer(kind: type[torch.optim.AdamW], model: nn.Module, fused: bool) -> torch.optim.AdamW:
    parameters = list(model.parameters())
    groups = [{"params": parameters[::2], "weight_decay": 0.1}, {"params": parameters[1::2], "weight_decay": 0.0}]
    return kind(groups, **SETTINGS, fused=fused)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 7)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("fused", [True, False])
def test_updates_are_those_of_torch_to_the_bit(fused: bool) -> None:
    ours, theirs = make_model(), make_model()
    our_optimizer = make_optimizer(EagerAdamW, ours, fused)
    their_optimizer = make_optimizer(torch.optim.AdamW, theirs, fused)
    train(ours, our_optimizer, range(5))
    train(theirs, their_optimizer, range(5))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(our_optimizer.state_dict(), their_optimizer.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(("first", "second"), [(EagerAdamW, torch.optim.AdamW), (torch.optim.AdamW, EagerAdamW)])
def test_state_loads_into_torch_and_back(first: type, second: type) -> None:
    straight = make_model()
    train(straight, make_optimizer(first, straight, True), range(6))
    model = make_model()
    before = make_optimizer(first, model, True)
    train(model, before, range(3))
    after = make_optimizer(second, model, True)
    after.load_state_dict(before.state_dict())
    train(model, after, range(3, 6))
    torch.testing.assert_close(model.state_dict(), straight.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [EagerAdamW, Lamb])
def test_an_optimizer_has_the_interface_of_torch(kind: type[torch.optim.Optimizer]) -> None:
    model = make_model()
    optimizer = kind(model.parameters(), **SETTINGS)
    assert isinstance(optimizer, torch.optim.Optimizer)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.register_state_dict_post_hook(lambda *_: calls.append("state"))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 7)).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).requires_grad
    optimizer.state_dict()
    assert calls == ["after", "state"]
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": list(model.parameters())})


def test_the_first_update_does_not_load_the_compiler() -> None:
    code = """
import sys, torch
from pretrainkit.recipes.bert.config import BertModelConfig
from pretrainkit.recipes.bert.model import build
from pretrainkit.training.optimizers.build import build_optimizer, clip_gradients, set_learning_rate, step_if_finite
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.run import PrecisionConfig

config = BertModelConfig(vocab_size=50, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
model = build(config, has_sentence_order=True)
precision = resolve_precision(PrecisionConfig(), torch.device("cpu"))
for name in ("adamw", "lamb"):
    settings = OptimizerConfig(name=name, peak_lr=1e-3)
    optimizer = build_optimizer(model, settings)
    set_learning_rate(optimizer, 1e-3)
    optimizer.zero_grad(set_to_none=True)
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    step_if_finite(optimizer, precision, clip_gradients(model.parameters(), settings))
    optimizer.load_state_dict(optimizer.state_dict())
print({"torch._dynamo", "sympy"} & set(sys.modules))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.stdout, process.stderr) == ("set()\n", "")
