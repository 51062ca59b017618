"""The norm against its formula."""

import pytest
import torch

from pretrainkit.nn.blocks import RMSNorm


def plain(x, weight, epsilon):
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


@pytest.mark.parametrize("shape", [(7, 16), (2, 3, 16)])
def test_equals_the_formula_in_value_and_gradient(shape):
    torch.manual_seed(0)
    norm = RMSNorm(16, 1e-6).double()
    norm.weight.data.normal_()
    x = (torch.randn(shape, dtype=torch.float64) * 3).requires_grad_()
    torch.testing.assert_close(norm(x), plain(x, norm.weight, 1e-6))
    assert torch.autograd.gradcheck(norm, (x,))
    above = torch.randn(shape, dtype=torch.float64)
    ours = torch.autograd.grad((norm(x) * above).sum(), norm.weight)[0]
    torch.testing.assert_close(ours, torch.autograd.grad((plain(x, norm.weight, 1e-6) * above).sum(), norm.weight)[0])


def test_fact_8_a_row_of_zeros_stays_zero_and_has_a_finite_gradient():
    norm, x = RMSNorm(8, 1e-6), torch.zeros(2, 8, requires_grad=True)
    assert not norm(x).any()
    norm(x).sum().backward()
    assert x.grad.isfinite().all()


def test_fact_8_statistics_are_float32_under_bfloat16():
    """1e20 squared does not fit float32's cousin with 8 bits of mantissa less than it fits float32: rounding shows."""
    torch.manual_seed(0)
    x = torch.randn(4, 4096).bfloat16()
    norm = RMSNorm(4096, 1e-6)
    assert norm(x).dtype == torch.bfloat16
    exact = plain(x, norm.weight, 1e-6)
    rounded_once = exact.bfloat16()
    torch.testing.assert_close(norm(x), rounded_once, rtol=2**-8, atol=0)  # the last bit of bfloat16 at most
