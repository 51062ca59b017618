"""The gradient of a table that is looked up and used as an output matrix."""

import torch
import torch.nn.functional as F

from pretrainkit.nn.linear_cross_entropy import linear_cross_entropy, linear_logits
from pretrainkit.nn.tied_table import look_up

IDS, TARGETS = torch.tensor([3, 1, 3, 9]), torch.tensor([3, 0, 5, 11])


def plain_gradient(weight, *, twice=False):
    weight = weight.detach().clone().requires_grad_()
    logits = F.embedding(IDS, weight) @ weight.t()
    (F.cross_entropy(logits, TARGETS, reduction="sum") * (2 if twice else 1)).backward()
    return weight.grad


def test_is_the_sum_of_both_uses():
    weight = torch.randn(12, 6, requires_grad=True)
    rows, table = look_up(weight, IDS)
    linear_cross_entropy(rows, table, torch.zeros(12), TARGETS).nll_K.sum().backward()
    torch.testing.assert_close(weight.grad, plain_gradient(weight))


def test_two_heads_and_two_passes_add_up():
    weight = torch.randn(12, 6, requires_grad=True)
    for _ in range(2):
        rows, table = look_up(weight, IDS)
        losses = [linear_cross_entropy(rows, table, torch.zeros(12), TARGETS).nll_K.sum() for _ in range(2)]
        (losses[0] + losses[1]).backward()
    torch.testing.assert_close(weight.grad, 2 * plain_gradient(weight, twice=True))


def test_lookup_alone_and_logits_have_the_gradient_of_autograd():
    weight = torch.randn(12, 6, requires_grad=True)
    rows, table = look_up(weight, IDS)
    F.cross_entropy(linear_logits(rows, table, torch.zeros(12)), TARGETS, reduction="sum").backward()
    torch.testing.assert_close(weight.grad, plain_gradient(weight))
    weight.grad = None
    look_up(weight, IDS)[0].sum().backward()
    torch.testing.assert_close(weight.grad.sum(1), torch.bincount(IDS, minlength=12) * 6.0)
