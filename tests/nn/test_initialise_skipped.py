"""Layers built without torch's own initialization."""

import torch
from torch import nn

from pretrainkit.nn.initialise import SkipInitialisation


def test_nothing_is_drawn() -> None:
    state = torch.get_rng_state()
    with SkipInitialisation():
        linear, table = nn.Linear(3, 2), nn.Embedding(4, 3)
        weight = torch.full((2, 2), 7.0)
        assert nn.init.normal_(weight) is weight
        assert nn.init.kaiming_uniform_(tensor=weight) is weight
        assert torch.equal(weight, torch.full((2, 2), 7.0))
    assert torch.equal(torch.get_rng_state(), state)
    assert linear.weight.shape == (2, 3)
    assert table.weight.requires_grad


def test_everything_else_is_as_ever_and_afterwards_all() -> None:
    with SkipInitialisation():
        assert torch.equal(torch.ones(2) + torch.arange(2), torch.tensor([1.0, 2.0]))
        assert torch.zeros(2).fill_(3).sum() == 6
    assert torch.equal(nn.init.ones_(torch.zeros(2)), torch.ones(2))


def test_on_the_meta_device() -> None:
    with torch.device("meta"), SkipInitialisation():
        assert nn.Embedding(4, 3).weight.is_meta
