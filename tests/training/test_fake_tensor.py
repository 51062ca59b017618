"""Tensors without numbers have the shapes, formats and memory of those that have them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pretrainkit.training.fake_tensor import FakeTensor


def fake(*shape: int) -> FakeTensor:
    return FakeTensor(torch.empty(*shape, device="meta"))


@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x @ x.t(),
        lambda x: F.layer_norm(x, x.shape[1:]),
        lambda x: x.topk(2)[1],
        lambda x: x.new_zeros(3, dtype=torch.int16),
        lambda x: x[:, torch.tensor([0, 2])],
        lambda x: torch.cat([x, torch.ones(1, x.shape[1])]),
        lambda x: x.t().sum(0, keepdim=True),
        lambda x: x > 0,
        lambda x: x[1:3],
        lambda x: x.view(2, 2, 6).transpose(0, 2)[1:],
        lambda x: x.split(2, dim=1)[1],
        lambda x: x[2:].as_strided((2, 3), (6, 2), 6),
        lambda x: x[1:].transpose_(0, 1),
        lambda x: x.unsqueeze_(1),
        lambda x: torch.nn.GRU(x.shape[1], 3, batch_first=True, device=x.device)(x[None])[0].detach(),
    ],
)
def test_computed_results_have_the_form_of_real_ones(compute, repeat):
    for _ in range(repeat):  # the second time uses a stored result
        found, real = compute(fake(4, 6)), compute(torch.rand(4, 6))
    assert isinstance(found, FakeTensor)
    assert (found.shape, found.dtype, found.stride(), found.storage_offset(), found.device) == (
        real.shape,
        real.dtype,
        real.stride(),
        real.storage_offset(),
        real.device,
    )


def test_views_share_memory_and_results_do_not():
    x = fake(4, 6)
    assert x[1:].t().fake_storage is x.fake_storage
    assert (x + 1).fake_storage is not x.fake_storage
    assert x.fake_storage.nbytes() == 4 * 4 * 6


def test_equal_views_share_memory_with_their_base():
    first, second = fake(4, 6), fake(4, 6)
    for x in (first, second):
        for part in (x[1:], x.t(), *x.split(2), *x.split(2)):
            assert part.fake_storage is x.fake_storage
    assert [part.storage_offset() for part in (second[1:2][0], second[2:3][0], second[2:3][0])] == [6, 12, 12]


def test_changing_a_shape_in_place_does_not_change_equal_tensors():
    x = fake(0)
    torch.add(fake(3), 1, out=x)
    assert (fake(0) + 1).shape == (0,)
    fake(4, 6).t_()
    assert (fake(4, 6) * 3).shape == (4, 6)


def test_equal_operations_give_tensors_of_their_own():
    x = fake(4, 6)
    first, second = x * 2, x * 2
    assert first.fake_storage is not second.fake_storage
    assert first.add_(second) is first
    assert second[0].fake_storage is second.fake_storage


def test_products_are_computed_in_the_format_of_autocast():
    weight = torch.nn.Parameter(fake(5, 6))
    with torch.autocast("cpu", torch.bfloat16):
        found: Tensor = F.linear(fake(4, 6), weight)
    assert found.dtype == torch.bfloat16
    found.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
