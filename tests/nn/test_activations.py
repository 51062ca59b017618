"""The approximate GELUs against torch's own and against finite differences."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretrainkit.nn import activations
from pretrainkit.nn.activations import _TanhGelu, gelu, gelu_tanh, quick_gelu


def test_equals_torch_in_value_and_gradient():
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, 1e-30, 80.0, -80.0])])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = gelu_tanh(ours), F.gelu(theirs, approximate="tanh")
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    y.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_exact_gelu_equals_torch_in_value_and_gradient(threads):
    if activations._compiled() is None:
        pytest.skip("there was no compiler at installation")
    special = torch.tensor([0.0, -0.0, 1e-30, 80.0, -80.0, 1e30, -1e30, torch.inf, torch.nan])
    x = torch.cat([torch.linspace(-12, 12, 50_001), special])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    y, expected = gelu(ours), F.gelu(theirs)
    y.sum().backward()
    expected.sum().backward()
    torch.set_num_threads(before)
    torch.testing.assert_close(y, expected.float(), rtol=1e-6, atol=3e-7, equal_nan=True)
    usual = x.abs() <= 1e30
    torch.testing.assert_close(ours.grad[usual], theirs.grad.float()[usual], rtol=1e-6, atol=3e-7)
    rows = torch.randn(6, 4).t().requires_grad_()  # not contiguous
    torch.testing.assert_close(
        torch.autograd.grad(gelu(rows).sum(), rows)[0], torch.autograd.grad(F.gelu(rows).sum(), rows)[0]
    )
    assert gelu(torch.zeros(0, 3)).shape == (0, 3)
    assert gelu(x.double()).dtype == torch.float64
    compiled, one = activations._compiled(), np.zeros(3, np.float32)
    for arguments in ((one, one[:2].copy(), 1), (one, one, 0), (one, one.astype(np.float64), 1)):
        with pytest.raises(ValueError, match="do not fit"):
            compiled.forward(*arguments)
    with pytest.raises(ValueError, match="do not fit"):
        compiled.backward(one, one[:2].copy(), one, 1)


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
