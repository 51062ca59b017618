"""The layer in one pass is the same function as its single operations, forwards and backwards."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretrainkit.nn import gated_swish as module
from pretrainkit.nn.gated_swish import gated_swish


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(module, "_compiled", lambda: None)
    elif module._compiled() is None:
        pytest.skip("there was no compiler at installation")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("block", [1 << 18, 48])
def test_the_fused_layer_is_the_plain_one(monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    torch.manual_seed(0)
    shapes = (11, 8), (24, 8), (8, 12)
    arguments = [torch.randn(shape, requires_grad=True) for shape in shapes]
    copies = [one.detach().clone().requires_grad_() for one in arguments]
    gate, up = F.linear(copies[0], copies[1]).chunk(2, dim=-1)
    wanted = F.linear(F.silu(gate) * up, copies[2])
    found = gated_swish(*arguments)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    above = torch.randn_like(wanted)
    found.backward(above)
    wanted.backward(above)
    for one, copy in zip(arguments, copies, strict=True):
        torch.testing.assert_close(one.grad, copy.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("way")
def test_no_tokens_have_gradients_of_zeros():
    arguments = [torch.randn(shape, requires_grad=True) for shape in ((0, 8), (24, 8), (8, 12))]
    gated_swish(*arguments).sum().backward()
    assert all(one.grad is not None and not one.grad.any() for one in arguments)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("threads", [1, 2])
def test_gates_of_any_size_are_the_plain_ones(threads):
    extremes = torch.tensor(
        [-1e30, -200, -90, -87, -1e-6, 0, 1e-6, 87, 90, 200, 1e30, torch.nan, -torch.inf, torch.inf]
    )
    torch.manual_seed(0)
    both = torch.cat((extremes.repeat(2, 1), torch.randn(2, 14)), dim=1).contiguous()
    above, inner, again, found = torch.randn(2, 14), torch.empty(2, 14), torch.empty(2, 14), torch.empty(2, 28)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    module._gate(both, inner, 14)
    module._gate_back(both, above.clone(), again, found, 14)
    torch.set_num_threads(before)
    exact = both.double().requires_grad_()
    gate, up = exact.chunk(2, dim=1)
    wanted = F.silu(gate) * up
    wanted.backward(above.double())
    usual = extremes.isfinite() & (extremes.abs() < 1e30)
    torch.testing.assert_close(inner[:, usual], wanted.detach().float()[:, usual], rtol=1e-5, atol=1e-6)
    both_usual = usual.repeat(2)
    torch.testing.assert_close(found[:, both_usual], exact.grad.float()[:, both_usual], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(again[:, usual], inner[:, usual], rtol=1e-5, atol=1e-6)
    assert inner[:, extremes.isnan()].isnan().all()
    assert found[:, :14][:, extremes.isnan()].isnan().all()


def test_arrays_that_do_not_fit_are_refused():
    compiled = pytest.importorskip("pretrainkit.nn._gated_swish", reason="there was no compiler at installation")
    both, inner = np.zeros((3, 8), np.float32), np.zeros((3, 4), np.float32)
    compiled.forward(both, inner, 4, 1)
    for arguments in (
        (both[:2], inner, 4, 1),
        (both, inner, 5, 1),
        (both, inner, 0, 1),
        (both, inner, 4, 0),
        (both, inner, 1 << 62, 1),
        (both, inner, 4, 1 << 20),
        (both.ravel(), inner, 4, 1),
        (both.astype(np.float64), inner, 4, 1),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            compiled.forward(*arguments)
    again, found = inner.copy(), both.copy()
    compiled.backward(both, again, inner, found, 4, 1)
    for arguments in (
        (both, again, inner, found[:2], 4, 1),
        (both, again, inner[:2], found, 4, 1),
        (both, again[:2], inner, found, 4, 1),
        (both, again, inner, found[:, :7].copy(), 4, 1),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            compiled.backward(*arguments)
    inner.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        compiled.forward(both, inner, 4, 1)


def test_what_is_behind_the_rows_is_not_touched():
    compiled = pytest.importorskip("pretrainkit.nn._gated_swish", reason="there was no compiler at installation")
    numbers = np.random.default_rng(0)
    both, inner = numbers.standard_normal((5, 40), np.float32), np.full((5, 21), 7, np.float32)
    compiled.forward(both, inner, 19, 2)
    assert (inner[:, 19:] == 7).all()
    wanted = F.silu(torch.from_numpy(both[:, :19])) * torch.from_numpy(both[:, 19:38])
    torch.testing.assert_close(torch.from_numpy(inner[:, :19]), wanted, rtol=1e-5, atol=1e-6)
    above, found = numbers.standard_normal((5, 30), np.float32), np.full((5, 39), 7, np.float32)
    compiled.backward(both, inner, above, found, 19, 2)
    assert (found[:, 38:] == 7).all()
    assert (inner[:, 19:] == 7).all()
