"""Attention on a GPU: the variable-length flash kernel, and FlexAttention if there is a bias.

Dimensions: T tokens, B examples or rows, H heads, K width of one head, Q and P queries and keys of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.dist.compiled import vary
from pretrainkit.dist.devices import planned_card
from pretrainkit.nn.attention import AttentionLayout, PaddedLayout, padded_layout
from pretrainkit.nn.biased_attention import RowPairs, visible_pairs
from pretrainkit.nn.relative_bias import RelativeBias


@dataclass(frozen=True, eq=False)
class VarlenLayout(AttentionLayout):
    """Examples stored one after another on a GPU. Tokens after the last one belong to no example."""

    cu_seqlens: Tensor
    """int32 (B + 1,): start of each example, and the end of the last one; unused examples repeat the last entry."""
    max_length: int
    """Maximum length of an example; a Python number, so that shapes do not depend on the data."""
    num_tokens: int
    """T, including unused tokens at the end."""
    padded: PaddedLayout = field(init=False)
    """Layout to use if the kernel is not supported."""
    ends: Tensor = field(init=False)
    """int32: `cu_seqlens`, followed by the ends of pieces of the unused tokens. The kernel writes nothing for tokens
    outside of examples, in either pass, and whatever is in that memory, possibly NaN, would get into the gradients of
    weights."""
    card: tuple[int, int] = field(init=False)
    """Compute capability. It is stored here, because torch.compile does not look into caches."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "card", capability(self.cu_seqlens.device))
        object.__setattr__(self, "padded", padded_layout(self.cu_seqlens, self.max_length, self.num_tokens))
        num_pieces = -(-self.num_tokens // self.max_length)  # the maximum number; pieces may be empty
        piece = torch.arange(1, num_pieces + 1, dtype=torch.int32, device=self.cu_seqlens.device)
        rest = (self.cu_seqlens[-1] + piece * self.max_length).clamp(max=self.num_tokens)
        ends = torch.cat((self.cu_seqlens, rest))
        vary(ends)
        object.__setattr__(self, "ends", ends)

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        if not has_varlen(qkv_T3HK, self.card):
            return self.padded.attend(qkv_T3HK, window=window, dropout_rate=dropout_rate)
        reach, width = -1 if window is None else window // 2, qkv_T3HK.shape[-1]
        if width % 8:  # the kernel needs multiples of 8; zeros do not change the products
            qkv_T3HK = F.pad(qkv_T3HK, (0, 8 - width % 8))
        q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
        ends, longest, scale = self.ends, self.max_length, width**-0.5
        if dropout_rate:
            # `varlen_attn`, which has no dropout, calls the same operator. Dropout draws from the GPU's generator.
            return torch.ops.aten._flash_attention_forward(
                *(q_THK, k_THK, v_THK, ends, ends, longest, longest, dropout_rate),
                is_causal=False,
                return_debug_mask=False,
                scale=scale,
                window_size_left=reach,
                window_size_right=reach,
            )[0][..., :width]
        from torch.nn.attention.varlen import varlen_attn

        mixed_THK = varlen_attn(
            *(q_THK, k_THK, v_THK, ends, ends, longest, longest), scale=scale, window_size=(reach, reach)
        )
        assert isinstance(mixed_THK, Tensor)  # more outputs are returned only on request
        return mixed_THK[..., :width]


_FLEX_BLOCK = 128
"""Default block size of FlexAttention. Rows are padded to multiples of it. With other lengths, torch 2.11 computed
gradients on an H200 that were wrong by a factor of up to 1000, or NaN, without an error. See
https://github.com/pytorch/pytorch/issues/153799."""
_FLEX_OPTIONS: Any = {"fwd_num_warps": 8}
"""With the default of 4 warps, the 128 x 128 scores of a block do not fit into the registers beside a mask or a bias:
the forward pass of 4M's decoder spilled 1.2 kB per thread, which made it 10 times slower (H200, torch 2.11)."""


@dataclass(frozen=True, eq=False)
class FlexPairs(RowPairs):
    """Rows with FlexAttention, which skips blocks of pairs that do not see each other. It has no dropout."""

    block_mask: Any = None
    """Mask for `torch.nn.attention.flex_attention` with the same visibility, of padded rows."""

    def prepare(self, bias: RelativeBias | None, dtype: torch.dtype) -> Tensor | None:
        # Compute the bias of every pair of tokens, not one number per distance. The gradient of such a number is a sum
        # over all rows and a whole diagonal, by atomic operations. They took three quarters of the backward pass of
        # T5's encoder on an H200. The bias of all pairs needs memory: for 12 heads 13 MB with rows of 512 tokens and
        # 0.8 GB with 4,096, and as much for its gradient.
        return None if bias is None else bias(_padded(self.num_queries), _padded(self.num_keys)).contiguous()

    def attend(
        self, q_THK: Tensor | None, kv: Tensor, prepared: Tensor | None, *, dropout_rate: float, scale: float = 1.0
    ) -> Tensor:
        if dropout_rate:
            raise ValueError(f"FlexAttention has no dropout, but the rate is {dropout_rate}: use RowPairs")
        q_BHQK, k_BHPK, v_BHPK = (_pad_rows(part) for part in self._rows(q_THK, kv))

        def add_bias(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            assert prepared is not None
            return score + prepared[head, query, key]

        mixed_BHQK = _flex_attention(q_BHQK)(
            q_BHQK,
            k_BHPK,
            v_BHPK,
            score_mod=None if prepared is None else add_bias,
            block_mask=self.block_mask,
            scale=scale,
            kernel_options=_FLEX_OPTIONS,
        )
        assert isinstance(mixed_BHQK, Tensor)  # more outputs are returned only on request
        if prepared is not None and planned_card() is not None:
            mixed_BHQK = _BiasMemory.apply(mixed_BHQK, prepared)
        return self._stream(mixed_BHQK[:, :, : self.num_queries])


def _padded(length: int) -> int:
    """Round up to whole blocks of FlexAttention."""
    return -(-length // _FLEX_BLOCK) * _FLEX_BLOCK


def _pad_rows(x_BHTK: Tensor) -> Tensor:
    """Append zeros to each row, up to whole blocks of FlexAttention."""
    num_tokens = x_BHTK.shape[2]
    return F.pad(x_BHTK, (0, 0, 0, _padded(num_tokens) - num_tokens)) if num_tokens % _FLEX_BLOCK else x_BHTK


def has_varlen(qkv_T3HK: Tensor, card: tuple[int, int]) -> bool:
    """True if the flash kernel for variable lengths supports these tensors on this GPU. It needs half precision, head
    widths up to 256, and compute capability 8.0 or newer."""
    return qkv_T3HK.dtype in (torch.bfloat16, torch.float16) and qkv_T3HK.shape[-1] <= 256 and card >= (8, 0)


def has_flex(some: Tensor, head_width: int) -> bool:
    """True if FlexAttention has a fused kernel for heads of this width on the device of a tensor. It is compiled by
    Triton, also in models that are not compiled, which needs compute capability 7.0 or newer and a C compiler."""
    return head_width >= 16 and capability(some.device) >= (7, 0) and (planned_card() is not None or _has_compiler())


@cache
def _has_compiler() -> bool:
    from pretrainkit.dist.parallelize import missing_for_compiling  # loads torch's distributed training

    return missing_for_compiling("cuda") is None


def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a GPU, such as (9, 0); (0, 0) for other devices, unless a step is planned."""
    return _capability(device) if device.type == "cuda" else planned_card() or (0, 0)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _flex_attention(some: Tensor) -> Callable[..., Any]:
    """Return the fused kernel on a GPU, within a compiled block or alone; elsewhere plain operations."""
    from torch.nn.attention.flex_attention import flex_attention

    if planned_card() is not None:
        return _allocate_flex
    if not some.is_cuda or torch.compiler.is_compiling():
        return flex_attention
    return _compiled_flex_attention()


def _allocate_flex(
    q_BHQK: Tensor,
    k_BHPK: Tensor,
    v_BHPK: Tensor,
    *,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    kernel_options: Any,
) -> Tensor:
    """Allocate what FlexAttention keeps for the backward pass: the output, and a number for each query and head."""
    rows = (part.transpose(1, 2) for part in (q_BHQK, k_BHPK, v_BHPK))
    sizes = (None, None, q_BHQK.shape[2], k_BHPK.shape[2])
    mixed_BQHK: Tensor = torch.ops.aten._flash_attention_forward(*rows, *sizes, 0.0, False, False, scale=scale)[0]
    return mixed_BQHK.transpose(1, 2)


class _BiasMemory(torch.autograd.Function):
    """Keep a bias for the backward pass, and allocate its gradient there, as FlexAttention does."""

    @staticmethod
    def forward(ctx: Any, mixed_BHQK: Tensor, bias_HQP: Tensor) -> Tensor:
        ctx.save_for_backward(bias_HQP)
        return mixed_BHQK.view_as(mixed_BHQK)

    @staticmethod
    def backward(ctx: Any, grad_BHQK: Tensor) -> tuple[Tensor, Tensor]:
        return grad_BHQK, torch.empty_like(*ctx.saved_tensors)


@cache
def _compiled_flex_attention() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flex_pairs(
    query_segment_BQ: Tensor, key_segment_BP: Tensor, *, is_causal: bool = False, is_prefix_BP: Tensor | None = None
) -> FlexPairs:
    """Return the layout of rows with these segments (see `visible_pairs`)."""
    num_rows, num_queries = query_segment_BQ.shape
    num_keys = key_segment_BP.shape[1]
    more_queries, more_keys = _padded(num_queries) - num_queries, _padded(num_keys) - num_keys
    query_segment_BQ = F.pad(query_segment_BQ, (0, more_queries))  # padding belongs to no example
    key_segment_BP = F.pad(key_segment_BP, (0, more_keys))
    if is_prefix_BP is not None:
        is_prefix_BP = F.pad(is_prefix_BP, (0, more_keys))

    def is_visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        segment = query_segment_BQ[row, query]
        visible = (segment == key_segment_BP[row, key]) & (segment > 0)
        if not is_causal:
            return visible
        is_before = key <= query
        if is_prefix_BP is not None:
            is_before = is_before | (is_prefix_BP[row, query] & is_prefix_BP[row, key])
        return visible & is_before

    block_mask = None
    if planned_card() is None:
        visible_BQP = visible_pairs(query_segment_BQ, key_segment_BP, is_causal=is_causal, is_prefix_BP=is_prefix_BP)
        block_mask = _block_mask(visible_BQP, is_visible)
    return FlexPairs(num_rows, num_queries, num_keys, None, block_mask)


def _block_mask(visible_BQP: Tensor, is_visible: Callable[..., Tensor]) -> Any:
    """Return the mask of FlexAttention. `create_block_mask` returns the same, but takes the host many times as long,
    because it maps `is_visible` over all dimensions in Python."""
    from torch.nn.attention.flex_attention import BlockMask

    blocks = visible_BQP.unflatten(2, (-1, _FLEX_BLOCK)).unflatten(1, (-1, _FLEX_BLOCK))
    num_visible = blocks.sum((2, 4))
    is_full = num_visible == _FLEX_BLOCK**2
    listed: dict[str, Any] = {}
    for prefix, chosen in (("", (num_visible > 0) & ~is_full), ("full_", is_full)):
        for name, lists in (("kv", chosen), ("q", chosen.mT.contiguous())):
            listed[f"{prefix}{name}_num_blocks"] = lists.sum(-1, dtype=torch.int32)[:, None]
            order = lists.byte().argsort(dim=-1, descending=True, stable=True)
            listed[f"{prefix}{name}_indices"] = order.int()[:, None]
    lengths = (visible_BQP.shape[1], visible_BQP.shape[2])
    return BlockMask(lengths, **listed, BLOCK_SIZE=(_FLEX_BLOCK, _FLEX_BLOCK), mask_mod=is_visible)
