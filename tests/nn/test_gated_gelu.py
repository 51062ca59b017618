"""The fused feed-forward layer is the one that is written as single operations."""

import pytest
import torch
import torch.nn.functional as F

from pretrainkit.nn import gated_gelu as room
from pretrainkit.nn.dropout import keep_factors
from pretrainkit.nn.gated_gelu import gated_gelu, is_fused

TOKENS, WIDTH, INNER = 37, 12, 20


def tensors(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = (TOKENS, WIDTH), (INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def plain(x, gate, up, down, keep=1.0):
    return (F.gelu(x @ gate.t(), approximate="tanh") * (x @ up.t()) * keep) @ down.t()


@pytest.mark.parametrize("block", [1, INNER * 8, 1 << 18])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_values_and_gradients_are_those_of_single_operations(monkeypatch, block, rate):
    monkeypatch.setattr(room, "_BLOCK", block)
    given, above = tensors(), torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    torch.manual_seed(1)
    found = gated_gelu(*given, dropout_rate=rate)
    torch.manual_seed(1)
    keep = keep_factors((TOKENS, INNER), rate) if rate else 1.0
    wanted = plain(*given, keep)
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(
        torch.autograd.grad(found, given, above), torch.autograd.grad(wanted, given, above), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_in_float32_it_rounds_as_float32_does():
    given = tensors(torch.float32)
    found, exact = gated_gelu(*given), plain(*[tensor.double() for tensor in given])
    assert float(((found - exact).norm() / exact.norm()).detach()) < 1e-6


def test_large_activations_have_finite_gradients():
    x, gate, up, down = tensors(torch.float32)
    found = gated_gelu(1e4 * x, gate, up, down)
    grads = torch.autograd.grad(found.sum(), [x, gate, up, down])
    assert all(bool(grad.isfinite().all()) for grad in grads)


def test_inputs_without_gradient_get_none():
    x, gate, up, down = tensors()
    x = x.detach()
    gated_gelu(x, gate, up, down).sum().backward()
    assert x.grad is None
    assert gate.grad is not None


def test_it_is_for_float32_in_training_alone():
    x, gate = torch.zeros(2, 3), torch.zeros(4, 3)
    assert is_fused(x, gate)
    assert not is_fused(x.double(), gate.double())
    assert not is_fused(x[:0], gate)
    with torch.no_grad():
        assert not is_fused(x, gate)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_fused(x, gate)
