"""Linear layers, by the faster of the two libraries that multiply float32 matrices on a CPU.

torch gives float32 products to MKL. On AMD's CPUs with AVX-512, oneDNN does those of a forward pass and of the gradient
of its inputs up to a quarter faster (measured: benchmarks/RESULTS.md); for the gradient of the weights MKL is as good.
On Intel's own, MKL is faster throughout, up to twice. There, elsewhere and for other types this is `nn.Linear`.

Dimensions: T tokens, D width in, E width out.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@cache
def _onednn_product() -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    """(T, D), (E, D), (E,) or None to (T, E), without autograd; None: there is no such operator or no reason for it."""
    if _vendor() == "GenuineIntel":
        return None
    if not torch.backends.mkldnn.is_available() or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return None
    try:
        operator = torch.ops.mkldnn._linear_pointwise
    except AttributeError:  # not part of torch's promises
        return None
    return lambda x_TD, weight_ED, bias_E: operator(x_TD, weight_ED, bias_E, "none", [], "")


def _vendor() -> str | None:
    """Of the processor, as it calls itself; None: it is not said."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), None)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_TD, weight_ED)
        found = padded_product(x_TD, weight_ED, bias_E)
        # A part of it only where it must be: autograd lets nobody write into that.
        return found if found.shape[1] == len(weight_ED) else found[:, : len(weight_ED)]

    @staticmethod
    def backward(ctx: Any, grad_TE: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_TD, weight_ED = ctx.saved_tensors
        grad_x = product(grad_TE, weight_ED.t()) if ctx.needs_input_grad[0] else None
        grad_weight = grad_TE.t() @ x_TD if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_TE.sum(0) if ctx.needs_input_grad[2] else None


def product(x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None = None) -> Tensor:
    """x W^T + b on a CPU, (T, E), where no gradient is wanted."""
    fast = _onednn_product()
    if fast is None or not len(x_TD) or not x_TD.dtype == weight_ED.dtype == torch.float32:
        return F.linear(x_TD, weight_ED, bias_E)
    return fast(x_TD.contiguous(), weight_ED, bias_E)


def product_into(out_TE: Tensor, x_TD: Tensor, weight_ED: Tensor) -> None:
    """x W^T into rows that are there already, on a CPU, where no gradient is wanted."""
    if _onednn_product() is None:
        torch.mm(x_TD, weight_ED.t(), out=out_TE)
    else:
        out_TE.copy_(product(x_TD, weight_ED))


def padded(like: Tensor, num_rows: int, width: int) -> Tensor:
    """Empty rows of at least `width` entries, an odd number of cache lines long.

    Rows a power of two apart fall on few sets of the cache, where they push each other out. On an Intel Xeon MKL makes
    1024 columns that are not in the cache 7 % faster so, and the gradient of their weights 18 %. oneDNN would copy
    them: where it makes the products, rows are as long as they must be.
    """
    if _onednn_product() is not None:
        return like.new_empty(num_rows, width)
    per_line = 64 // like.element_size()
    num_lines = -(-width // per_line)
    return like.new_empty(num_rows, (num_lines + (num_lines % 2 == 0)) * per_line)


def padded_product(x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None = None) -> Tensor:
    """x W^T + b in the first E columns of rows that may be longer, where no gradient is wanted."""
    if _onednn_product() is not None or x_TD.device.type != "cpu":
        return product(x_TD, weight_ED, bias_E)
    found = padded(x_TD, len(x_TD), len(weight_ED))
    inner = found[:, : len(weight_ED)]
    if bias_E is None:
        torch.mm(x_TD, weight_ED.t(), out=inner)
    else:
        torch.addmm(bias_E, x_TD, weight_ED.t(), out=inner)
    return found


def linear(x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None = None, *, is_padded: bool = False) -> Tensor:
    """x W^T + b, (T, E). With `is_padded` its rows may lie further apart, as `padded` says: for what takes them so."""
    is_float32_cpu = x_TD.device.type == "cpu" and x_TD.dtype == weight_ED.dtype == torch.float32
    is_plain = is_float32_cpu and x_TD.ndim == 2 and not torch.is_autocast_enabled("cpu")
    if not is_plain or not len(x_TD) or torch.compiler.is_compiling() or (_onednn_product() is None and not is_padded):
        return F.linear(x_TD, weight_ED, bias_E)
    return _Product.apply(x_TD, weight_ED, bias_E)


class Linear(nn.Linear):
    """Without bias."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(width_in, width_out, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """(..., D) to (..., E)."""
        return linear(x_TD, self.weight)


class BiasedLinear(nn.Linear):
    """With bias."""

    def forward(self, x_TD: Tensor) -> Tensor:
        """(T, D) to (T, E)."""
        return linear(x_TD, self.weight, self.bias)
