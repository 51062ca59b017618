"""Exceptions by name, and the optimizers with momentum: SGD as torch's, LARS as its formula."""

import numpy as np
import pytest
import torch
from torch import nn

from pretrainkit.errors import ConfigError
from pretrainkit.training.optimizers.build import build_optimizer, set_learning_rate
from pretrainkit.training.optimizers.config import OptimizerConfig, ParameterGroup


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def settings_by_name(net: nn.Module, config: OptimizerConfig) -> dict[str, tuple[float, float]]:
    optimizer = build_optimizer(net, config)
    set_learning_rate(optimizer, 1.0)
    by_id = {id(p): (g["weight_decay"], g["lr"]) for g in optimizer.param_groups for p in g["params"]}
    return {name: by_id[id(parameter)] for name, parameter in net.named_parameters()}


def test_with_the_mask_all_every_parameter_decays():
    found = settings_by_name(model(), OptimizerConfig(peak_lr=1, weight_decay=0.3, decay_mask="all"))
    assert set(found.values()) == {(0.3, 1.0)}


def test_groups_change_matching_parameters_and_the_last_one_counts():
    groups = (ParameterGroup(pattern="bias", weight_decay=0.0), ParameterGroup(pattern=r"^0\.", lr_scale=0.1))
    config = OptimizerConfig(peak_lr=1, weight_decay=0.3, decay_mask="all", groups=groups)
    found = settings_by_name(model(), config)
    assert found["0.weight"] == (0.3, 0.1)
    assert found["0.bias"] == (0.0, 0.1)
    assert found["2.bias"] == (0.0, 1.0)
    assert found["1.weight"] == (0.3, 1.0)


def test_a_later_group_changes_only_what_it_sets():
    """ZeroVL's optim.param_group_rules does the same: every rule that matches is merged, in order."""
    groups = (
        ParameterGroup(pattern=r"^0\.", lr_scale=0.1),
        ParameterGroup(pattern="bias", weight_decay=0.0),
        ParameterGroup(pattern=r"^0\.bias", lr_scale=0.5),
    )
    config = OptimizerConfig(peak_lr=1, weight_decay=0.3, decay_mask="all", groups=groups)
    for order, lr_scale in ((groups, 0.5), (groups[:2], 0.1), (groups[1::-1], 0.1)):
        found = settings_by_name(model(), config.model_copy(update={"groups": order}))
        assert found["0.weight"] == (0.3, 0.1)
        assert found["0.bias"] == (0.0, lr_scale)
        assert found["2.bias"] == (0.0, 1.0)


def test_equal_settings_share_one_group():
    config = OptimizerConfig(peak_lr=1, groups=(ParameterGroup(pattern="weight", lr_scale=1.0),))
    assert len(build_optimizer(model(), config).param_groups) == 2


def test_a_pattern_that_finds_nothing_is_refused():
    config = OptimizerConfig(peak_lr=1, groups=(ParameterGroup(pattern="embeding"),))
    with pytest.raises(ConfigError, match=r"embeding[\s\S]*0\.weight"):
        build_optimizer(model(), config)


def test_a_broken_pattern_is_refused_when_it_is_given():
    with pytest.raises(ValueError, match="is not a valid regular expression"):
        ParameterGroup(pattern="(")


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fact_42_lars_is_its_formula(nesterov, weight_decay):
    net = model().double()
    config = OptimizerConfig(
        name="lars", peak_lr=6.4, momentum=0.9, weight_decay=weight_decay, decay_mask="all", nesterov=nesterov
    )
    optimizer = build_optimizer(net, config)
    expected = [p.detach().numpy().copy() for p in net.parameters()]
    buffers = [np.zeros_like(p) for p in expected]
    rng = np.random.default_rng(0)
    for step in range(4):
        lr = 6.4 / (step + 1)
        set_learning_rate(optimizer, lr)
        grads = [rng.normal(size=p.shape) for p in expected]
        if step == 2:
            grads[0][:] = 0  # where a norm is 0 the local rate is 1
        for parameter, grad in zip(net.parameters(), grads, strict=True):
            parameter.grad = torch.from_numpy(grad)
        optimizer.step()
        for p, g, v in zip(expected, grads, buffers, strict=True):
            size, slope = np.linalg.norm(p), np.linalg.norm(g)
            local = 0.001 * size / (slope + weight_decay * size + 1e-8) if size and slope else 1.0
            new = local * lr * (g + weight_decay * p)
            v[:] = 0.9 * v + new
            p -= new + 0.9 * v if nesterov else v
    for parameter, p in zip(net.parameters(), expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), p, rtol=1e-6, atol=1e-12)


def test_sgd_is_torchs():
    ours, theirs = model(), model()
    config = OptimizerConfig(name="sgd", peak_lr=0.1, momentum=0.8, weight_decay=0.05, decay_mask="all", nesterov=True)
    optimizers = (
        build_optimizer(ours, config),
        torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.8, weight_decay=0.05, nesterov=True),
    )
    for _ in range(3):
        for net, optimizer in zip((ours, theirs), optimizers, strict=True):
            net(torch.ones(4, 5)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
