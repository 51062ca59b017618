"""One token from logits: drawn, or the middle of what is likely.

Dimensions: N tokens, V vocabulary, S steps of a number.
"""

from typing import Literal

import torch
from torch import Tensor

_GREEDY = 1e-6
"""Temperatures below take the likeliest token."""


def draw(
    logits_NV: Tensor, uniform_N: Tensor, temperature_N: Tensor, *, top_k: float = 0.0, top_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Tokens, and how sure they are.

    Filters act on the logits as they are, the temperature on what they leave, as in the released code of 4M. At a
    temperature of about 0 the likeliest token is as sure as it is likely; the original calls all of them certain there,
    so that MaskGIT has no order.

    Args:
        logits_NV: Of any float type.
        uniform_N: float64 in [0, 1): what decides, one number for each token.
        temperature_N: float64, above 0.
        top_k, top_p: See `TargetConfig`.

    Returns:
        int64 (N,) and float64 (N,), the probability of each token among those that could be drawn.
    """
    logits_NV, share_NV, is_greedy_N = _shares(logits_NV, temperature_N, top_k, top_p)
    ends_NV = share_NV.cumsum(-1)
    drawn_N = torch.searchsorted(ends_NV, (uniform_N * ends_NV[:, -1])[:, None], right=True)[:, 0]
    best_N = logits_NV.argmax(-1)
    # A number that rounds up to the sum lies behind all tokens.
    drawn_N = torch.where(is_greedy_N | (drawn_N == logits_NV.shape[1]), best_N, drawn_N)
    return drawn_N, share_NV.gather(1, drawn_N[:, None])[:, 0]


def middle(
    logits_NV: Tensor,
    temperature_N: Tensor,
    which: Literal["mean", "median"],
    num_numbers: int,
    *,
    top_k: float = 0.0,
    top_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The tokens nearest to the mean or the median of what could be drawn, of tokens that stand for numbers, as `draw`.

    Args:
        which: mean has the smallest expected squared error, median the smallest absolute error.
        num_numbers: How many numbers a token stands for, each in S equal steps, V = S ** num_numbers, the last one
            changing fastest. Each has a mean and a median of its own.
    """
    logits_NV, share_NV, is_greedy_N = _shares(logits_NV, temperature_N, top_k, top_p)
    num_steps = round(logits_NV.shape[1] ** (1 / num_numbers))
    step_S = torch.arange(num_steps, dtype=torch.float64, device=logits_NV.device)
    share_NS = share_NV.unflatten(1, (num_steps,) * num_numbers)
    found_N = torch.zeros(len(logits_NV), dtype=torch.int64, device=logits_NV.device)
    for number in range(num_numbers):  # the marginal distribution of each number, over all values of the others
        others = [axis + 1 for axis in range(num_numbers) if axis != number]
        own_NS = share_NS.sum(others) if others else share_NS
        if which == "mean":
            place_N = (own_NS * step_S).sum(-1).round().long()
        else:
            place_N = (own_NS.cumsum(-1) < 0.5).sum(-1)
        found_N = found_N * num_steps + place_N.clamp(max=num_steps - 1)
    found_N = torch.where(is_greedy_N, logits_NV.argmax(-1), found_N)
    return found_N, share_NV.gather(1, found_N[:, None])[:, 0]


def _shares(logits_NV: Tensor, temperature_N: Tensor, top_k: float, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """float64 logits and probabilities of what may be drawn, and where the likeliest token is taken anyway: there
    probabilities are those at a temperature of 1."""
    logits_NV = filtered(logits_NV.double(), top_k=top_k, top_p=top_p)
    is_greedy_N = temperature_N < _GREEDY
    scale_N = torch.where(is_greedy_N, torch.ones_like(temperature_N), temperature_N)
    return logits_NV, torch.softmax(logits_NV / scale_N[:, None], -1), is_greedy_N


def filtered(logits_NV: Tensor, *, top_k: float = 0.0, top_p: float = 0.0) -> Tensor:
    """Logits with minus infinity for what is not to be drawn. Of equal logits lower ids come first."""
    num_tokens = logits_NV.shape[1]
    num_kept = num_tokens
    if top_k:
        num_kept = min(num_tokens, max(1, int(top_k) if top_k >= 1 else round(top_k * num_tokens)))
    if num_kept == num_tokens and not 0 < top_p < 1:
        return logits_NV
    sorted_NV, order_NV = torch.sort(logits_NV, dim=-1, descending=True, stable=True)
    is_kept_NV = (torch.arange(num_tokens, device=logits_NV.device) < num_kept).expand_as(sorted_NV)
    if 0 < top_p < 1:
        share_NV = torch.softmax(sorted_NV.masked_fill(~is_kept_NV, -torch.inf), -1)
        # The token that goes above p is the last one.
        is_kept_NV = is_kept_NV & (share_NV.cumsum(-1) - share_NV <= top_p)
    is_kept_NV = torch.zeros_like(is_kept_NV).scatter(1, order_NV, is_kept_NV)  # back in the order of ids
    return logits_NV.masked_fill(~is_kept_NV, -torch.inf)
