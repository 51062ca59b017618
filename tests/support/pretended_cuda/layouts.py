"""The CPU with the layouts of a GPU, its attention kernels and its rules of autocast: it computes what a GPU does, in
the same formats. Import it before models."""

import pretrainkit.nn.cpu.dispatch as dispatch

_is_on = False
_chosen = {name: getattr(dispatch, name) for name in ("drops_padding", "has_cheap_dropout", "chunks_vocabulary")}
for name, own in _chosen.items():
    setattr(dispatch, name, lambda some, _own=own: not _is_on and _own(some))

import warnings  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from functools import wraps  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import pretrainkit.nn.cuda.attention as cuda  # noqa: E402  # imports the functions above by name
from support.pretended_cuda import attention  # noqa: E402

_CARD = (9, 0)
_varlen, _flex = cuda.has_varlen, cuda.has_flex
cuda.has_varlen = lambda qkv_T3HK, card: _varlen(qkv_T3HK, _CARD if _is_on else card)
cuda.has_flex = lambda some, head_width: head_width >= 16 if _is_on else _flex(some, head_width)

_IN_FLOAT32 = (
    *("layer_norm", "group_norm", "softmax.int", "log_softmax.int", "nll_loss", "mse_loss", "linalg_vector_norm"),
    *("sum", "sum.dim_IntList", "pow.Tensor_Scalar", "rsqrt", "exp", "log", "logsumexp", "cumsum"),
)
"""Operators that autocast computes in float32 on a GPU, and on a CPU in the format they are given."""


def _plain(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel whose own operators autocast leaves alone."""

    @wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return kernel(*args, **kwargs)

    return run


def _in_float32(operator: Any) -> Callable[..., Any]:
    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return operator(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()})

    return run


def _fused_dropout(x: Tensor, rate: float, is_training: bool) -> Tensor:
    """A CPU rounds 1 / (1 - rate) to the format of `x`, the kernel of a GPU does not."""
    return torch.native_dropout(x, rate, is_training)[0] if rate and is_training else x


torch.library.register_kernel("torch_attn::_varlen_attn", "cpu", _plain(attention.varlen_forward))
torch.library.register_kernel("torch_attn::_varlen_attn_backward", "cpu", _plain(attention.varlen_backward))
_aten = torch.library.Library("aten", "IMPL")
_aten.impl("_flash_attention_forward", _plain(attention.flash_forward), "CPU")
_aten.impl("_flash_attention_backward", _plain(attention.flash_backward), "CPU")


@contextmanager
def of_a_gpu() -> Iterator[None]:
    global _is_on
    _is_on = True
    try:
        with (
            torch.library._scoped_library("aten", "IMPL") as rules,
            warnings.catch_warnings(),
            sdpa_kernel(SDPBackend.MATH),
        ):
            warnings.simplefilter("ignore")
            for name in _IN_FLOAT32:
                base, _, overload = name.partition(".")
                operator = getattr(getattr(torch.ops.aten, base), overload or "default")
                rules.impl(name, _in_float32(operator), "AutocastCPU")
            rules.impl("dropout", _fused_dropout, "AutocastCPU")
            yield
    finally:
        _is_on = False
