"""The attention kernels that exist on GPUs alone, written plainly on CPU tensors.

Like flash attention's kernel for variable lengths, `varlen_forward` and `varlen_backward` never write what belongs to
no example: those rows are NaN here, where a GPU has whatever was in that memory.

Dimensions: T tokens, H heads, K width of a head, Q and P queries and keys.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window: Sequence[int] | None = None,
    *rest: object,
    dropout_rate: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace `torch_attn::_varlen_attn`: output (T, H, K), log-sums (H, T), the state of the generator."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"flash attention takes half precision, not {q.dtype}")
    if starts.dtype != torch.int32:
        raise RuntimeError(f"cu_seqlens is {starts.dtype}, not int32")
    mixed, log_sums = torch.full_like(q, torch.nan), torch.full((q.shape[1], q.shape[0]), torch.nan)
    seed = int(torch.randint(1 << 31, ())) if dropout_rate else 0
    for rows in _examples(starts, max_q):
        own_q, own_k, own_v = (part[rows].float() for part in (q, k, v))
        share = _shares(own_q, own_k, scale, window)
        share = share * _kept(share, dropout_rate, seed + rows.start)
        mixed[rows] = torch.einsum("hqp,phk->qhk", share, own_v).to(q.dtype)
    return mixed, log_sums, torch.tensor([seed, 0], dtype=torch.uint64)


def varlen_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    state: Tensor,
    scale: float | None = None,
    window: Sequence[int] | None = None,
    *,
    dropout_rate: float = 0.0,
) -> tuple[Tensor, ...]:
    """Replace `torch_attn::_varlen_attn_backward`: gradients of queries, keys and values."""
    if q.shape[-1] % 8:
        raise RuntimeError(f"head_size should be a multiple of 8, not {q.shape[-1]}")
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    found = tuple(torch.full_like(part, torch.nan) for part in (q, k, v))
    for rows in _examples(starts, max_q):
        own_q, own_k, own_v, own_grad = (part[rows].float() for part in (q, k, v, grad))
        share = _shares(own_q, own_k, scale, window)
        kept = _kept(share, dropout_rate, int(state[0]) + rows.start)
        above = torch.einsum("qhk,phk->hqp", own_grad, own_v) * kept
        score = share * (above - (above * share).sum(-1, keepdim=True)) * factor
        for into, equation, one, other in (
            (found[0], "hqp,phk->qhk", score, own_k),
            (found[1], "hqp,qhk->phk", score, own_q),
            (found[2], "hqp,qhk->phk", share * kept, own_grad),
        ):
            into[rows] = torch.einsum(equation, one, other).to(into.dtype)
    return found


def flash_forward(*given: Any, window_size_left: int, window_size_right: int, **rest: Any) -> tuple[Tensor, ...]:
    """Replace `aten::_flash_attention_forward`: `varlen_forward` with dropout, and two tensors more."""
    q, k, v, starts, key_starts, max_q, max_k, dropout_rate, is_causal, _ = given
    window = (window_size_left, window_size_right)
    found = varlen_forward(
        q, k, v, starts, key_starts, max_q, max_k, is_causal, None, window, dropout_rate=dropout_rate
    )
    return *found, torch.zeros((), dtype=torch.uint64), torch.zeros(0, dtype=q.dtype)


def flash_backward(*given: Any, window_size_left: int, window_size_right: int, **rest: Any) -> tuple[Tensor, ...]:
    """Replace `aten::_flash_attention_backward`."""
    *tensors, max_q, max_k, dropout_rate, is_causal, state, _ = given
    window = (window_size_left, window_size_right)
    return varlen_backward(*tensors, max_q, max_k, is_causal, state, None, window, dropout_rate=dropout_rate)


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    kernel_options: object = None,
) -> Tensor:
    """`torch.nn.attention.flex_attention.flex_attention` by plain operators: zeros for queries that see no key."""
    if q.shape[-1] < 16:
        raise RuntimeError(
            f"embedding dimension of the query, key, and value must be at least 16 but got {q.shape[-1]}"
        )
    if q.shape[2] % 128 or k.shape[2] % 128:
        raise RuntimeError(f"{q.shape[2]} queries and {k.shape[2]} keys: gradients are wrong on a GPU")
    places = torch.meshgrid(
        *(torch.arange(size, device="cpu") for size in (*q.shape[:2], q.shape[2], k.shape[2])), indexing="ij"
    )
    row, head, query, key = (place.pin_memory().to(q.device, non_blocking=True) for place in places)
    with torch.autocast(q.device.type, enabled=False):
        scores = (q.float() @ k.float().mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if score_mod is not None:
            scores = score_mod(scores, row, head, query, key)
        if block_mask is not None:
            is_seen = block_mask.mask_mod(row, head, query, key)
            scores = scores.masked_fill(~is_seen, -torch.inf)
        share = scores.softmax(-1)
        if block_mask is not None:
            share = torch.where(is_seen.any(-1, keepdim=True), share, 0.0)
        return (share @ v.float()).to(q.dtype)


def _examples(starts: Tensor, longest: int) -> list[slice]:
    ends = starts.tolist()
    found = [slice(begin, end) for begin, end in itertools.pairwise(ends) if end > begin]
    if any(rows.stop - rows.start > longest for rows in found):
        raise RuntimeError(f"an example is longer than max_q={longest}: the kernel would not write its end")
    return found


def _shares(q: Tensor, k: Tensor, scale: float | None, window: Sequence[int] | None) -> Tensor:
    """(H, Q, P)"""
    scores = torch.einsum("qhk,phk->hqp", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if window is not None and tuple(window) != (-1, -1):
        place = torch.arange(len(q))
        ahead = place - place[:, None]
        is_near = ((ahead >= -window[0]) | (window[0] < 0)) & ((ahead <= window[1]) | (window[1] < 0))
        scores = scores.masked_fill(~is_near, -torch.inf)
    return scores.softmax(-1)


def _kept(share: Tensor, dropout_rate: float, seed: int) -> Tensor:
    """Return the factor of each share: 0 where it is dropped."""
    if not dropout_rate:
        return torch.ones(())
    draws = torch.rand(share.shape, generator=torch.Generator().manual_seed(seed))
    return (draws >= dropout_rate) / (1 - dropout_rate)
