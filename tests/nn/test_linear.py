"""Both libraries give the same products and gradients."""

import pytest
import torch
import torch.nn.functional as F

from pretrainkit.nn import linear as module
from pretrainkit.nn.linear import BiasedLinear, Linear, linear, product, product_into


@pytest.fixture(params=["Intel", "AMD"])
def library(request, monkeypatch):
    monkeypatch.setattr(module, "_vendor", lambda: {"Intel": "GenuineIntel", "AMD": "AuthenticAMD"}[request.param])
    monkeypatch.setattr(module, "_onednn_product", module._onednn_product.__wrapped__)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", [(9, 5), (2, 3, 5), (0, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_padded", [False, True])
def test_products_and_gradients_equal_torch(shape, dtype, is_padded):
    torch.manual_seed(0)
    x, weight = (torch.randn(size, dtype=dtype, requires_grad=True) for size in (shape, (7, 5)))
    above = torch.randn(*shape[:-1], 7, dtype=dtype)
    found, expected = linear(x, weight, is_padded=is_padded), F.linear(x, weight)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad((value * above).sum(), (x, weight)) for value in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("num", [9, 0])
def test_biased_layers_equal_torch(num):
    torch.manual_seed(0)
    layer = BiasedLinear(5, 7)
    x, above = torch.randn(num, 5, requires_grad=True), torch.randn(num, 7)
    parameters = (x, layer.weight, layer.bias)
    expected = F.linear(*parameters)
    torch.testing.assert_close(layer(x), expected)
    gradients = [torch.autograd.grad((value * above).sum(), parameters) for value in (layer(x), expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("library")
def test_products_are_written_where_they_belong():
    torch.manual_seed(0)
    x, weight, out = torch.randn(6, 5), torch.randn(5, 7).t(), torch.zeros(10, 7)
    product_into(out[2:8], x, weight)
    torch.testing.assert_close(out[2:8], x @ weight.t())
    assert not out[:2].any()
    assert not out[8:].any()


@pytest.mark.usefixtures("library")
def test_strided_operands_and_gradients_are_read_right():
    torch.manual_seed(0)
    x, weight = torch.randn(6, 10)[:, ::2].requires_grad_(), torch.randn(5, 7).t().requires_grad_()
    torch.testing.assert_close(product(x.detach(), weight.detach()), x.detach() @ weight.detach().t())
    found = [torch.autograd.grad(f(x, weight).t().expand(3, 7, 6).sum(), (x, weight)) for f in (linear, F.linear)]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_layer_is_a_linear_layer_under_autocast_too():
    layer, x = Linear(5, 7), torch.randn(4, 5)
    assert torch.equal(layer(x), linear(x, layer.weight))
    assert layer.bias is None
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_intels_processors_have_the_products_of_mkl(monkeypatch):
    monkeypatch.setattr(module, "_vendor", lambda: "GenuineIntel")
    assert module._onednn_product.__wrapped__() is None


@pytest.mark.parametrize("width", [1, 16, 17, 32, 1024])
def test_padded_rows_are_an_odd_number_of_cache_lines_long_where_mkl_multiplies(monkeypatch, width):
    monkeypatch.setattr(module, "_onednn_product", lambda: None)
    rows = module.padded(torch.zeros(1), 3, width)
    assert rows.shape[1] >= width
    assert rows.shape[1] % 32 == 16
    monkeypatch.setattr(module, "_onednn_product", lambda: F.linear)
    assert module.padded(torch.zeros(1), 3, width).shape == (3, width)
