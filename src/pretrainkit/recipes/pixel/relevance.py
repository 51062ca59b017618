"""Which patches of a text an answer rests on.

Dimensions: T tokens of one text, its class token and N patches; H heads, K width of one head, C classes (1 of a
number), P pixels of a patch's side, F values of a patch.
Sources: relevance by Chefer et al. 2021, https://arxiv.org/abs/2103.15679 (self-attention alone: equations 5 and 6);
rollout by Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928. Where patches are pooled and not the class token,
the mean over their rows is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.errors import InputError
from pretrainkit.nn.attention import AttentionLayout
from pretrainkit.nn.blocks import Pooler
from pretrainkit.recipes.pixel.sample import as_patches, in_lines
from pretrainkit.recipes.pixel.text_encoder import PixelTextEncoder
from pretrainkit.recipes.pixel.text_reader import stream
from pretrainkit.rendering.page import Text
from pretrainkit.rendering.renderer import Renderer

_PATCHES_PER_LINE = 32
_RED = np.array([230, 30, 30], np.float64)


class RecordedAttention(AttentionLayout):
    """One text; keeps the probabilities of each layer for their gradients."""

    def __init__(self) -> None:
        self.probabilities: list[Tensor] = []
        """(H, T, T) of each layer, rows are queries."""

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        q_HTK, k_HTK, v_HTK = qkv_T3HK.permute(1, 2, 0, 3)
        probabilities_HTT = (q_HTK @ k_HTK.transpose(1, 2) * q_HTK.shape[-1] ** -0.5).softmax(-1)
        if not probabilities_HTT.requires_grad:
            probabilities_HTT.requires_grad_()
        self.probabilities.append(probabilities_HTT)
        return (probabilities_HTT @ v_HTK).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class Explained:
    """An answer and the patches that it rests on."""

    columns_XP: NDArray[np.uint8]
    """The text as it was drawn, uint8 (N * P, P) or (N * P, P, 3)."""
    answer_C: NDArray[np.float32]
    """Logits, or a number."""
    target: int
    """The answer that `relevance_N` is about."""
    relevance_N: NDArray[np.float64]
    """Of each patch, the end patch included; not negative."""
    rollout_N: NDArray[np.float64]
    """Attention alone, of whatever answer; not negative."""

    def picture(self, weight_N: NDArray[np.floating] | None = None) -> NDArray[np.uint8]:
        """uint8 RGB (rows, columns, 3): the text in lines of 32 patches, the redder the more weight, by default
        `relevance_N`."""
        weight_N = self.relevance_N if weight_N is None else weight_N
        patches_NPP3 = as_patches(self.columns_XP.swapaxes(0, 1), self.columns_XP.shape[1]).astype(np.float64)
        share_N111 = (weight_N / max(float(weight_N.max()), 1e-30))[:, None, None, None]
        # Towards red with the weight: white becomes red, black stays black.
        patches_NPP3 *= 1 - share_N111 * (1 - _RED / 255)
        return in_lines(patches_NPP3.round().astype(np.uint8), _PATCHES_PER_LINE, gap=0, paper=255)


def explain(
    model: Callable[..., Any], encoder: PixelTextEncoder, renderer: Renderer, text: Text, target: int | None = None
) -> Explained:
    """Show why a fine-tuned model answers about a text or a pair as it does. Raises InputError where there is no class
    `target`.

    Args:
        model: Of one answer about a text: classes, or a number. Called with a batch and its longest text's patches, it
            gives (1, C) first. Its dropout must be off (`model.eval()`). Encoder and renderer are the model's.
        target: Number of the class to explain; None: the one that the model predicts.
    """
    columns_XP, P = renderer.columns(text), renderer.config.pixels_per_patch
    host = stream([columns_XP], P, has_color=renderer.config.rgb)
    batch = {name: torch.from_numpy(array).to(encoder.class_token.device) for name, array in host.items()}
    with torch.enable_grad(), recorded(encoder.blocks()) as attention:
        answer_C = model(batch, len(columns_XP) // P)[0][0].float()
    if target is None:
        target = int(answer_C.argmax())
    if not 0 <= target < len(answer_C):
        raise InputError(f"class {target} is asked about, but there are {len(answer_C)}\n  name one from 0 on")
    return Explained(
        columns_XP=columns_XP,
        answer_C=answer_C.detach().cpu().numpy(),
        target=target,
        relevance_N=_of_patches(encoder, relevance(answer_C[target], attention.probabilities)),
        rollout_N=_of_patches(encoder, rollout(attention.probabilities)),
    )


@contextmanager
def recorded(blocks: list[nn.Module]) -> Iterator[RecordedAttention]:
    """Make the blocks attend by the recording layout, whatever layout they are called with."""
    attention = RecordedAttention()

    def replace(block: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return given[0], attention, *given[2:]

    hooks = [block.register_forward_pre_hook(replace) for block in blocks]
    try:
        yield attention
    finally:
        for hook in hooks:
            hook.remove()


def relevance(answer: Tensor, probabilities: list[Tensor]) -> Tensor:
    """(T, T): how much each token (row) takes from each other for a scalar answer. Per layer, the positive part of
    gradient x attention, averaged over heads, is laid over what came before."""
    total_TT = torch.eye(probabilities[0].shape[-1], device=answer.device)
    gradients = torch.autograd.grad(answer, probabilities, allow_unused=True)
    for gradient_HTT, probabilities_HTT in zip(gradients, probabilities, strict=True):
        if gradient_HTT is not None:
            step_TT = (gradient_HTT * probabilities_HTT.detach()).clamp(min=0).mean(0).float()
            total_TT = total_TT + step_TT @ total_TT
    return total_TT


def rollout(probabilities: list[Tensor]) -> Tensor:
    """(T, T): attention multiplied through the layers, half of each token's own from the residual path."""
    total_TT = torch.eye(probabilities[0].shape[-1], device=probabilities[0].device)
    for probabilities_HTT in probabilities:
        own_TT = torch.eye(len(total_TT), device=total_TT.device)
        total_TT = (probabilities_HTT.detach().float().mean(0) + own_TT) / 2 @ total_TT
    return total_TT


def _of_patches(encoder: PixelTextEncoder, total_TT: Tensor) -> NDArray[np.float64]:
    """(N,): what the pooled tokens take from each patch."""
    rows = total_TT[:1] if isinstance(encoder.pooling, Pooler) else total_TT[1:]
    return rows[:, 1:].mean(0).double().cpu().numpy()
