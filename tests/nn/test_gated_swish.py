"""The layer in one pass is the same function as its single operations, forwards and backwards."""

import pytest
import torch
import torch.nn.functional as F

from pretrainkit.nn import gated_swish as module
from pretrainkit.nn.gated_swish import gated_swish


@pytest.mark.parametrize("block", [1 << 17, 48])
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
