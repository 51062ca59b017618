"""The approximate GELUs against torch's own and against finite differences."""

import pytest
import torch
import torch.nn.functional as F

from pretrainkit.nn.activations import _TanhGelu, gelu_tanh, quick_gelu


def test_equals_torch_in_value_and_gradient():
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, 1e-30, 80.0, -80.0])])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = gelu_tanh(ours), F.gelu(theirs, approximate="tanh")
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    y.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=2e-6)


def test_gradient_by_finite_differences():
    x = torch.linspace(-4, 4, 33, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_TanhGelu.apply, (x,))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-2)])
def test_other_dtypes_keep_theirs(dtype, tolerance):
    x = torch.randn(99).to(dtype).requires_grad_()
    y = gelu_tanh(x)
    assert y.dtype == torch.autograd.grad(y.sum(), x)[0].dtype == dtype
    torch.testing.assert_close(y, F.gelu(x, approximate="tanh"), rtol=tolerance, atol=tolerance)


def test_quick_gelu_is_its_formula_in_value_and_gradient():
    x = torch.linspace(-8, 8, 101, dtype=torch.float64, requires_grad=True)
    expected = x * torch.sigmoid(1.702 * x)
    torch.testing.assert_close(quick_gelu(x), expected)
    (ours,), (theirs,) = (torch.autograd.grad(y.sum(), x) for y in (quick_gelu(x), expected))
    torch.testing.assert_close(ours, theirs)
