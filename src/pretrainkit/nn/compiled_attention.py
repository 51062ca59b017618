"""Attention within examples on a CPU by compiled code (`_attention.c`), where the tokens lie.

Nothing is gathered, padded or put back, and no operator is called for each example. Where there was no compiler at
installation, `pretrainkit.nn.stacked_attention` computes the same.

Dimensions: T tokens that ask, S tokens that are asked, H heads, K width of one head, E examples.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit.nn.compiled import call, part
from pretrainkit.nn.linear import padded
from pretrainkit.nn.stacked_attention import Lengths

_LANES = 16
"""Heads are a multiple of it wide."""


class Examples(NamedTuple):
    """Examples of two streams."""

    rows_E5: NDArray[np.int64]
    """First query, queries, first key, keys, prefix."""
    num_queries: int
    """Of all examples together."""
    num_keys: int


_compiled = partial(part, "_attention")


def is_compiled(x: Tensor) -> bool:
    """Whether `attend` takes queries, keys and values (..., K) of this kind."""
    is_float32_cpu = x.device.type == "cpu" and x.dtype == torch.float32
    is_plain = is_float32_cpu and x.shape[-1] % _LANES == 0 and not torch.compiler.is_compiling()
    return is_plain and _compiled() is not None


def place_examples(lengths: Lengths, *, is_causal: bool) -> Examples:
    """
    Args:
        lengths: Examples with at least one query and one key, by rising keys. No two share a query or a key.
        is_causal: A query sees keys up to its own number, and those of its prefix.
    """
    prefix_E = lengths.num_prefix_E if is_causal else lengths.num_keys_E
    rows_E5 = np.stack([*lengths[:4], prefix_E], axis=1).astype(np.int64)
    return Examples(rows_E5, int(lengths.num_queries_E.sum()), int(lengths.num_keys_E.sum()))


def attend(q_THK: Tensor | None, kv: Tensor, examples: Examples, num_tokens: int, scale: float) -> Tensor:
    """softmax(scale q k) v, (T, H, K). Zeros for queries that see no key.

    Args:
        q_THK: Queries; None: they are the first of the three in `kv`.
        kv: (S, 2, H, K) keys and values, or (T, 3, H, K) queries, keys and values, for which `is_compiled` is true.
        examples: Of these streams.
        num_tokens: T.
        scale: Positive.
    """
    found: Tensor = _CompiledAttention.apply(q_THK, kv, examples, num_tokens, scale)
    return found


class _CompiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_THK: Tensor | None, kv: Tensor, examples: Examples, num_tokens: int, scale: float) -> Any:
        compiled, (num_heads, width) = _compiled(), kv.shape[2:]
        assert compiled is not None
        q_rows, kv_rows = _rows_of(kv.new_empty(0) if q_THK is None else q_THK), _rows_of(kv)
        shifts_HT2 = kv.new_empty(num_heads, num_tokens, 2)
        mixed_THK = kv.new_empty(num_tokens, num_heads, width)
        if examples.num_queries != num_tokens:
            mixed_THK.zero_()
        arrays = (q_rows, kv_rows, examples.rows_E5, shifts_HT2, mixed_THK)
        places = (q_rows.shape[1], kv_rows.shape[1])
        if examples.num_queries:
            call(compiled.forward, *arrays, num_heads, width, scale, torch.get_num_threads(), *places)
        ctx.save_for_backward(q_rows, kv_rows, shifts_HT2, mixed_THK)
        ctx.num_parts, ctx.examples, ctx.scale, ctx.has_queries = kv.shape[1], examples, scale, q_THK is None
        return mixed_THK

    @staticmethod
    def backward(ctx: Any, grad_THK: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        q_rows, kv_rows, shifts_HT2, mixed_THK = ctx.saved_tensors
        compiled, examples, (num_heads, width) = _compiled(), ctx.examples, mixed_THK.shape[1:]
        assert compiled is not None
        num_own, num_asked = len(mixed_THK), len(kv_rows)
        to_kv, to_q = padded(kv_rows, num_asked, ctx.num_parts * num_heads * width), kv_rows.new_empty(0)
        if not ctx.has_queries:
            to_q = padded(kv_rows, num_own, num_heads * width)
        if examples.num_queries != num_own:
            to_q.zero_()
        if examples.num_keys != num_asked:
            to_kv.zero_()
        arrays = (q_rows, kv_rows, examples.rows_E5, shifts_HT2, mixed_THK, grad_THK.contiguous(), to_q, to_kv)
        places = (q_rows.shape[1], kv_rows.shape[1])
        if examples.num_queries:
            call(compiled.backward, *arrays, num_heads, width, ctx.scale, torch.get_num_threads(), *places)
        heads, parts = (num_heads, width), (ctx.num_parts, num_heads, width)
        grad_q = None if ctx.has_queries else to_q[:, : num_heads * width].unflatten(1, heads)
        return grad_q, to_kv[:, : ctx.num_parts * num_heads * width].unflatten(1, parts), None, None, None


def _rows_of(x: Tensor) -> Tensor:
    """(T, row): (T, ..., K) with what lies between its tokens; a copy where those are no rows of their own."""
    width, row = x.shape[1:].numel(), x.stride(0)
    has_rows = row >= width and x.shape[0] > 1 and x[0].is_contiguous()
    if has_rows and x.storage_offset() + x.shape[0] * row <= x.untyped_storage().nbytes() // x.element_size():
        return x.as_strided((x.shape[0], row), (row, 1))
    return x.contiguous().view(x.shape[0], width)
