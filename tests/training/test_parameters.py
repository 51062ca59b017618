"""Names without wrappers, and norms of lists of tensors."""

import pytest
import torch

from pretrainkit.training.optimizers.parameters import num_local_elements, plain_name, tensor_norms


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("module._orig_mod.layers.0.qkv.weight", "layers.0.qkv.weight"),
        ("layers.0._orig_mod.qkv.bias", "layers.0.qkv.bias"),
        ("submodule.weight", "submodule.weight"),
    ],
)
def test_wrappers_leave_no_trace_in_names(name, plain) -> None:
    assert plain_name(name) == plain


def test_a_rank_keeps_all_elements_of_unsharded_tensors() -> None:
    assert [num_local_elements(torch.ones(3, 4), rank) for rank in range(2)] == [12, 12]


def test_norms_are_of_each_tensor_and_at_least_float32() -> None:
    tensors = [torch.full((3, 3), 2.0), torch.zeros(0), torch.tensor([3.0, 4.0], dtype=torch.bfloat16)]
    for some in (tensors[:2], tensors[2:]):
        norms = tensor_norms(some, some)
        assert norms.dtype == torch.float32
        torch.testing.assert_close(norms, torch.tensor([t.float().norm() for t in some]))
    assert tensor_norms([], []).shape == (0,)


def test_norms_of_long_tensors_are_exact_and_those_of_single_values_never_overflow() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(300, 200), torch.tensor(1e25), torch.randn(200, 300).t(), torch.tensor([[1e-25]])]
    norms = tensor_norms(tensors, tensors)
    torch.testing.assert_close(norms.double(), torch.stack([t.double().norm() for t in tensors]), rtol=1e-6, atol=0)
    assert tensor_norms([torch.full((1 << 15,), torch.inf)] * 2, tensors[:2]).tolist() == [torch.inf] * 2
    half = torch.full((1 << 16,), 2.0, dtype=torch.float16)  # the sum of the squares would be above the largest number
    assert tensor_norms([half], [half]).tolist() == [512.0]


@pytest.mark.parametrize("num", [1_024, 16_384, 22_400])
def test_norms_do_not_depend_on_the_address(num: int) -> None:
    """DDP moves gradients between its first step and the next ones: a resumed run must repeat all digits."""
    for seed in range(20):  # the order of additions shows in the last digit of every third norm
        values = torch.randn(num, generator=torch.Generator().manual_seed(seed))
        room = torch.empty(num + 16)
        moved = [tensor_norms([place], [place]) for place in (room[n : n + num].copy_(values) for n in range(16))]
        assert {norm.item() for norm in moved} == {tensor_norms([values], [values]).item()}
