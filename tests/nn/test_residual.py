"""The residual stream of blocks in the format of products, where the precision has this setting."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretrainkit.dist.autocast import narrow_residual, residual
from pretrainkit.nn.blocks import PlainPreNormBlock, PostNormBlock, PreNormBlock
from pretrainkit.nn.foreign import repeated_modules
from pretrainkit.nn.row_layout import RowLayout
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.precision import Precision
from pretrainkit.training.trainer import to_device
from support.small_work import foreign_towers, glue

LAYOUT = RowLayout(2, 5)
SETTINGS = {"attention_dropout_rate": 0.0, "dropout_rate": 0.0, "activation": "gelu", "epsilon": 1e-6}
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "post": lambda: PostNormBlock(16, 2, 32, **SETTINGS),
    "plain pre": lambda: PlainPreNormBlock(16, 2, 32, **SETTINGS),
    "pre": lambda: PreNormBlock(16, 2, 32, window=None, has_attention_norm=True, **SETTINGS),
}


@pytest.fixture(autouse=True)
def wide_again():
    yield
    narrow_residual(False)


def trained(kind: str, precision: Precision, *, is_recomputed: bool = False) -> tuple[Tensor, Tensor]:
    """Output, and gradient of the input."""
    torch.manual_seed(0)
    block = BLOCKS[kind]()
    x_TD = torch.randn(10, 16, requires_grad=True)
    with precision.autocast():
        stream_TD = residual(x_TD)  # as towers do before their blocks
        y_TD = checkpoint(block, stream_TD, LAYOUT, use_reentrant=False) if is_recomputed else block(stream_TD, LAYOUT)
    (y_TD.float() * torch.randn(10, 16, generator=torch.Generator().manual_seed(1))).sum().backward()
    return y_TD, x_TD.grad


@pytest.mark.parametrize("kind", BLOCKS)
def test_the_stream_is_narrow_if_configured_and_close_to_the_wide_one(kind):
    wide, gradient = trained(kind, Precision(torch.get_default_device(), torch.float32, False, None))
    narrow = Precision(torch.get_default_device(), torch.bfloat16, False, None, has_narrow_residual=True)
    found, found_gradient = trained(kind, narrow)
    assert wide.dtype == torch.float32
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wide, rtol=0.03, atol=0.03)
    assert (found_gradient - gradient).norm() < 0.03 * gradient.norm()
    again, again_gradient = trained(kind, narrow, is_recomputed=True)
    assert torch.equal(again, found)
    assert torch.equal(again_gradient, found_gradient)


def test_without_autocast_nothing_is_rounded():
    narrow_residual(True)
    assert BLOCKS["pre"]()(residual(torch.zeros(10, 16)), LAYOUT).dtype == torch.float32


@pytest.mark.parametrize("make", [foreign_towers, lambda: glue("classes", is_foreign=True)], ids=["clip", "glue"])
def test_the_stream_of_encoders_of_other_libraries_is_narrow_as_well(make):
    with torch.device("cpu"):
        work = make()
    work.model.to(torch.get_default_device())
    entered: dict[str, set[torch.dtype]] = {"wide": set(), "narrow": set()}
    gradients: dict[str, Tensor] = {}
    for name, is_narrow in (("wide", False), ("narrow", True)):
        precision = Precision(torch.get_default_device(), torch.bfloat16, False, None, has_narrow_residual=is_narrow)
        hooks = [
            part.register_forward_pre_hook(lambda part, args, seen=entered[name]: seen.add(args[0].dtype))
            for block in repeated_modules(work.model)
            for part in block.modules()
            if isinstance(part, nn.LayerNorm)
        ]
        work.model.eval().zero_grad()  # without dropout
        accumulate(work.objective, work.model, [to_device(work.batches[0], precision.device)], precision=precision)
        for hook in hooks:
            hook.remove()
        grads = [parameter.grad.flatten() for parameter in work.model.parameters() if parameter.grad is not None]
        gradients[name] = torch.cat(grads)
    assert hooks
    assert entered == {"wide": {torch.float32}, "narrow": {torch.bfloat16}}
    assert (gradients["narrow"] - gradients["wide"]).norm() < 0.1 * gradients["wide"].norm()
